"""Process sets in torch: every collective and its gradient, equal starts, and training on sets that overlap."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from reference import adam, assert_close, assert_same_bits, grads_of, mse, network, part_of, sgd, whole_batch
from support.set_cases import FORMS, Members, added, check_form

RANKS = (3,)
MORE_RANKS = (2,)
STEPS = 3


def proper_sets(hvd):
    """Sets that overlap where there are ranks enough."""
    return [[0, 1], [0, 2], [1]] if hvd.size() > 2 else [[0], [1]]


@pytest.fixture(scope="module")
def sets(hvd):
    with added(hvd, *proper_sets(hvd)) as registered:
        yield registered


def included(sets):
    return [each for each in sets if each.included()]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_every_collective(hvd, sets, name):
    for step in range(STEPS):
        for each in included(sets):
            members = Members(each.ranks, each.rank(), each.ranks[step % each.size()], step)
            check_form(FORMS[name], hvd, each, members, torch.from_numpy)


def value(rank, step, rows=4):
    return torch.linspace(1.0, 2.0, rows * 2, dtype=torch.float64).reshape(rows, 2) * (rank + 1) + step


def test_gradients_of_collectives_count_the_ranks_of_the_set(hvd, sets):
    for step in range(STEPS):
        for each in included(sets):
            incoming = {rank: value(rank, step + 1) for rank in each.ranks}
            mine = value(hvd.rank(), step).requires_grad_()
            for op, divisor in ((hvd.Sum, 1), (hvd.Average, each.size())):
                (grad,) = torch.autograd.grad(hvd.allreduce(mine, op=op, process_set=each), mine, incoming[hvd.rank()])
                assert_close([grad], [sum(incoming.values()) / divisor])
            average = sum(incoming.values()) / each.size()
            root = each.ranks[-1]
            (grad,) = torch.autograd.grad(hvd.broadcast(mine, root, process_set=each), mine, incoming[hvd.rank()])
            assert_close([grad], [average if hvd.rank() == root else 0 * average])
            gathered = hvd.allgather(mine, process_set=each)
            (grad,) = torch.autograd.grad(gathered, mine, torch.full_like(gathered, hvd.rank() + 1.0))
            assert_close([grad], [torch.full_like(grad, np.mean(each.ranks) + 1.0)])


def test_sparse_allreduce(hvd, sets):
    for step in range(STEPS):
        for each in included(sets):
            for op, divisor in ((hvd.Sum, 1), (hvd.Average, each.size())):
                dense = {rank: torch.zeros(5, 2, dtype=torch.float64) for rank in each.ranks}
                for rank, tensor in dense.items():
                    tensor[rank] = tensor[4] = rank + 1.0 + step
                wait = hvd.sparse_allreduce_async(dense[hvd.rank()].to_sparse(1), f"rows {op}", op, process_set=each)
                assert_close([wait()], [sum(dense.values()) / divisor])


def trained(rank, make_optimizer):
    """A model and an optimizer that has taken a step, different on each rank."""
    model = network(seed=100 + rank)
    optimizer = make_optimizer(model.parameters())
    optimizer.param_groups[0]["lr"] = 0.01 * (rank + 1)
    mse(model, *part_of(whole_batch(rank, 4), rank)).backward()
    optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    tensors = [tensor for state in optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor)]
    return [*(param.detach() for param in model.parameters()), *tensors, torch.tensor(optimizer.param_groups[0]["lr"])]


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_equal_starts_in_a_set(hvd, sets, make_optimizer):
    for each in included(sets):
        for root in each.ranks:
            model, optimizer = trained(hvd.rank(), make_optimizer)
            hvd.broadcast_parameters(model.state_dict(), root, process_set=each)
            hvd.broadcast_optimizer_state(optimizer, root, process_set=each)
            assert_close(state_of(model, optimizer), state_of(*trained(root, make_optimizer)), tolerance=0)


def test_starts_refuse_roots_outside_and_callers_outside(hvd, sets):
    model, optimizer = trained(hvd.rank(), sgd)
    calls = {
        "broadcast_parameters": lambda root, each: hvd.broadcast_parameters(model.state_dict(), root, process_set=each),
        "broadcast_optimizer_state": lambda root, each: hvd.broadcast_optimizer_state(optimizer, root, process_set=each),
        "broadcast_object": lambda root, each: hvd.broadcast_object(1, root, process_set=each),
    }
    for each in sets:
        outside = next(rank for rank in range(hvd.size()) if rank not in each.ranks)
        for call in calls.values():
            if each.included():
                with pytest.raises(ValueError, match=f"broadcast received invalid root rank {outside} for provided process"):
                    call(outside, each)
            else:
                with pytest.raises(ValueError, match=f"Rank {hvd.rank()} is not a member of the provided process set"):
                    call(each.ranks[0], each)
    assert_close(state_of(model, optimizer), state_of(*trained(hvd.rank(), sgd)), tolerance=0)


def test_optimizers_of_overlapping_sets_are_made_by_their_members_only(hvd, sets):
    """Of three ranks, rank 0 trains one model with rank 1 and another with rank 2, which has made one optimizer less."""
    training = []
    for each in included(sets):
        model, twin = network(seed=each.ranks[-1]), network(seed=each.ranks[-1])
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), process_set=each)
        training.append((each, model, optimizer, twin, sgd(twin.parameters())))
    for step in range(4):
        whole = whole_batch(step, hvd.size())
        for each, model, optimizer, twin, twin_optimizer in training:
            union = [torch.cat([part_of([tensor], rank)[0] for rank in each.ranks]) for tensor in whole]
            optimizer.zero_grad()
            twin_optimizer.zero_grad()
            mse(model, *part_of(whole, hvd.rank())).backward()
            mse(twin, *union).backward()
            assert_close(grads_of(model), grads_of(twin))
            optimizer.step()
            twin_optimizer.step()
            assert_close(list(model.parameters()), list(twin.parameters()))


def test_coded_buckets_of_two_sets_end_in_another_order_on_each_rank(hvd, sets, monkeypatch):
    """The optimizers of both sets have the number 0, so their buckets have the same labels. See also test_powersgd.py."""
    if hvd.size() < 3:
        pytest.skip("no two sets share two ranks")
    monkeypatch.setattr("hvdlite.torch.optimizer._serials", defaultdict(itertools.count))
    both = [each for each in (hvd.global_process_set, sets[0]) if each.included()]
    weights = [torch.nn.Parameter(torch.zeros(30, 30)) for _ in both]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1),
            compression=hvd.Compression.powersgd(start_step=0),
            process_set=each,
            start_check="off",
        )
        for each, weight in zip(both, weights, strict=True)
    ]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        product = torch.linspace(0.0, 1.0 + hvd.rank() + step, 30)[None]
        for weight in weights[::-1] if step > 1 and hvd.rank() == 1 else weights:  # at first the sets make their plans
            product = product @ (weight + 1)
        product.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    for each, weight in zip(both, weights, strict=True):
        for other in hvd.allgather(weight.detach()[None], process_set=each):
            assert torch.equal(other, weight)


def test_a_sparse_gradient_on_a_set(hvd, sets):
    for each in included(sets):
        table = torch.nn.Embedding(6, 2, sparse=True, dtype=torch.float64)
        torch.nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), process_set=each)
        wanted = torch.ones(6, 2, dtype=torch.float64)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (table(torch.tensor([hvd.rank(), 5])).sum() * (hvd.rank() + 1)).backward()
            optimizer.step()
            for rank in each.ranks:
                wanted[rank] -= (rank + 1) / each.size()
                wanted[5] -= (rank + 1) / each.size()
            assert_close([table.weight], [wanted])


def test_an_optimizer_whose_set_was_removed_says_so(hvd, sets):
    if hvd.size() < 3:
        pytest.skip("every other set is there")
    with added(hvd, [1, 2]) as (each,):
        model = network()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), process_set=each)
        mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
        optimizer.step()
    if hvd.rank() > 0:
        with pytest.raises(ValueError, match=r"ranks=\[1, 2\].*: pass it to hvdlite\.init or hvdlite\.add_process_set"):
            mse(model, *part_of(whole_batch(1, hvd.size()), hvd.rank())).backward()
    optimizer.zero_grad()
    hvd.DistributedOptimizer(optimizer, model.named_parameters())
    mse(model, *part_of(whole_batch(1, hvd.size()), hvd.rank())).backward()
    assert_same_bits(grads_of(model))
    for wrong in (each, [0]):
        with pytest.raises(ValueError, match=r"hvdlite\.add_process_set"):
            hvd.DistributedOptimizer(sgd(network().parameters()), process_set=wrong)


def test_an_optimizer_that_was_wrapped_again_for_another_set_is_not_shared_after_a_join(hvd, monkeypatch):
    monkeypatch.setattr("hvdlite.torch.optimizer._serials", defaultdict(itertools.count))
    compression = hvd.Compression.powersgd(start_step=0)
    models = [torch.nn.Linear(30, 40, bias=False), network()]
    optimizer, moved = (hvd.DistributedOptimizer(sgd(model.parameters()), compression=compression) for model in models)
    with added(hvd, [hvd.size() - 1]) as (alone,):
        hvd.DistributedOptimizer(moved, compression=compression, process_set=alone)
        assert moved._hvdlite.settings.prefix == optimizer._hvdlite.settings.prefix  # each in its own set
        for step in range(1 if hvd.rank() == 0 else 2):
            optimizer.zero_grad()
            models[0](torch.full((2, 30), step + hvd.rank() + 1.0)).square().sum().backward()
            optimizer.step()
        hvd.join()
        kept = optimizer.state_dict()["hvdlite_compression"]["state"]
        assert kept[0]["step"] == 2
