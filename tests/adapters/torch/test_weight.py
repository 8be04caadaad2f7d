"""`optimizer.weight`: batches of unequal sizes, beside one process on the whole batch."""

import contextlib
import copy

import pytest
import torch
from reference import assert_close, assert_same_bits, grads_of, network, whole_batch
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.runtime import RUNTIME

RANK, SIZE = WORLD.rank, WORLD.size
STEPS = 6


def parts(step, sizes, dtype=torch.float64):
    """This rank's rows, and all ranks'."""
    whole = [tensor[: sum(sizes)] for tensor in whole_batch(step, SIZE, dtype, rows=8)]
    before = sum(sizes[:RANK])
    return [tensor[before : before + sizes[RANK]] for tensor in whole], whole


def sizes_of(step):
    """Of the ranks' batches. One rank has no samples every third step, and all have as many every other."""
    return [4] * SIZE if step % 2 else [(3 * rank + step) % (8 if step % 3 else 3) for rank in range(SIZE)][::-1]


def mse(model, inputs, targets):
    return torch.nn.functional.mse_loss(model(inputs), targets)  # nan where there are no samples


@pytest.mark.parametrize(
    ("options", "dtype", "tolerance"),
    [
        ({}, torch.float64, 1e-12),
        ({"shard": True}, torch.float64, 1e-12),
        ({"gradient_as_bucket_view": True}, torch.float64, 1e-12),
        ({"gradient_predivide_factor": 4.0, "groups": 2}, torch.float64, 1e-12),
        ({"compression": "fp16"}, torch.float32, 2e-3),
        ({}, torch.bfloat16, 2e-2),
    ],
    ids=["plain", "sharded", "arena", "predivided", "compressed", "bfloat16"],
)
def test_training_is_that_of_one_process(hvd, options, dtype, tolerance):
    if "compression" in options:
        options = {"compression": hvd.Compression.fp16}
    hidden = 128 if "gradient_as_bucket_view" in options else 8  # large enough to lie in an arena
    model = network(dtype=dtype, hidden=hidden)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    alone = torch.optim.Adam(twin.parameters(), lr=0.01)
    for step in range(STEPS):
        sizes = sizes_of(step)
        mine, whole = parts(step, sizes, dtype)
        for each in (optimizer, alone):
            each.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
        optimizer.weight = sizes[RANK]
        mse(model, *mine).backward()
        mse(twin, *whole).backward()
        assert_close(grads_of(model), grads_of(twin), tolerance)
        assert_same_bits(grads_of(model))
        optimizer.step()
        alone.step()
        with torch.no_grad():  # rounding errors of steps are not what is compared
            for param, other in zip(model.parameters(), twin.parameters(), strict=True):
                other.copy_(param)
    optimizer.weight = None
    optimizer.zero_grad()
    model(torch.full((1, 6), RANK + 1.0, dtype=dtype)).sum().backward()
    assert_same_bits(grads_of(model))


def test_each_pass_has_its_weight_and_those_reduced_together_add_theirs(hvd):
    for passes in (1, 2):
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=passes)
        for _ in range(3):
            optimizer.zero_grad()
            wanted = 0.0
            for number in range(2):
                weights = [rank + 1.0 + number * (SIZE - rank) for rank in range(SIZE)]
                optimizer.weight = 50.0
                optimizer.weight = weights[RANK]  # before a pass the last value counts
                model(torch.full((1, 1), RANK + 1.0 + number)).sum().backward()
                wanted += sum(weights[rank] * (rank + 1.0 + number) for rank in range(SIZE)) / sum(weights)
            if passes == 2:
                both = [SIZE + rank + 2.0 for rank in range(SIZE)]
                wanted = sum(both[rank] * (2 * rank + 3.0) for rank in range(SIZE)) / sum(both)
            assert model.weight.grad.item() == pytest.approx(wanted, rel=1e-6)
            optimizer.step()


def test_weights_of_passes_in_no_sync_add_up_until_they_are_discarded(hvd):
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    weights = [(rank + 1.0, 2.0, 3.0 * (rank + 1)) for rank in range(SIZE)]
    totals = [sum(weights[rank]) for rank in range(SIZE)]
    sums = [3 * (rank + 1.0) for rank in range(SIZE)]
    for discard in (False, True, False):
        optimizer.zero_grad()
        if discard:
            with optimizer.no_sync():
                optimizer.weight = 100.0 * (RANK + 1)
                model(torch.ones(1, 1)).sum().backward()
            optimizer.zero_grad()
        for number, weight in enumerate(weights[RANK]):
            optimizer.weight = weight
            with contextlib.nullcontext() if number == 2 else optimizer.no_sync():
                model(torch.full((1, 1), RANK + 1.0)).sum().backward()
        wanted = sum(total * value for total, value in zip(totals, sums, strict=True)) / sum(totals)
        assert model.weight.grad.item() == pytest.approx(wanted, rel=1e-6)
        optimizer.step()


def test_an_unused_parameter_is_averaged_over_all_samples(hvd):
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1, bias=False) for _ in range(2)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    optimizer.weight = RANK + 1
    used = [layer(torch.ones(1, 2)).sum() for layer in model if RANK == 0 or layer is model[0]]
    sum(used).backward()
    assert torch.allclose(model[1].weight.grad, torch.full((1, 2), 1 / sum(range(1, SIZE + 1))))


def test_the_loss_of_a_closure_is_weighted_too(hvd):
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=1), model.named_parameters())
    optimizer.weight = RANK + 1

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).sum() * 0 + (RANK + 1.0)
        loss.backward()
        return loss

    total = sum(range(1, SIZE + 1))
    assert float(optimizer.step(closure)) == pytest.approx(sum(n * n for n in range(1, SIZE + 1)) / total)


def test_gradients_of_a_weighted_mean(hvd):
    """The gradient of the sum of all ranks' losses, each of which sees the mean."""
    total = sum(range(1, SIZE + 1))
    for grouped in (False, True):
        x = torch.full((3,), RANK + 1.0, dtype=torch.float64, requires_grad=True)
        if grouped:
            out = hvd.grouped_allreduce([x, x], weight=RANK + 1, name="group")[0]
        else:
            out = hvd.allreduce(x, weight=RANK + 1)
        assert out[0].item() == pytest.approx(sum(n * n for n in range(1, SIZE + 1)) / total)
        (out.sum() * (RANK + 2.0)).backward()
        assert x.grad[0].item() == pytest.approx((RANK + 1) / total * sum(rank + 2.0 for rank in range(SIZE)))


def test_what_does_not_go_with_a_weight(hvd):
    for op in (hvd.Sum, hvd.Adasum) if SIZE == 2 else (hvd.Sum,):
        layer = torch.nn.Linear(1, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters(), op=op)
        with pytest.raises(InvalidArgumentError, match="a weight needs op=Average"):
            optimizer.weight = 1
    table = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    for bad in (-1, "1", float("nan")):
        with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
            optimizer.weight = bad
    assert optimizer.weight is None
    if SIZE > 1:
        optimizer.weight = 2
        with pytest.raises(UnsupportedError, match=r"'.*weight' is sparse, and optimizer.weight is 2.0: .*sparse_as_dense"):
            table(torch.tensor([RANK])).sum().backward()


def test_a_rank_that_forgets_its_weight(hvd):
    if SIZE == 1:
        return
    layer = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters())
    if RANK:
        optimizer.weight = 3
    with pytest.raises(MismatchError, match=r"weighting differs: .*give every rank a weight"):
        layer(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("options", [{}, {"shard": True}, {"shard": True, "powersgd": True}], ids=["plain", "sharded", "coded"])
def test_all_ranks_learn_of_a_notice_in_the_step_in_which_one_gives_it(hvd, options):
    """The last rank gives notice in the second and the fourth step."""
    options = dict(options)
    if options.pop("powersgd", False):
        options["compression"] = hvd.Compression.powersgd(rank=1, start_step=0)
    model = network(0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)
    told = []
    for step in range(5):
        (x, y), _ = parts(step, [4] * SIZE)
        optimizer.weight = 4 + RANK
        optimizer._hvdlite.give_notice(RANK == SIZE - 1 and step in (1, 3))
        before = RUNTIME.engine.counters()["notices"]
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(RUNTIME.engine.counters()["notices"] > before)
    assert told == [False, True, False, True, False]
