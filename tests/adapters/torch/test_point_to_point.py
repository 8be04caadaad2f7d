"""Send and receive of torch tensors: every layout and dtype, and gradients, whose way is the message's backwards."""

import pytest
import torch
from reference import assert_close
from support.world import WORLD

RANK, SIZE = WORLD.rank, WORLD.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def value(rank, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (40, 30, 5, 2)], ids=str)
def test_layouts(hvd, dtype, shape):
    mine = value(RANK, *shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
    got = torch.zeros(shape, dtype=dtype)
    before = got._version
    handle = hvd.irecv(got, LEFT)
    assert hvd.send(mine, RIGHT) is None
    assert handle.synchronize() is got
    assert torch.equal(got.view(torch.uint8), value(LEFT, *shape, dtype=dtype).view(torch.uint8))
    assert got._version > before


@pytest.mark.parametrize("rows", [2, 3000])
def test_gradients_go_back(hvd, rows):
    """Rank 0 computes the first half of a model, rank 1 the second."""
    weights = [value(10 + place, 4, 4).requires_grad_() for place in range(2)]
    data = value(3, rows, 4)
    expected = [weight.detach().clone().requires_grad_() for weight in weights]
    loss = (torch.tanh(data @ expected[0]) @ expected[1]).pow(2).sum()
    loss.backward()
    if RANK == 0:
        hidden = torch.tanh(data @ weights[0])
        sent = hvd.send(hidden, 1, name="hidden")
        assert float(sent.detach()) == 0
        sent.backward()
        assert_close([weights[0].grad], [expected[0].grad])
    if RANK == 1:
        room = torch.empty(rows, 4, dtype=torch.float64, requires_grad=True)
        hidden = hvd.recv(room, 0, name="hidden")
        assert hidden is not room
        found = (hidden @ weights[1]).pow(2).sum()
        found.backward()
        assert_close([found.detach(), weights[1].grad], [loss.detach(), expected[1].grad])
        assert room.grad is None
    hvd.barrier()


def test_without_gradients_nothing_comes_back(hvd):
    if RANK == 0:
        with torch.no_grad():
            assert hvd.send(torch.ones(2, requires_grad=True), 1) is None
        assert hvd.send(torch.full((2,), 3.0), 1) is None
    if RANK == 1:
        got = torch.zeros(2)
        hvd.recv(got, 0)
        assert hvd.recv(got, 0) is got
        assert got.tolist() == [3, 3]
        assert not got.requires_grad
    hvd.barrier()


def test_what_has_no_gradient_is_refused(hvd):
    with pytest.raises(NotImplementedError, match="needs the sender's rank"):
        hvd.recv(torch.zeros(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    if RANK == 0:
        hvd.send(x, 1).backward(create_graph=True)
        with pytest.raises(NotImplementedError, match="differentiated once only"):
            x.grad.sum().backward()
    if RANK == 1:
        hvd.recv(torch.zeros(2, requires_grad=True), 0).sum().backward()
    hvd.barrier()
