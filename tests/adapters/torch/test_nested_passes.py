"""Backward passes inside a backward pass, as checkpoints make them: a parameter's gradient comes in parts."""

import pytest
import torch
from reference import FEATURES, Pair, mse, sgd
from torch.utils.checkpoint import checkpoint


class Checkpointed(torch.nn.Module):
    """A shared layer inside and outside of checkpoints; the last layer is checkpointed as well."""

    def __init__(self, reentrant, everything):
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(FEATURES, 5)
        self.shared = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 3)
        self.double()
        self.reentrant = reentrant
        self.everything = everything

    def forward(self, inputs):
        def run(layer, values):
            return checkpoint(layer, values, use_reentrant=self.reentrant) if self.reentrant is not None else layer(values)

        inputs = inputs.clone().requires_grad_()
        hidden = run(self.first, inputs) if self.everything else self.first(inputs)
        hidden = torch.tanh(self.shared(hidden)) if not self.everything else run(self.shared, hidden)
        hidden = torch.tanh(run(self.shared, hidden))
        hidden = run(lambda values: torch.tanh(self.shared(values)), hidden)
        return run(self.last, hidden)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_checkpoints(hvd, reentrant, everything, op):
    pair = Pair(hvd, sgd, lambda: Checkpointed(reentrant, everything), op=getattr(hvd, op))
    factor = hvd.size() if op == "Sum" else 1
    for step in range(4):
        pair.zero(set_to_none=step % 2 == 0)
        for passes in range(2):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
            pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("everything", [False, True])
def test_checkpoints_switched_on_later(hvd, everything):
    """By then complete buckets are launched before the pass is over, and a part of a gradient is still to come."""
    pair = Pair(hvd, sgd, lambda: Checkpointed(None, everything))
    for step in range(6):
        pair.model.reentrant = True if step in (2, 3) else None
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_checkpoint_in_a_checkpoint(hvd):
    class Nested(torch.nn.Module):
        def __init__(self, nested):
            super().__init__()
            torch.manual_seed(5)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(FEATURES, FEATURES) for _ in range(3)).double()
            self.head = torch.nn.Linear(FEATURES, 3).double()
            self.nested = nested

        def inner(self, values):
            return torch.tanh(self.layers[2](values))

        def outer(self, values):
            values = torch.tanh(self.layers[1](values))
            values = checkpoint(self.inner, values, use_reentrant=True) if self.nested else self.inner(values)
            return self.layers[1](values)

        def forward(self, inputs):
            values = self.layers[0](inputs)
            values = checkpoint(self.outer, values, use_reentrant=True) if self.nested else self.outer(values)
            return self.head(values)

    pair = Pair(hvd, sgd, lambda: Nested(True))
    pair.twin.nested = False
    for step in range(4):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()
