"""Compiled models: the hooks fire late, but they fire, and the numbers are the same."""

import shutil

import pytest
import torch
from reference import STEPS, Pair, mse, sgd

RANKS = (2,)


def compiled(model, how, backend="aot_eager"):
    if how == "model":
        return torch.compile(model, backend=backend)
    for layer in model:  # keeps the overlap of communication and backward between the blocks
        layer.compile(backend=backend)
    return model


def train(pair, model, steps, passes=1):
    for step in range(steps):
        pair.zero()
        for number in range(passes):
            part, whole = pair.parts(10 * step + number)
            mse(model, *part).backward()
            mse(pair.twin, *whole).backward()
            pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("how", ["model", "blocks"])
def test_compiled_models(hvd, how):
    pair = Pair(hvd, sgd)
    train(pair, compiled(pair.model, how), STEPS, passes=2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["model", "blocks"])
def test_models_compiled_to_native_code(hvd, how):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler for torch.compile here (Debian: apt install g++)")
    pair = Pair(hvd, sgd)
    train(pair, compiled(pair.model, how, "inductor"), STEPS, passes=2)


def test_a_model_compiled_after_wrapping_and_with_kept_back_passes(hvd):
    pair = Pair(hvd, sgd)
    model = torch.compile(pair.model, backend="aot_eager")
    for step in range(STEPS):
        pair.zero()
        part, whole = pair.parts(10 * step)
        with pair.optimizer.no_sync():
            mse(model, *part).backward()
        mse(pair.twin, *whole).backward()
        part, whole = pair.parts(10 * step + 1)
        mse(model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("what", ["step", "everything"])
def test_compiled_steps(hvd, what):
    """Compiled code calls step(), as torch's documentation shows it, or all of backward(), step() and zero_grad()."""
    pair = Pair(hvd, sgd)

    def whole_step(inputs, targets):
        mse(pair.model, inputs, targets).backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad()

    compiled_step = torch.compile(whole_step if what == "everything" else lambda: pair.optimizer.step(), backend="aot_eager")
    for step in range(STEPS):
        part, whole = pair.parts(step)
        if what == "everything":
            compiled_step(*part)
        else:
            with pair.optimizer.no_sync():  # so that step() has to reduce
                mse(pair.model, *part).backward()
            compiled_step()
            pair.optimizer.zero_grad()
        mse(pair.twin, *whole).backward()
        pair.twin_optimizer.step()
        pair.twin_optimizer.zero_grad()
    pair.check_weights()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_compiled_autograd(hvd):
    """It does not say when backward is over, so that at the latest step() reduces."""
    autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    if not hasattr(autograd, "_enable"):
        pytest.skip("this torch switches compiled autograd on in another way")
    pair = Pair(hvd, sgd)
    for step in range(3):  # each of them compiles
        part, whole = pair.parts(step)
        pair.zero()
        with autograd._enable(torch.compile(backend="eager")):
            mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.optimizer.synchronize()
        pair.check_grads()
        pair.step()
    pair.check_weights()
