"""Gradients that lie in an arena: who wants it, that they get there and stay there, and how long the memory lives."""

import gc

import pytest
import torch
from arena_views import arena_ops, arenas_mapped, in_arena, train, viewing
from mpi4py import MPI
from reference import Pair, adam, assert_close, grads_of, mse, network, sgd

import hvdlite.torch.arena
from hvdlite.errors import InvalidArgumentError, MismatchError


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_views_at_the_same_place_in_every_step(hvd, set_to_none):
    pair = viewing(hvd, adam)
    places = []
    for step in range(4):
        before = arena_ops()
        train(pair, step, set_to_none=set_to_none)
        assert arena_ops() > before
        assert all(in_arena(grads_of(pair.model)))
        places.append([grad.data_ptr() for grad in grads_of(pair.model)])
    assert places == [places[0]] * 4
    pair.check_weights()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("streaming_bytes", [0, 1, 10**9])
def test_large_gradients_are_moved_in_past_the_caches(hvd, streaming_bytes, threads, monkeypatch):
    """From the knob's bytes on, where torch would copy with one thread; to weights and places it makes no difference."""
    from hvdlite.runtime import RUNTIME

    copied = []
    real = hvdlite.torch.arena.stream_copy
    monkeypatch.setattr(hvdlite.torch.arena, "stream_copy", lambda *call: (copied.append(call), real(*call)))
    monkeypatch.setattr(RUNTIME, "config", RUNTIME.config.replace(streaming_bytes=streaming_bytes))
    torch.set_num_threads(threads)
    try:
        pair = viewing(hvd, adam)
        for step in range(3):
            copied.clear()
            train(pair, step, set_to_none=True)
            assert all(in_arena(grads_of(pair.model)))
            places = [(grad.data_ptr(), grad.nbytes) for grad in grads_of(pair.model)]
            streams = streaming_bytes == 1 and threads == 1
            assert sorted((to, nbytes) for to, _, nbytes in copied) == (sorted(places) if streams else [])
        pair.check_weights()
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_switched_off(hvd, set_to_none):
    pair = Pair(hvd, sgd, gradient_as_bucket_view=False)
    before = arena_ops()
    for step in range(2):
        train(pair, step, set_to_none=set_to_none)
    assert arena_ops() == before
    assert not any(in_arena(grads_of(pair.model)))
    pair.check_weights()


@pytest.mark.parametrize("how", ["keyword", "position"])
def test_without_a_choice_gradients_that_are_kept_are_views(hvd, how):
    pair = Pair(hvd, adam)
    for step in range(3):
        before = arena_ops()
        if how == "keyword":
            train(pair, step, set_to_none=False)
        else:
            train(pair, step, before=lambda: pair.optimizer.zero_grad(False), set_to_none=False)
        assert arena_ops() > before
        assert all(in_arena(grads_of(pair.model)))
    pair.check_weights()


@pytest.mark.parametrize("who", ["nobody", "only rank 0", "all but rank 0", "all, but too late"])
def test_without_a_choice_gradients_that_some_rank_does_not_keep_are_private(hvd, who):
    """No memory is mapped for them either."""
    gc.collect()
    hvd.allreduce(torch.zeros(1), name="sweeps")
    mapped, operations = arenas_mapped(), arena_ops()
    pair = Pair(hvd, adam)
    first = hvd.rank() == 0
    for step in range(3):
        keeps = {"nobody": False, "only rank 0": first, "all but rank 0": not first, "all, but too late": step > 0}[who]
        train(pair, step, set_to_none=not keeps)
        assert not any(in_arena(grads_of(pair.model)))
    assert (arenas_mapped(), arena_ops()) == (mapped, operations)
    pair.check_weights()


def test_a_plan_that_is_made_anew_looks_again_whether_gradients_are_kept(hvd):
    pair = Pair(hvd, sgd, named=False)
    extra, twin_extra = network(9), network(9)
    train(pair, 0)
    pair.optimizer.add_param_group({"params": list(extra.parameters())})
    pair.twin_optimizer.add_param_group({"params": list(twin_extra.parameters())})
    for step in range(1, 3):
        part, whole = pair.parts(step)
        pair.zero()
        pair.zero(set_to_none=False)
        (mse(pair.model, *part) + mse(extra, *part)).backward()
        (mse(pair.twin, *whole) + mse(twin_extra, *whole)).backward()
        pair.check_grads()
        assert_close(grads_of(extra), grads_of(twin_extra))
        assert all(in_arena([*grads_of(pair.model), *grads_of(extra)]))
        pair.step()
    pair.check_weights()


def test_the_option_is_checked(hvd):
    model = network()
    with pytest.raises(InvalidArgumentError, match="gradient_as_bucket_view must be True, False or None, got 'yes'"):
        hvd.DistributedOptimizer(sgd(model.parameters()), gradient_as_bucket_view="yes")
    with pytest.raises(TypeError):
        hvd.DistributedOptimizer(
            sgd(model.parameters()), None, None, 1, hvd.Average, 1.0, 0, None, False, hvd.global_process_set, True
        )
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), gradient_as_bucket_view=hvd.rank() == 0)
    with pytest.raises(MismatchError, match="gradient_as_bucket_view is True on rank 0, but gradient_as_bucket_view is False"):
        model(torch.zeros(1, 6, dtype=torch.float64)).sum().backward()
    del optimizer


def test_added_parameters_get_places_too(hvd):
    pair = viewing(hvd, sgd, named=False)
    extra, twin_extra = network(9), network(9)
    train(pair, 0, set_to_none=False)
    pair.optimizer.add_param_group({"params": list(extra.parameters())})
    pair.twin_optimizer.add_param_group({"params": list(twin_extra.parameters())})
    for step in range(1, 4):
        part, whole = pair.parts(step)
        pair.zero(set_to_none=False)
        (mse(pair.model, *part) + mse(extra, *part)).backward()
        (mse(pair.twin, *whole) + mse(twin_extra, *whole)).backward()
        pair.check_grads()
        assert_close(grads_of(extra), grads_of(twin_extra))
        pair.step()
    pair.zero()
    part, whole = pair.parts(4)
    (mse(pair.model, *part) + mse(extra, *part)).backward()
    assert all(in_arena([*grads_of(pair.model), *grads_of(extra)]))


def test_the_memory_goes_with_the_optimizer_or_the_last_gradient(hvd):
    for _ in range(2):  # what earlier tests left goes with their cycles, and what was parked with the next operation
        gc.collect()
        hvd.allreduce(torch.zeros(1), name="sweeps")
    before = arenas_mapped()
    pair = viewing(hvd, sgd)
    train(pair, 0)
    assert arenas_mapped() == before + hvd.size()
    grad = grads_of(pair.model)[0]
    value = grad.clone()
    MPI.COMM_WORLD.Barrier()
    del pair
    gc.collect()
    assert arenas_mapped() == before + 1
    assert torch.equal(grad, value)
    del grad
    gc.collect()
    assert arenas_mapped() == before


def test_gradients_outlive_shutdown(hvd):
    pair = viewing(hvd, sgd)
    train(pair, 0, set_to_none=False)
    part, whole = pair.parts(1)
    pair.zero(set_to_none=False)
    mse(pair.model, *part).backward()
    mse(pair.twin, *whole).backward()
    values = [grad.clone() for grad in grads_of(pair.model)]
    hvd.shutdown()
    for grad, value in zip(grads_of(pair.model), values, strict=True):
        assert torch.equal(grad, value)
        grad.mul_(2.0)
    hvd.init(process_sets="dynamic")
    for grad in grads_of(pair.twin):
        grad.mul_(2.0)
    pair.step()
    for step in range(2, 4):
        train(pair, step, set_to_none=False)
    pair.zero()
    train(pair, 4)
    assert all(in_arena(grads_of(pair.model)))
    pair.check_weights()
