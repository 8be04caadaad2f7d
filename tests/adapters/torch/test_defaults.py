"""torch's default device and dtype concern the user's tensors; those that hvdlite makes for itself stay as they are."""

import pytest
import torch

RANKS = (2,)


@pytest.fixture(autouse=True)
def defaults():
    """Whatever names no device has no memory at all."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def rows(hvd, *shape):
    return torch.ones(shape, device="cpu", dtype=torch.float32) * (hvd.rank() + 1)


def test_collectives_and_their_gradients(hvd):
    x = rows(hvd, 3, 2).requires_grad_()
    gathered = hvd.allgather(x, name="rows")
    nothing = hvd.allgather(rows(hvd, 0, 2), name="nothing")
    moved, received = hvd.alltoall(x, torch.tensor([1, 2], device="cpu"), name="moved")
    for result in (gathered, nothing, moved):
        assert (result.device.type, result.dtype) == ("cpu", torch.float32)
    assert received.tolist() == [hvd.rank() + 1] * 2
    (gathered.sum() + moved.sum()).backward()
    assert x.grad.tolist() == [[2.0, 2.0]] * 3


def test_sparse_sums(hvd):
    indices = torch.tensor([[0, hvd.rank() + 1]], device="cpu")
    x = torch.sparse_coo_tensor(indices, rows(hvd, 2), (4,), device="cpu", check_invariants=True)
    result = hvd.sparse_allreduce_async(x, name="sparse", op=hvd.Sum)()
    assert result.to_dense().tolist() == [3.0, 1.0, 2.0, 0.0]


def test_sync_batch_norm(hvd):
    layer = hvd.SyncBatchNorm(2, device="cpu", dtype=torch.float32)
    x = rows(hvd, 4, 2).requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert (y.dtype, y.mean().sign().item()) == (torch.float32, 2 * hvd.rank() - 1)


@pytest.mark.parametrize("to_none", [True, False])
def test_training(hvd, to_none):
    model = torch.nn.Sequential(
        torch.nn.Embedding(10, 2, sparse=to_none, device="cpu", dtype=torch.float32),
        torch.nn.Linear(2, 1, device="cpu", dtype=torch.float32),
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters())
    for _ in range(4):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.tensor([1, hvd.rank() + 2], device="cpu")).square().sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    weights = hvd.allgather(model[0].weight.detach()[None], name="weights")
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("name", ["powersgd", "int8"])
def test_codecs_with_state(hvd, name):
    """The second layer has a gradient on rank 0 only."""
    codecs = {
        "powersgd": hvd.Compression.powersgd(start_step=1),
        "int8": hvd.Compression.int8(64, "ranks", error_feedback=True),
    }
    model = torch.nn.ModuleList(torch.nn.Linear(*shape, device="cpu", dtype=torch.float32) for shape in ((40, 30), (30, 20)))
    hvd.broadcast_parameters(model.state_dict(), 0)
    plain = torch.optim.SGD(model.parameters(), 1e-4)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=codecs[name])
    for _ in range(4):
        optimizer.zero_grad()
        hidden = model[0](rows(hvd, 2, 40))
        loss = (hidden if hvd.rank() else model[1](hidden)).square().sum()
        torch.autograd.backward([loss])  # loss.backward() would suspend the default device
        optimizer.step()
    for layer in model:
        weights = hvd.allgather(layer.weight.detach()[None], name="weights")
        assert torch.equal(weights[0], weights[1])
