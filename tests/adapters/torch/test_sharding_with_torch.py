"""What torch brings works with `DistributedOptimizer(shard=True)`: Muon, a GradScaler with clipping."""

import pytest
import torch
from reference import mse, part_of, whole_batch
from test_sharding import STEPS, _small_pieces, adam, assert_equal, network, pair, tensors_of  # noqa: F401


def test_muon_sees_whole_matrices(hvd):
    def build():
        torch.manual_seed(7)
        return torch.nn.Sequential(*(torch.nn.Linear(*shape, bias=False) for shape in ((6, 9), (9, 5), (5, 3)))).double()

    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    (model, optimizer), (twin, plain) = pair(hvd, lambda params: torch.optim.Muon(params, lr=0.01), build)
    assert_equal(model.parameters(), twin.parameters())
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(plain.state_dict()))


def test_gradients_are_scaled_and_clipped_as_without(hvd):
    """As torch's documentation writes it; in one step they overflow on one rank, and no rank steps."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has a GradScaler for CUDA only")
    found = []
    for shard in (True, False):
        model = network()
        optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=shard)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank()))
            scaler.scale(loss * (float("inf") if step == 1 and hvd.rank() == 0 else 1.0)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        found.append((model, scaler.get_scale()))
    (model, scale), (twin, expected) = found
    assert scale == expected == 512.0
    assert_equal(model.parameters(), twin.parameters())
