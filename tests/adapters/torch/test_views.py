"""Gradients that lie in an arena: they get there, stay there, leave it and come back, and are right all the time."""

import gc
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from reference import Pair, adam, assert_close, grads_of, mse, network, sgd

import hvdlite.torch.arena
from hvdlite.errors import InvalidArgumentError, MismatchError


def arena_ops():
    from hvdlite.runtime import RUNTIME

    return RUNTIME.engine.counters()["arena_ops"]


def arenas_mapped():
    return sum("hvdlite-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


def in_arena(tensors):
    """For each tensor, does its memory lie in an arena?"""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "hvdlite-arena" in line:
            ranges.append([int(bound, 16) for bound in line.split()[0].split("-")])
    return [tensor is not None and any(low <= tensor.data_ptr() < high for low, high in ranges) for tensor in tensors]


def viewing(hvd, *args, **options):
    """A pair whose gradients get places as soon as there can be any."""
    return Pair(hvd, *args, gradient_as_bucket_view=True, **options)


def train(pair, step, before=None, **reset):
    """One step of both models; before() runs in front of backward."""
    part, whole = pair.parts(step)
    pair.zero(**reset)
    if before is not None:
        before()
    mse(pair.model, *part).backward()
    mse(pair.twin, *whole).backward()
    pair.check_grads()
    pair.step()


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


@pytest.mark.parametrize("alias", ["tensor", "view", "detached"])
def test_a_kept_gradient_is_the_users(hvd, alias):
    """What a user holds on to after set_to_none may not change under them, as with plain torch."""
    pair = viewing(hvd, sgd)
    kept, values = [], []
    for step in range(4):
        train(pair, step)
        if step < 3:
            grads = grads_of(pair.model)
            kept += [grad.view(-1) if alias == "view" else grad.detach() if alias == "detached" else grad for grad in grads]
            values += [grad.flatten().clone() if alias == "view" else grad.clone() for grad in grads]
            del grads
    for tensor, value in zip(kept, values, strict=True):
        assert torch.equal(tensor, value)
    assert not any(in_arena(grads_of(pair.model)))
    del kept, tensor
    train(pair, 4)
    assert all(in_arena(grads_of(pair.model)))
    pair.check_weights()


@pytest.mark.parametrize("view", [True, None])
@pytest.mark.parametrize("who", ["all", "rank 0", "last"])
@pytest.mark.parametrize("kind", ["clone", "flat", "none", "halved"])
def test_assigned_gradients(hvd, who, kind, view):
    """Users and optimizers put tensors of their own into .grad, on some ranks only."""
    pair = Pair(hvd, sgd, gradient_as_bucket_view=view)
    mine = who == "all" or hvd.rank() == (0 if who == "rank 0" else hvd.size() - 1)
    flat = torch.zeros(sum(param.numel() for param in pair.model.parameters()), dtype=torch.float64)

    def replace():
        offset = 0
        for place, param in enumerate(pair.model.parameters()):
            mine_too = flat[offset : offset + param.numel()].view_as(param)
            offset += param.numel()
            if not mine or place % 2:
                continue
            if kind == "clone":
                param.grad = param.grad.clone()
            elif kind == "flat":
                param.grad = mine_too.zero_()
            elif kind == "none":
                param.grad = None
            else:
                param.grad.data = param.grad.data.clone()

    train(pair, 0)
    for step in range(1, 5):
        before = None if step == 4 else replace
        train(pair, step, before, set_to_none=False)
        if kind == "flat" and mine and step < 4:
            first = next(iter(pair.model.parameters()))
            assert torch.equal(flat[: first.numel()].view_as(first), first.grad), "the user's own buffer got no result"
    train(pair, 5, set_to_none=True)
    assert in_arena(grads_of(pair.model)) == [view is True] * len(grads_of(pair.model))  # None: nothing was kept at first
    pair.check_weights()


class Replacing(torch.optim.SGD):
    """An optimizer that leaves other tensors in .grad than it found."""

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = param.grad * 0.5
        return super().step(closure)


@pytest.mark.parametrize("view", [True, None])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_optimizer_that_replaces_gradients(hvd, set_to_none, view):
    pair = Pair(hvd, lambda params: Replacing(params, lr=0.1), gradient_as_bucket_view=view)
    for step in range(4):
        train(pair, step, set_to_none=set_to_none)
    pair.check_weights()


def test_accumulation_without_reduction_stays_in_place(hvd):
    pair = viewing(hvd, sgd)
    for step in range(3):
        pair.zero()
        for passes in range(3):
            part, whole = pair.parts(10 * step + passes)
            if passes < 2:
                with pair.optimizer.no_sync():
                    mse(pair.model, *part).backward()
            else:
                mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
            planned = step > 0 or passes == 2  # the first reduction makes the places
            assert all(in_arena(grads_of(pair.model))) == planned
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_accumulation_of_reduced_passes(hvd):
    """The second pass meets a finished gradient in its place: the increment is reduced elsewhere, and added there."""
    pair = viewing(hvd, sgd, op=hvd.Sum)
    for step in range(3):
        pair.zero(set_to_none=step != 1)
        for passes in range(3):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * hvd.size()).backward()
            pair.check_grads()
        assert all(in_arena(grads_of(pair.model)))
        pair.step()
    pair.check_weights()


def test_clipping_writes_where_the_gradient_lies(hvd):
    pair = viewing(hvd, adam)
    for step in range(4):
        part, whole = pair.parts(step)
        pair.zero(set_to_none=bool(step % 2))
        for model, (inputs, targets) in ((pair.model, part), (pair.twin, whole)):
            mse(model, inputs, targets).backward()
        for model in (pair.model, pair.twin):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        pair.check_grads()
        assert all(in_arena(grads_of(pair.model)))
        pair.step()
    pair.check_weights()


class Branches(torch.nn.Module):
    """Three branches, of which a pass uses those it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(3)).double()

    def forward(self, inputs, used):
        return sum(self.branches[place](inputs) for place in used)


@pytest.mark.parametrize("view", [True, None])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_unused_parameters(hvd, set_to_none, view):
    """Branch 0: used by all; 1: not by rank 0; 2: by nobody, except in step 2."""
    pair = Pair(hvd, sgd, gradient_as_bucket_view=view, build=Branches)
    size = hvd.size()
    for step in range(4):
        used = [[0, *([1] if rank else []), *([2] if step == 2 else [])] for rank in range(size)]
        part, whole = pair.parts(step)
        pair.zero(set_to_none=set_to_none)
        (pair.model(part[0], used[hvd.rank()]) - part[1]).square().mean().backward()
        rows = len(part[0])
        for rank in range(size):
            inputs, targets = (tensor[rank * rows : (rank + 1) * rows] for tensor in whole)
            ((pair.twin(inputs, used[rank]) - targets).square().mean() / size).backward()
        if step < 2 or (step == 3 and set_to_none):
            assert grads_of(pair.model)[4] is None
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("view", [True, None])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_model_that_changes_its_dtype(hvd, set_to_none, view):
    pair = Pair(hvd, sgd, gradient_as_bucket_view=view)
    for step in range(2):
        train(pair, step, set_to_none=set_to_none)
    pair.tolerance = 1e-5
    for optimizer in (pair.optimizer, pair.twin_optimizer):
        optimizer.state.clear()  # torch's own momentum would not change its dtype
    for model in (pair.model, pair.twin):
        model.float()
    for step in range(2, 4):
        part, whole = pair.parts(step, torch.float32)
        pair.zero(set_to_none=set_to_none)
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    for model in (pair.model, pair.twin):
        model.to("cpu").double()
    for optimizer in (pair.optimizer, pair.twin_optimizer):
        optimizer.state.clear()
    for step in range(4, 6):
        train(pair, step, set_to_none=set_to_none)
    pair.check_weights()


def test_parameters_of_any_dense_layout(hvd):
    def build():
        torch.manual_seed(5)
        convolution = torch.nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
        return torch.nn.Sequential(
            torch.nn.Unflatten(1, (3, 4, 4)), convolution, torch.nn.Flatten(), torch.nn.Linear(16, 3).double()
        )

    pair = viewing(hvd, sgd, build=build)
    for step in range(3):
        torch.manual_seed(step)
        inputs = torch.randn(2 * hvd.size(), 48, dtype=torch.float64)
        pair.zero()
        pair.model(inputs[2 * hvd.rank() : 2 * hvd.rank() + 2]).square().mean().backward()
        pair.twin(inputs).square().mean().backward()
        pair.check_grads()
        assert all(in_arena(grads_of(pair.model)))
        pair.step()
    pair.check_weights()


def test_compressed_gradients_have_no_place(hvd):
    pair = viewing(hvd, sgd, lambda: network(dtype=torch.float32), 1e-2, compression=hvd.Compression.fp16)
    part, whole = pair.parts(0, torch.float32)
    mse(pair.model, *part).backward()
    mse(pair.twin, *whole).backward()
    pair.check_grads()
    assert not any(in_arena(grads_of(pair.model)))


def test_gradients_with_a_history_are_left_alone(hvd):
    """backward(create_graph=True) stores gradients that can be differentiated again."""
    pair = viewing(hvd, sgd)
    part, whole = pair.parts(0)
    for model, (inputs, targets) in ((pair.model, part), (pair.twin, whole)):
        mse(model, inputs, targets).backward(create_graph=True)
    assert all(grad.requires_grad for grad in grads_of(pair.model))
    assert_close(grads_of(pair.model), grads_of(pair.twin))
    for model in (pair.model, pair.twin):
        for param in model.parameters():
            param.grad = None


def test_a_checkpoint_of_everything(hvd, tmp_path):
    pair = viewing(hvd, adam)
    for step in range(2):
        train(pair, step, set_to_none=False)
    file = tmp_path / f"{hvd.rank()}.pt"
    torch.save({"model": pair.model, "grads": grads_of(pair.model), "optimizer": pair.optimizer.state_dict()}, file)
    loaded = torch.load(file, weights_only=False)
    assert_close(loaded["grads"], grads_of(pair.model), 0.0)
    assert not any(in_arena(loaded["grads"]))
    resumed = viewing(hvd, adam, build=network)
    resumed.model.load_state_dict(loaded["model"].state_dict())
    resumed.twin.load_state_dict(pair.twin.state_dict())
    resumed.optimizer.load_state_dict(loaded["optimizer"])
    resumed.twin_optimizer.load_state_dict(pair.twin_optimizer.state_dict())
    for step in range(2, 4):
        train(resumed, step)
    resumed.check_weights()


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
