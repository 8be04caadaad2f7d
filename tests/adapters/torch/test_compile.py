"""Compiled models: the hooks fire late, but they fire, and the numbers are the same."""

import pytest
import torch
from reference import Pair, mse, sgd


def compiled(model, how):
    if how == "model":
        return torch.compile(model, backend="aot_eager")
    for layer in model:  # keeps the overlap of communication and backward between the blocks
        layer.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("how", ["model", "blocks"])
def test_compiled_models(hvd, how):
    pair = Pair(hvd, sgd)
    model = compiled(pair.model, how)
    for step in range(3):
        pair.zero()
        for passes in range(2):
            part, whole = pair.parts(10 * step + passes)
            mse(model, *part).backward()
            mse(pair.twin, *whole).backward()
            pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd(hvd):
    """It does not say when backward is over, so that at the latest step() reduces."""
    autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    if not hasattr(autograd, "_enable"):
        pytest.skip("this torch has another way of switching it on")
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        pair.zero()
        with autograd._enable(torch.compile(backend="eager")):
            mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.optimizer.synchronize()
        pair.check_grads()
        pair.step()
    pair.check_weights()
