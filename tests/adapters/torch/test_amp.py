"""Loss scaling and autocast as the recipes of torch's documentation write them ("Automatic Mixed Precision examples").

Each recipe trains on all ranks' parts beside one process on the whole batch. Where the loss of one rank overflows, all ranks
skip the step and have the same scale afterwards, as that one process does.
"""

import itertools

import pytest
import reference
import torch
from mpi4py import MPI
from reference import ROWS, STEPS, assert_close, assert_same_bits, mse, network, part_of, sgd, whole_batch

if not hasattr(torch.amp, "GradScaler"):
    pytest.skip("this torch has a GradScaler for CUDA only", allow_module_level=True)

OVERFLOWS = (3, 7)  # steps


class Side:
    """Models, their optimizers and one scaler: of the ranks together, or of one process."""

    def __init__(self, make_optimizer, wrap):
        self.models = [network(seed) for seed in (7, 8)]
        self.optimizers = [wrap(make_optimizer(model.parameters())) for model in self.models]
        self.scaler = torch.amp.GradScaler(reference.DEVICE.type, init_scale=1024.0, growth_interval=3)

    def zero(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def weights(self):
        return [param for model in self.models for param in model.parameters()]


def typical(side, batches):
    (optimizer, _), scaler, (model, _) = side.optimizers, side.scaler, side.models
    optimizer.zero_grad()
    loss = mse(model, *batches[0])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def clipped(side, batches):
    (optimizer, _), scaler, (model, _) = side.optimizers, side.scaler, side.models
    optimizer.zero_grad()
    scaler.scale(mse(model, *batches[0])).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
    scaler.step(optimizer)
    scaler.update()


def accumulated(side, batches):
    (optimizer, _), scaler, (model, _) = side.optimizers, side.scaler, side.models
    for batch in batches:
        scaler.scale(mse(model, *batch) / len(batches)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def accumulated_without_sync(side, batches):
    """The same with all but the last pass kept on the rank, which one process has no need of."""
    (optimizer, _), scaler, (model, _) = side.optimizers, side.scaler, side.models
    for place, batch in enumerate(batches):
        if place < len(batches) - 1 and hasattr(optimizer, "no_sync"):
            with optimizer.no_sync():
                scaler.scale(mse(model, *batch)).backward()
        else:
            scaler.scale(mse(model, *batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def penalized(side, batches):
    (optimizer, _), scaler, (model, _) = side.optimizers, side.scaler, side.models
    optimizer.zero_grad()
    inputs = batches[0][0].clone().requires_grad_()
    loss = mse(model, inputs, batches[0][1])
    # The gradient with respect to the inputs: a rank's rows have the same one whoever computes it.
    (scaled,) = torch.autograd.grad(scaler.scale(model(inputs).sum()), inputs, create_graph=True)
    loss = loss + (scaled / scaler.get_scale()).square().sum(1).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def two_models(side, batches):
    (first, second), scaler, (one, two) = side.optimizers, side.scaler, side.models
    side.zero()
    inputs, targets = batches[0]
    out_one, out_two = one(inputs), two(inputs)
    loss_one = (0.2 * out_one + 0.3 * out_two - targets).square().mean()
    loss_two = (0.3 * out_one - 0.5 * out_two - targets).square().mean()
    scaler.scale(loss_one).backward(retain_graph=True)
    scaler.scale(loss_two).backward()
    scaler.unscale_(first)
    torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
    scaler.step(first)
    scaler.step(second)
    scaler.update()


def two_optimizers_of_which_one_overflows(side, batches):
    (first, second), scaler, (one, two) = side.optimizers, side.scaler, side.models
    side.zero()
    scaler.scale(mse(one, *batches[0])).backward()
    scaler.scale(mse(two, batches[0][0], torch.zeros(()))).backward()  # no target, no overflow
    scaler.step(first)
    scaler.step(second)
    scaler.update()


RECIPES = [
    typical,
    clipped,
    accumulated,
    accumulated_without_sync,
    penalized,
    two_models,
    two_optimizers_of_which_one_overflows,
]


def train(hvd, recipe, make_optimizer, overflow, **options):
    """Both sides, at each of the steps; gives the history of the scale."""
    ours = Side(make_optimizer, lambda optimizer: hvd.DistributedOptimizer(optimizer, **options))
    alone = Side(make_optimizer, lambda optimizer: optimizer)
    history = []
    for step in range(STEPS):
        whole = [whole_batch(100 * step + place, hvd.size()) for place in range(2)]
        if overflow is not None and step in OVERFLOWS:
            whole[step % 2][1][overflow * ROWS] = float("inf")
            if not recipe.__name__.startswith("accumulated"):  # the others look at the first batch only
                whole[0][1][overflow * ROWS] = float("inf")
        recipe(ours, [part_of(batch, hvd.rank()) for batch in whole])
        recipe(alone, whole)
        history.append(ours.scaler.get_scale())
        assert history[-1] == alone.scaler.get_scale(), f"step {step}"
    assert len(set(MPI.COMM_WORLD.allgather(tuple(history)))) == 1
    grown, shrunk = (any(b == factor * a for a, b in itertools.pairwise(history)) for factor in (2, 0.5))
    assert grown
    assert shrunk == (overflow is not None)
    assert_close(ours.weights(), alone.weights())
    assert_same_bits(ours.weights())


@pytest.mark.parametrize("overflow", [None, 0, 1])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_grad_scaler(hvd, recipe, overflow):
    train(hvd, recipe, sgd, overflow)


@pytest.mark.parametrize("overflow", [None, 1])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_fused_optimizers_unscale_by_themselves(hvd, make, overflow):
    """The scaler hands its scale and what it found to step(), which looks at them inside."""
    try:
        make([torch.zeros(1, requires_grad=True, device=reference.DEVICE)], lr=0.01, fused=True)
    except (TypeError, RuntimeError):
        pytest.skip("this torch fuses optimizers on GPUs only")

    def fused(params):
        return make(params, lr=0.01, fused=True)

    for recipe in (typical, clipped):
        train(hvd, recipe, fused, overflow)


@pytest.mark.parametrize("overflow", [None, 0])
def test_backward_passes_per_step_with_a_scaler(hvd, overflow):
    """Both passes are reduced together, an overflow in the first one included."""
    train(hvd, accumulated, sgd, overflow, backward_passes_per_step=2)


@pytest.mark.parametrize("overflow", [None, 1])
def test_compression_with_a_scaler(hvd, overflow):
    """What overflows only in float16, on its way, makes all ranks skip as well."""
    model = network(dtype=torch.float32)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), compression=hvd.Compression.fp16)
    scaler = torch.amp.GradScaler(reference.DEVICE.type, init_scale=16.0, growth_interval=100)
    for step in range(STEPS):
        before = [param.detach().clone() for param in model.parameters()]
        inputs, targets = part_of(whole_batch(step, hvd.size(), torch.float32), hvd.rank())
        if overflow == hvd.rank() and step in OVERFLOWS:
            targets = targets + 1e7  # a gradient of 1e7 or so
        optimizer.zero_grad()
        scaler.scale(mse(model, inputs, targets)).backward()
        assert all(torch.isfinite(param.grad).all() for param in model.parameters()) or step in OVERFLOWS
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(*both) for both in zip(before, model.parameters(), strict=True))
        assert same == (overflow is not None and step in OVERFLOWS)
    assert scaler.get_scale() == (4.0 if overflow is not None else 16.0)
    assert_same_bits(list(model.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(hvd, dtype):
    """Weights and gradients stay float32; the forward pass is narrow."""
    model, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, twin_optimizer = hvd.DistributedOptimizer(sgd(model.parameters())), sgd(twin.parameters())
    scaler, twin_scaler = (torch.amp.GradScaler(reference.DEVICE.type, init_scale=256.0, growth_interval=100) for _ in range(2))
    narrow = []
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size(), torch.float32)
        for net, opt, grad_scaler, (inputs, targets) in (
            (model, optimizer, scaler, part_of(whole, hvd.rank())),
            (twin, twin_optimizer, twin_scaler, whole),
        ):
            opt.zero_grad()
            with torch.autocast(reference.DEVICE.type, dtype=dtype):
                outputs = net(inputs)
                loss = (outputs.float() - targets).square().mean()
            narrow.append(outputs.dtype)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            grad_scaler.step(opt)
            grad_scaler.update()
    assert set(narrow) == {dtype}
    assert {param.grad.dtype for param in model.parameters()} == {torch.float32}
    assert_close(list(model.parameters()), list(twin.parameters()), 0.05)
    assert_same_bits(list(model.parameters()))
