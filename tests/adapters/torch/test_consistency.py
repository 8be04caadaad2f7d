"""`check_consistency` of modules and optimizers: once, and after so many of the optimizer's steps."""

import gc
import weakref

import pytest
import torch
from reference import adam, mse, network, part_of, sgd, whole_batch

from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError

RANKS = (2,)
MORE_RANKS = (3,)


def with_statistics():
    model = network()
    model.insert(1, torch.nn.BatchNorm1d(8, dtype=torch.float64))
    return model


def wrapped(hvd, model, make=adam, **options):
    return hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)


def train(hvd, model, optimizer, steps=1, passes=1):
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()


def differing(function):
    with pytest.raises(MismatchError) as raised:
        function()
    return str(raised.value)


def add_rank(hvd, tensor, *index):
    """Makes one element of a tensor this rank's own."""
    with torch.no_grad():
        tensor[index] += hvd.rank()


def test_parameters_state_and_options_are_compared(hvd):
    model = network()
    optimizer = wrapped(hvd, model)
    train(hvd, model, optimizer, 3)
    hvd.check_consistency(model, optimizer)
    add_rank(hvd, model[0].weight, 1, 2)
    text = differing(lambda: hvd.check_consistency(model, optimizer))
    assert (
        "The first is '0.weight of argument 1 (Sequential)', float64 [8, 6]: its first element that differs, [1, 2], is" in text
    )
    assert "hvd.broadcast_parameters(model.state_dict(), root_rank=0)" in text
    hvd.broadcast_parameters(model.state_dict(), 0)
    state = optimizer.state[model[2].bias]
    add_rank(hvd, state["exp_avg"], 5)
    assert "'state of 2.bias.exp_avg of argument 2 (Adam)', float64 [8]" in differing(
        lambda: hvd.check_consistency(model, optimizer)
    )
    hvd.broadcast_optimizer_state(optimizer, 0)
    add_rank(hvd, optimizer.state[model[2].bias]["step"])
    assert "'state of 2.bias.step of argument 1 (Adam)'" in differing(lambda: hvd.check_consistency(optimizer))
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.param_groups[0]["lr"] *= 1 + hvd.rank()
    assert "'group 0.lr of argument 1 (Adam)', float64 []: it is 0.01 on rank 0" in differing(
        lambda: hvd.check_consistency(optimizer)
    )


def test_a_plain_optimizer_gets_its_names_from_the_module(hvd):
    model = network()
    optimizer = sgd(model.parameters())
    mse(model, *whole_batch(0, 1)).backward()
    optimizer.step()
    add_rank(hvd, optimizer.state[model[4].weight]["momentum_buffer"], 0, 0)
    assert "'state of 4.weight.momentum_buffer of argument 1 (SGD)'" in differing(
        lambda: hvd.check_consistency(optimizer, model)
    )
    assert "'state of 0.4.momentum_buffer of argument 1 (SGD)'" in differing(lambda: hvd.check_consistency(optimizer))


def test_buffers_only_where_they_are_asked_for(hvd):
    model = with_statistics()
    optimizer = wrapped(hvd, model)
    train(hvd, model, optimizer, 2)
    hvd.check_consistency(model, optimizer)
    assert "'1.running_mean of argument 1 (Sequential)'" in differing(lambda: hvd.check_consistency(model, buffers=True))


def test_frozen_parameters_are_compared(hvd):
    model = network().requires_grad_(False)
    add_rank(hvd, model[0].bias, 0)
    assert "'0.bias of argument 1" in differing(lambda: hvd.check_consistency(model))


def test_tensors_in_other_order_sparse_ones_and_views(hvd):
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    last = image.contiguous(memory_format=torch.channels_last)
    hvd.check_consistency(last if hvd.rank() else image, {"bf16": torch.ones(3, dtype=torch.bfloat16), "view": image[..., 1]})
    conjugate = torch.tensor([1 + 1j]).conj() if hvd.rank() else torch.tensor([1 - 1j])
    hvd.check_consistency(conjugate)
    add_rank(hvd, last, 0, 1, 2, 3)
    assert "differs, [0, 1, 2, 3], is 23 on rank 0, but 24 on rank 1" in differing(lambda: hvd.check_consistency(last))
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0 + hvd.rank()], (4,), check_invariants=True)
    assert "'values of argument 1 (Tensor)', float32 [2]" in differing(lambda: hvd.check_consistency(sparse))


@pytest.mark.parametrize("passes", [1, 2])
def test_every_so_many_steps_of_the_optimizer(hvd, passes):
    model = network()
    optimizer = wrapped(hvd, model, backward_passes_per_step=passes)
    checker = hvd.check_consistency(model, optimizer, every=3)
    train(hvd, model, optimizer, 4, passes)
    add_rank(hvd, model[0].weight, 1, 2)
    train(hvd, model, optimizer, 1, passes)
    text = differing(lambda: train(hvd, model, optimizer, 1, passes))
    assert "in process set 0, after step 6 (all ranks were equal after step 3): " in text
    assert "'0.weight of argument 1 (Sequential)'" in text
    assert checker.steps == 6
    checker.close()
    train(hvd, model, optimizer, 3, passes)


@pytest.mark.parametrize("options", [{"shard": True}, {"op": "Adasum"}])
def test_state_that_is_each_ranks_own_is_left_out(hvd, options):
    if "op" in options:
        if hvd.size() & (hvd.size() - 1):
            pytest.skip("Adasum needs a power of two of ranks")
        options = {"op": hvd.Adasum}
    model = network()
    optimizer = wrapped(hvd, model, **options)
    checker = hvd.check_consistency(model, optimizer, every=1)
    train(hvd, model, optimizer, 3)  # it compares after the ranks have exchanged what each has stepped
    assert checker.steps == 3
    add_rank(hvd, model[0].weight, 1, 2)
    assert "in 1 of" in differing(lambda: hvd.check_consistency(model, optimizer))
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer.param_groups[0]["lr"] *= 1 + hvd.rank()
    assert "'group 0.lr of argument 2 (Adam)'" in differing(lambda: hvd.check_consistency(model, optimizer))


def test_the_process_set_is_the_optimizers(hvd):
    """On three ranks the last one is outside, trains a model of its own, and is not compared."""
    members = hvd.add_process_set([0, 1])
    model = network(seed=7 if members.included() else 8)
    optimizer = wrapped(hvd, model, process_set=members)
    checker = hvd.check_consistency(model, optimizer, every=2)
    train(hvd, model, optimizer, 2)
    add_rank(hvd, model[0].weight, 0, 0)
    train(hvd, model, optimizer, 1)
    if members.included():
        text = differing(lambda: train(hvd, model, optimizer, 1))
        assert f"in process set {members.process_set_id}, after step 4" in text
        assert "hvd.broadcast_parameters(model.state_dict(), root_rank=0, process_set=process_set)" in text
    else:
        train(hvd, model, optimizer, 1)
    checker.close()
    hvd.remove_process_set(members)


def test_models_that_are_built_differently_are_named(hvd):
    model = network(hidden=8 + hvd.rank())
    assert "0.weight of argument 1 (Sequential) is float64 [8, 6] on rank 0, but" in differing(
        lambda: hvd.check_consistency(model)
    )


def test_the_optimizer_lives_no_longer_because_of_its_checker(hvd):
    model = network()
    optimizer = wrapped(hvd, model)
    hvd.check_consistency(model, optimizer, every=5)
    train(hvd, model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_what_cannot_be_compared(hvd):
    class Part(torch.nn.Parameter):
        placements = (type("Shard", (), {"is_replicate": lambda self: False, "__repr__": lambda self: "Shard(0)"})(),)

    model = network()
    model[0].register_parameter("part", Part(torch.zeros(2)))
    with pytest.raises(UnsupportedError, match=r"'0.part' is a DTensor of which each rank has a part"):
        hvd.check_consistency(model)
    with pytest.raises(UnsupportedError, match=r"check_consistency: an argument is a DTensor"):
        hvd.check_consistency(model[0].part)
    with pytest.raises(InvalidArgumentError, match="belongs to a lazy layer that has seen no batch yet"):
        hvd.check_consistency(torch.nn.LazyLinear(3))
