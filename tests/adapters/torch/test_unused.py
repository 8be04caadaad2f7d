"""Parameters without a gradient on some rank or on all, frozen and thawed ones, and several optimizers in one script."""

import pytest
import torch
from reference import (
    FEATURES,
    STEPS,
    Pair,
    adam,
    assert_close,
    assert_same_bits,
    grads_of,
    mse,
    network,
    part_of,
    sgd,
    whole_batch,
)


class Branches(torch.nn.Module):
    """Which of the branches runs is for the caller to say; none of them feeds `idle`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.stem = torch.nn.Linear(FEATURES, 5)
        self.idle = torch.nn.Linear(5, 5)
        self.left = torch.nn.Linear(5, 3)
        self.right = torch.nn.Linear(5, 3)
        self.double()
        self.take = ("left",)

    def forward(self, inputs):
        hidden = torch.tanh(self.stem(inputs))
        return sum(getattr(self, name)(hidden) for name in self.take)


def rank_by_rank(twin, whole, size, choose):
    """One process's gradient for ranks that take different branches: the mean of the parts' losses."""
    losses = []
    for rank in range(size):
        twin.take = choose(rank)
        losses.append(mse(twin, *part_of(whole, rank)))
    (sum(losses) / size).backward()


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_branches_that_differ_between_ranks(hvd, make_optimizer, set_to_none):
    pair = Pair(hvd, make_optimizer, Branches)
    for step in range(STEPS):
        part, whole = pair.parts(step)

        def choose(rank, step=step):
            return ("left",) if (rank + step) % 2 else ("right", "left") if step % 3 else ("right",)

        pair.zero(set_to_none=set_to_none)
        pair.model.take = choose(hvd.rank())
        mse(pair.model, *part).backward()
        rank_by_rank(pair.twin, whole, hvd.size(), choose)
        pair.check_grads()
        assert pair.model.idle.weight.grad is None
        idle = pair.model.idle.weight.clone()
        pair.step()
        assert torch.equal(pair.model.idle.weight, idle)  # no weight decay either
    pair.check_weights()


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_a_rank_without_any_gradient(hvd, op):
    """Its backward touches no parameter of the optimizer, or it has no backward at all."""
    pair = Pair(hvd, sgd, op=getattr(hvd, op))
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        active = step % hvd.size()
        if hvd.rank() == active:
            mse(pair.model, *part).backward()
        elif step % 2:
            torch.ones(2, requires_grad=True).sum().backward()
        (mse(pair.twin, *part_of(whole, active)) / (hvd.size() if op == "Average" else 1)).backward()
        if hvd.rank() != active:
            pair.optimizer.synchronize()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_zeros_that_were_reduced_by_step_are_not_taken_for_zeros_later(hvd):
    """A rank without backward sends its zeros in place, and gets there what the others have."""
    pair = Pair(hvd, sgd)
    for step in range(4):
        part, whole = pair.parts(step)
        pair.zero(set_to_none=False)
        if step == 0 or hvd.rank() == 0:
            mse(pair.model, *part).backward()
        (mse(pair.twin, *whole) if step == 0 else mse(pair.twin, *part_of(whole, 0)) / hvd.size()).backward()
        pair.step()
        pair.check_grads()
        part, whole = pair.parts(100 + step)
        mse(pair.model, *part).backward()  # on top of what is there
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_step_without_any_gradient_changes_nothing(hvd):
    pair = Pair(hvd, adam)
    before = [param.clone() for param in pair.model.parameters()]
    for _ in range(3):
        pair.optimizer.step()
    assert all(grad is None for grad in grads_of(pair.model))
    assert all(torch.equal(*both) for both in zip(before, pair.model.parameters(), strict=True))
    pair.backward(0)
    pair.check_grads()


def test_frozen_and_thawed(hvd):
    def build():
        model = network()
        model[0].requires_grad_(False)
        return model

    pair = Pair(hvd, sgd, build)
    for step in range(STEPS):
        if step == 2:  # thaw the first layer
            pair.model[0].requires_grad_(True)
            pair.twin[0].requires_grad_(True)
        if step == 4:  # freeze another one
            pair.model[2].requires_grad_(False)
            pair.twin[2].requires_grad_(False)
        if step == 6:
            pair.model[2].weight.requires_grad_(True)
            pair.twin[2].weight.requires_grad_(True)
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        assert (pair.model[0].weight.grad is None) == (step < 2)
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("groups", [None, 1])
def test_frozen_after_a_pass_that_was_kept_back(hvd, groups):
    """Rank 1 alone has a gradient of that layer: the others have to take part in its reduction."""
    pair = Pair(hvd, sgd, Branches, groups=groups)
    for step in range(6):
        part, whole = pair.parts(step)
        pair.zero()
        for model in (pair.model, pair.twin):
            model.left.requires_grad_(True)

        def choose(rank, step=step):
            return ("left",) if step == 0 or rank == 1 else ("right",)

        pair.model.take = choose(hvd.rank())
        with pair.optimizer.no_sync():
            mse(pair.model, *part).backward()
        rank_by_rank(pair.twin, whole, hvd.size(), choose)
        for model in (pair.model, pair.twin):
            model.left.requires_grad_(False)
        mse(pair.model, *part).backward()
        rank_by_rank(pair.twin, whole, hvd.size(), choose)
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_two_optimizers_without_names(hvd):
    """As in adversarial training: one's backward also runs through the other's parameters."""
    maker, judge = network(1), network(2)
    twin_maker, twin_judge = network(1), network(2)
    judge_in, twin_judge_in = torch.nn.Linear(3, FEATURES).double(), torch.nn.Linear(3, FEATURES).double()
    twin_judge_in.load_state_dict(judge_in.state_dict())
    hvd.broadcast_parameters(judge_in.state_dict(), 0)
    twin_judge_in.load_state_dict(judge_in.state_dict())
    optimizers = [hvd.DistributedOptimizer(sgd(maker.parameters())), hvd.DistributedOptimizer(adam(judge.parameters()))]
    twins = [sgd(twin_maker.parameters()), adam(twin_judge.parameters())]
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        part = part_of(whole, hvd.rank())
        for (one, two, entrance), (inputs, targets), (first, second) in (
            ((maker, judge, judge_in), part, optimizers),
            ((twin_maker, twin_judge, twin_judge_in), whole, twins),
        ):
            second.zero_grad()
            made = one(inputs)
            mse(two, entrance(made.detach()), targets).backward()
            mse(two, entrance(targets), -targets).backward()
            second.step()
            first.zero_grad()
            (-mse(two, entrance(made), targets)).backward()
            first.step()
    assert_close(list(maker.parameters()), list(twin_maker.parameters()))
    assert_close(list(judge.parameters()), list(twin_judge.parameters()))
    assert_same_bits([*maker.parameters(), *judge.parameters()])


@pytest.mark.parametrize(("judgings", "freezing"), [(1, False), (2, True)])
def test_adversarial_training(hvd, freezing, judgings):
    """The loop of torch's DCGAN tutorial: names that both networks have, several steps of one for a step of the other, and
    the judge frozen meanwhile.
    """

    def build():
        maker = network(1)
        judge = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LeakyReLU(0.2), torch.nn.Linear(5, 1)).double()
        return maker, judge

    torch.manual_seed(2)
    ours, alone = build(), build()
    alone[1].load_state_dict(ours[1].state_dict())
    optimizers = [hvd.DistributedOptimizer(adam(net.parameters()), net.named_parameters()) for net in ours]
    twins = [adam(net.parameters()) for net in alone]
    criterion = torch.nn.BCEWithLogitsLoss()
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        for (maker, judge), (maker_optimizer, judge_optimizer), (noise, real) in (
            (ours, optimizers, part_of(whole, hvd.rank())),
            (alone, twins, whole),
        ):
            ones, zeros = torch.ones(len(real), 1, dtype=real.dtype), torch.zeros(len(real), 1, dtype=real.dtype)
            judge.requires_grad_(True)
            for turn in range(judgings):
                judge.zero_grad()
                criterion(judge(real + 0.1 * turn), ones).backward()
                fake = maker(noise)
                criterion(judge(fake.detach()), zeros).backward()
                judge_optimizer.step()
            if freezing:
                judge.requires_grad_(False)
            maker.zero_grad()
            criterion(judge(fake), ones).backward()
            maker_optimizer.step()
    for net, twin in zip(ours, alone, strict=True):
        assert_close(list(net.parameters()), list(twin.parameters()), 1e-9)
        assert_same_bits(list(net.parameters()))


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_optimizers_with_parameters_in_common(hvd, op):
    """They are reduced once, whichever optimizer steps."""

    def setup():
        model = network()
        return model, [sgd([*model[0].parameters(), *model[2].parameters()]), adam([*model[2:].parameters()])]

    (model, plain), (twin, twin_optimizers) = setup(), setup()
    optimizers = [hvd.DistributedOptimizer(optimizer, op=getattr(hvd, op)) for optimizer in plain]
    factor = hvd.size() if op == "Sum" else 1
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        part = part_of(whole, hvd.rank())
        model.zero_grad()
        twin.zero_grad()
        for passes in range(2):
            mse(model, *part).backward()
            (mse(twin, *whole) * factor).backward()
            assert_close(grads_of(model), grads_of(twin))
            if passes:
                optimizers[0].step()
                twin_optimizers[0].step()
        optimizers[1].step()
        twin_optimizers[1].step()
    assert_close(list(model.parameters()), list(twin.parameters()))
    assert_same_bits(list(model.parameters()))
    del optimizers[1], plain[1]  # the first one still needs what the second one reduced
    whole = whole_batch(9, hvd.size())
    model.zero_grad()
    twin.zero_grad()
    mse(model, *part_of(whole, hvd.rank())).backward()
    (mse(twin, *whole) * factor).backward()
    assert_close(grads_of(model), grads_of(twin))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("resets", [0, 1])
def test_a_gradient_in_common_that_is_written_by_hand_is_reduced(hvd, resets, set_to_none):
    """Also if the optimizer that has reset it is not the one that reduces it."""
    model = network()
    optimizers = [hvd.DistributedOptimizer(sgd([*part.parameters()])) for part in (model, model[2:])]
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    optimizers[0].step()
    model[0].zero_grad()
    optimizers[resets].zero_grad(set_to_none=set_to_none)
    for param in model[2:].parameters():
        param.grad = torch.full_like(param, hvd.rank() + 1.0)
    optimizers[0].step()
    mean = (hvd.size() + 1) / 2
    assert_close(grads_of(model[2:]), [torch.full_like(param, mean) for param in model[2:].parameters()])
    assert_same_bits(list(model.parameters()))


@pytest.mark.parametrize("suspends", [0, 1])
def test_no_sync_keeps_gradients_in_common_unreduced(hvd, suspends):
    model, twin = network(), network()
    optimizers = [hvd.DistributedOptimizer(sgd([*part.parameters()])) for part in (model, model[2:])]
    part = part_of(whole_batch(0, hvd.size()), hvd.rank())
    with optimizers[suspends].no_sync():
        mse(model, *part).backward()
    mse(twin, *part).backward()
    assert_close(grads_of(model[2:]), grads_of(twin[2:]))
    optimizers[0].synchronize()
    twin.zero_grad()
    mse(twin, *whole_batch(0, hvd.size())).backward()
    assert_close(grads_of(model), grads_of(twin))


def test_parameters_in_common_need_one_op(hvd):
    model = network()
    kept = hvd.DistributedOptimizer(sgd(model.parameters()))
    with pytest.raises(ValueError, match="would reduce its gradient differently: op Average in process set 0, and op Sum"):
        hvd.DistributedOptimizer(sgd(model[0].parameters()), op=hvd.Sum)
    assert kept is not None
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    twin = network()
    mse(twin, *whole_batch(0, hvd.size())).backward()
    assert_close(grads_of(model), grads_of(twin))


def test_a_dropped_optimizer_leaves_nothing_behind(hvd):
    model, twin = network(), network()
    for _ in range(3):  # as when a notebook's cell is run again
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        whole = whole_batch(0, hvd.size())
        model.zero_grad()
        mse(model, *part_of(whole, hvd.rank())).backward()
        twin.zero_grad()
        mse(twin, *whole).backward()
        assert_close(grads_of(model), grads_of(twin))
    del optimizer
    assert not any(param._backward_hooks or param._post_accumulate_grad_hooks for param in model.parameters())
    model.zero_grad()
    part = part_of(whole, hvd.rank())
    mse(model, *part).backward()
    twin.zero_grad()
    mse(twin, *part).backward()
    assert_close(grads_of(model), grads_of(twin))  # this rank's alone


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_ranks_that_run_out_of_data_join(hvd, op):
    """The others go on; the average is still over all ranks, as in Horovod."""
    pair = Pair(hvd, sgd, op=getattr(hvd, op))
    steps = [3 + 2 * rank for rank in range(hvd.size())]
    for step in range(max(steps)):
        part, whole = pair.parts(step)
        working = [rank for rank in range(hvd.size()) if steps[rank] > step]
        pair.zero()
        losses = [mse(pair.twin, *part_of(whole, rank)) for rank in working]
        (sum(losses) / (hvd.size() if op == "Average" else 1)).backward()
        if hvd.rank() in working:
            mse(pair.model, *part).backward()
            assert_close(grads_of(pair.model), grads_of(pair.twin))
            pair.optimizer.step()
        pair.twin_optimizer.step()
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(pair.model.state_dict(), hvd.size() - 1)
    pair.check_weights()


def test_ranks_with_sparse_gradients_join(hvd):
    """Horovod cannot: "Allgather is not supported with Join at this time"."""
    table, twin = (torch.nn.Embedding.from_pretrained(torch.ones(8, 2).double(), freeze=False, sparse=True) for _ in range(2))
    optimizer, twin_optimizer = (torch.optim.SGD(net.parameters(), lr=0.5) for net in (table, twin))
    hvd.DistributedOptimizer(optimizer)
    steps = [2 + rank for rank in range(hvd.size())]
    for step in range(max(steps)):
        words = torch.randint(0, 8, (hvd.size(), 4), generator=torch.Generator().manual_seed(step))
        working = [rank for rank in range(hvd.size()) if steps[rank] > step]
        twin_optimizer.zero_grad()
        (sum(twin(words[rank]).square().sum() for rank in working) / hvd.size()).backward()
        twin_optimizer.step()
        if hvd.rank() in working:
            optimizer.zero_grad()
            table(words[hvd.rank()]).square().sum().backward()
            optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(table.state_dict(), last)
    assert_close([table.weight], [twin.weight])


def test_unequal_numbers_of_passes_are_found_out(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    part = part_of(whole_batch(0, hvd.size()), hvd.rank())
    mse(model, *part).backward()
    if hvd.rank() != 0:
        optimizer.zero_grad()  # a new step here, a second pass of the old one there
    with pytest.raises(hvd.HorovodInternalError, match="deadlock: ranks wait for operations"):
        mse(model, *part).backward()
    optimizer.zero_grad()
    twin = network()
    mse(model, *part).backward()
    mse(twin, *whole_batch(0, hvd.size())).backward()
    assert_close(grads_of(model), grads_of(twin))
