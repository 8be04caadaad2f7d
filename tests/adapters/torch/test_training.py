"""The loops of torch's documentation give the numbers of one process with the whole batch."""

import numpy as np
import pytest
import reference
import torch
from reference import (
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


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("named", [True, False])
def test_plain_loop(hvd, make_optimizer, named):
    pair = Pair(hvd, make_optimizer, named=named)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
        pair.check_weights()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("through", ["optimizer", "module"])
def test_zero_grad_of_optimizer_and_module(hvd, set_to_none, through):
    pair = Pair(hvd, sgd)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        if through == "optimizer":
            pair.zero(set_to_none=set_to_none)
        else:
            pair.model.zero_grad(set_to_none=set_to_none)
            pair.twin.zero_grad(set_to_none=set_to_none)
        if set_to_none or step == 0:
            assert all(grad is None for grad in grads_of(pair.model))
        else:
            assert not any(grad.any() for grad in grads_of(pair.model))
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_kept_gradients_stay_the_same_tensors(hvd, set_to_none):
    pair = Pair(hvd, sgd)
    part, _ = pair.parts(0)
    mse(pair.model, *part).backward()
    before = grads_of(pair.model)
    pair.zero(set_to_none=set_to_none)
    mse(pair.model, *part).backward()
    same = [new is old for new, old in zip(grads_of(pair.model), before, strict=True)]
    assert same == [not set_to_none] * len(before)


def test_sum(hvd):
    pair = Pair(hvd, sgd, op=hvd.Sum)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        (mse(pair.twin, *whole) * hvd.size()).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_gradient_predivide_factor(hvd, factor):
    pair = Pair(hvd, sgd, gradient_predivide_factor=factor)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compression(hvd, name, tolerance, dtype):
    pair = Pair(hvd, sgd, lambda: network(dtype=dtype), tolerance, compression=getattr(hvd.Compression, name))
    for step in range(STEPS):
        part, whole = pair.parts(step, dtype)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        assert all(grad.dtype is dtype for grad in grads_of(pair.model))
        exact = [torch.equal(grad, other) for grad, other in zip(grads_of(pair.model), grads_of(pair.twin), strict=True)]
        assert not any(exact)  # it did travel in a narrower type
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("kind", ["int", "lists", "partial"])
def test_groups(hvd, kind):
    model, twin = network(), network()
    params = list(model.parameters())
    groups = {"int": 2, "lists": [params[:2], params[2:]], "partial": [[params[1], params[4]]]}[kind]
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=groups)
    twin_optimizer = sgd(twin.parameters())
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        part = part_of(whole, hvd.rank())
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        mse(model, *part).backward()
        mse(twin, *whole).backward()
        assert_close(grads_of(model), grads_of(twin))
        optimizer.step()
        twin_optimizer.step()
    assert_same_bits(list(model.parameters()))


def test_lbfgs_sees_the_loss_of_all_ranks(hvd):
    """With the ranks' own losses the line searches would call the closure unequally often."""

    def lbfgs(params):
        return torch.optim.LBFGS(params, lr=0.5, max_iter=6, line_search_fn="strong_wolfe")

    pair = Pair(hvd, lbfgs, tolerance=1e-6)
    calls, twin_calls = [], []
    for _ in range(STEPS):
        part, whole = pair.parts(0)  # new data in each step would blow up what rounding differs by

        def closure(part=part):
            pair.optimizer.zero_grad()
            loss = mse(pair.model, *part)
            loss.backward()
            calls.append(1)
            return loss

        def twin_closure(whole=whole):
            pair.twin_optimizer.zero_grad()
            loss = mse(pair.twin, *whole)
            loss.backward()
            twin_calls.append(1)
            return loss

        loss, twin_loss = pair.optimizer.step(closure), pair.twin_optimizer.step(twin_closure)
        assert_close([loss], [twin_loss], 1e-6)
        assert_same_bits([loss])
    assert len(calls) == len(twin_calls) > 8
    pair.check_weights()


@pytest.mark.parametrize(("keyword", "number"), [(True, float), (False, np.float32)])
def test_closure_of_an_ordinary_optimizer(hvd, keyword, number):
    pair = Pair(hvd, sgd)
    for step in range(STEPS):
        part, whole = pair.parts(step)

        def closure(part=part):
            pair.optimizer.zero_grad()
            loss = mse(pair.model, *part)
            loss.backward()
            return number(loss.item())

        loss = pair.optimizer.step(closure=closure) if keyword else pair.optimizer.step(closure)
        pair.twin_optimizer.zero_grad()
        twin_loss = mse(pair.twin, *whole)
        twin_loss.backward()
        pair.twin_optimizer.step()
        assert abs(loss - twin_loss.item()) < 1e-6
    pair.check_weights()


def test_mixed_dtypes_and_layouts(hvd):
    """Parameters of two dtypes, one in channels_last, one transposed, one complex, one empty, one zero-dimensional."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.conv = torch.nn.Conv2d(2, 3, 3).double().to(memory_format=torch.channels_last)
            self.turned = torch.nn.Parameter(torch.randn(5, 4, dtype=torch.float64).t())
            self.spectrum = torch.nn.Parameter(torch.randn(4, dtype=torch.complex128))
            self.scale = torch.nn.Parameter(torch.tensor(0.7))
            self.nothing = torch.nn.Parameter(torch.empty(0, 3))
            self.to(reference.DEVICE)

        def forward(self, images):
            features = self.conv(images).mean((2, 3))
            wide = torch.cat([features, features[:, :1]], 1)
            mixed = (wide @ self.turned.abs()).sum(1) + (wide * self.spectrum).abs().sum(1)
            return mixed * self.scale + self.nothing.sum()

    model, twin = Mixed(), Mixed()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(2 * hvd.size(), 2, 6, 6, generator=generator, dtype=torch.float64).to(reference.DEVICE)
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        model(images[2 * hvd.rank() : 2 * hvd.rank() + 2]).mean().backward()
        twin(images).mean().backward()
        assert_close(grads_of(model), grads_of(twin), 1e-6)
        optimizer.step()
        twin_optimizer.step()
    assert_same_bits([torch.view_as_real(p) if p.is_complex() else p for p in model.parameters()])


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_parameter_may_change_its_memory_format(hvd, everywhere):
    """On all ranks, where one has a gradient; or on one rank only."""
    values = torch.arange(64 * 32 * 9.0).view(64, 32, 3, 3)
    param = torch.nn.Parameter(torch.zeros_like(values).contiguous(memory_format=torch.channels_last))
    optimizer = hvd.DistributedOptimizer(sgd([param]))
    for changed in (False, True):
        optimizer.zero_grad(set_to_none=False)
        if changed and (everywhere or hvd.rank() == 0):
            param.data, param.grad = param.data.contiguous(), None
        has_gradient = not (changed and everywhere) or hvd.rank() == 0
        if has_gradient:
            (param * values).sum().backward()
        optimizer.synchronize()
    torch.testing.assert_close(param.grad, values / hvd.size() if everywhere else values)


def test_a_gradient_whose_memory_has_the_negative_values(hvd):
    param = torch.nn.Parameter(torch.zeros(8)[::2])
    optimizer = hvd.DistributedOptimizer(sgd([param]))
    value = torch.full((4,), hvd.rank() + 1.0)
    param.grad = torch._neg_view(-value) if hvd.rank() == 0 else value
    optimizer.synchronize()
    assert_close([param.grad], [torch.full((4,), (hvd.size() + 1) / 2)])


def test_process_set_of_some_ranks(hvd):
    """Ranks outside train for themselves, undisturbed."""
    members = [0, hvd.size() - 1]
    if hvd.size() == len(members):
        pytest.skip("the set would be all ranks")
    subset = hvd.add_process_set(members)
    model, twin = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), process_set=subset)
    twin_optimizer = sgd(twin.parameters())
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        part = part_of(whole, hvd.rank())
        mine = members if hvd.rank() in members else [hvd.rank()]
        whole = [torch.cat([part_of([tensor], rank)[0] for rank in mine]) for tensor in whole]
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        mse(model, *part).backward()
        mse(twin, *whole).backward()
        assert_close(grads_of(model), grads_of(twin))
        optimizer.step()
        twin_optimizer.step()
    hvd.remove_process_set(subset)
    with pytest.raises(ValueError, match="has not been registered"):
        hvd.DistributedOptimizer(sgd(network().parameters()), process_set=subset)


def test_a_closure_of_several_passes(hvd):
    """The closure may be called as often as the optimizer likes; each call makes all passes of a step."""

    def lbfgs(params):
        return torch.optim.LBFGS(params, lr=0.5, max_iter=3)

    pair = Pair(hvd, lbfgs, tolerance=1e-8, backward_passes_per_step=2)
    batches = [pair.parts(place) for place in range(2)]

    def closure_of(optimizer, model, side):
        def closure():
            optimizer.zero_grad()
            total = 0.0
            for batch in batches:
                loss = mse(model, *batch[side])
                loss.backward()
                total += loss.item()
            return total

        return closure

    for _ in range(STEPS):
        ours = pair.optimizer.step(closure_of(pair.optimizer, pair.model, 0))
        alone = pair.twin_optimizer.step(closure_of(pair.twin_optimizer, pair.twin, 1))
        assert abs(ours - alone) < 1e-8
    pair.check_weights()


def test_steps_inside_backward(hvd):
    """torch's tutorial: an optimizer for each parameter, which steps as soon as the gradient is there, so that memory for
    all gradients at once is never needed.
    """
    model, twin = network(), network()
    wrap = hvd.DistributedOptimizer
    for net, plain in ((model, False), (twin, True)):
        optimizers = {p: adam([p]) if plain else wrap(adam([p])) for p in net.parameters()}

        def step_at_once(param, optimizers=optimizers):
            optimizers[param].step()
            optimizers[param].zero_grad()

        for param in net.parameters():
            param.register_post_accumulate_grad_hook(step_at_once)
    for step in range(STEPS):
        whole = whole_batch(step, hvd.size())
        mse(model, *part_of(whole, hvd.rank())).backward()
        mse(twin, *whole).backward()
        assert grads_of(model) == [None] * 6
    assert_close(list(model.parameters()), list(twin.parameters()))
    assert_same_bits(list(model.parameters()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01), (torch.float32, 1e-5)])
def test_narrow_weights(hvd, dtype, tolerance):
    """Gradients of 16 bits are added up in float32 and rounded once."""
    pair = Pair(hvd, lambda params: torch.optim.SGD(params, lr=0.1), lambda: network(dtype=dtype), tolerance)
    for step in range(STEPS):
        part, whole = pair.parts(step, dtype)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        assert all(grad.dtype is dtype for grad in grads_of(pair.model))
        pair.step()
    pair.check_weights()
