"""What backward adds to a gradient that has been launched already, as reentrant checkpoints do, is reduced as well."""

import pytest
import torch
from reference import FEATURES, Pair, sgd
from torch.utils.checkpoint import checkpoint

from hvdlite.errors import UnsupportedError


class SharedLayer(torch.nn.Module):
    """A layer that backward comes to first outside of a checkpoint, and then in one, which is a pass of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first = torch.nn.Linear(FEATURES, 5, bias=False)  # the layer's bucket is complete without it
        self.shared = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 3)
        self.double()
        self.nested = False

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        hidden = torch.tanh(checkpoint(self.shared, hidden, use_reentrant=True) if self.nested else self.shared(hidden))
        return self.last(torch.tanh(self.shared(hidden)))


@pytest.mark.parametrize("passes", [1, 2])
def test_an_addition_to_what_is_launched(hvd, passes):
    pair = Pair(hvd, sgd, SharedLayer)
    for step in range(4):
        # In the first nested pass complete buckets are still launched before it is over.
        pair.model.nested = step == 2
        pair.zero()
        for number in range(passes):
            pair.backward(10 * step + number)
            pair.check_grads()
        pair.step()
    pair.check_weights()


def test_an_addition_to_what_is_launched_beside_a_finished_gradient(hvd):
    pair = Pair(hvd, sgd, SharedLayer)
    pair.zero()
    pair.backward(0)
    pair.model.nested = True
    with pytest.raises(UnsupportedError, match=r"parameter 'optimizer\d+\.shared.* two earlier parts of it are not added up"):
        pair.backward(1)
    pair.optimizer.zero_grad()
