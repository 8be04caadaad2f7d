"""Gradients in an arena, whatever is done to them: kept, replaced, accumulated, clipped, unused, cast; they stay right."""

import pytest
import torch
from arena_views import in_arena, train, viewing
from reference import Pair, adam, assert_close, grads_of, mse, network, sgd


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
    pair.backward(0, torch.float32)
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


def test_a_rank_without_any_data_joins_before_gradients_that_are_kept_get_an_arena(hvd):
    layer = torch.nn.Linear(200, 200, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters())
    if hvd.rank() != hvd.size() - 1 or hvd.size() == 1:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            layer(torch.ones(1, 200)).sum().backward()
            optimizer.step()
        assert layer.weight.grad.unique().tolist() == [pytest.approx(max(1, hvd.size() - 1) / hvd.size())]
    assert hvd.join() in range(hvd.size())
