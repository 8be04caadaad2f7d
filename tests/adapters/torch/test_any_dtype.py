"""Dtypes that cannot be reduced: they are moved as they are, and a frozen base of them is no obstacle to an adapter."""

import pytest
import torch
from reference import assert_close, assert_same_bits
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, MismatchError

RANK, SIZE = WORLD.rank, WORLD.size
DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32]


def value(rank, shape, dtype, salt=0):
    generator = torch.Generator().manual_seed(10 * rank + salt)
    return torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8).view(dtype).squeeze(-1)


def check(found, expected):
    """Bits, since some of them are no numbers."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moved(hvd, dtype):
    for step in range(3):
        root = step % SIZE
        check(hvd.broadcast(value(RANK, (5, 3), dtype, step), root, "b"), value(root, (5, 3), dtype, step))
        turned = value(RANK, (5, 3), dtype, step).t()
        assert hvd.broadcast_(turned, root, "in place") is turned
        check(turned, value(root, (5, 3), dtype, step).t())
        images = value(RANK, (2, 3, 4, 5), dtype, step).contiguous(memory_format=torch.channels_last)
        check(hvd.synchronize(hvd.broadcast_async(images, root, "later")), value(root, (2, 3, 4, 5), dtype, step))
        everyone = [value(rank, (rank + 1, 3), dtype, step) for rank in range(SIZE)]
        check(hvd.allgather(everyone[RANK], "g"), torch.cat(everyone))
        found = hvd.grouped_allgather([everyone[RANK], torch.tensor([RANK])], "both")
        check(found[0], torch.cat(everyone))
        assert found[1].tolist() == list(range(SIZE))
        sent = [value(rank, (2 * SIZE, 3), dtype, step) for rank in range(SIZE)]
        check(hvd.alltoall(sent[RANK], name="a"), torch.cat([part[2 * RANK : 2 * RANK + 2] for part in sent]))


def test_megabytes(hvd):
    check(hvd.broadcast(value(RANK, (1_000_003,), DTYPES[0]), 0, "large"), value(0, (1_000_003,), DTYPES[0]))


def test_conjugates(hvd):
    mine = value(RANK, (4,), torch.complex32).conj()
    check(hvd.broadcast(mine, 0, "conjugate").resolve_conj(), value(0, (4,), torch.complex32).conj().resolve_conj())


def test_ranks_with_different_dtypes(hvd):
    mine = value(RANK, (2, 3), torch.float8_e5m2 if RANK else torch.float8_e4m3fn)
    for call in (lambda: hvd.allgather(mine, "t"), lambda: hvd.broadcast_parameters({"t": mine}, 0)):
        with pytest.raises(MismatchError, match=r"'t' .*: dtype differs: float8_e4m3fn on rank 0, float8_e5m2 on rank"):
            call()


def test_refused(hvd):
    with pytest.raises(InvalidArgumentError, match="dtype qint8 cannot be sent"):
        hvd.broadcast(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), 0, "q")
    with pytest.raises(InvalidArgumentError, match="dtype float8_e4m3fn cannot be sent"):
        hvd.allreduce(value(RANK, (3,), torch.float8_e4m3fn), name="r")


class Adapted(torch.nn.Module):
    """A frozen base, which differs by rank before a broadcast, and what trains beside it."""

    def __init__(self):
        super().__init__()
        base = torch.randn(3, 4, generator=torch.Generator().manual_seed(RANK)).to(torch.float8_e4m3fn)
        self.base = torch.nn.Parameter(base, requires_grad=False)
        self.register_buffer("scale", torch.full((3,), 1.0 + RANK).to(torch.float8_e5m2))
        self.down = torch.nn.Parameter(torch.full((2, 4), 0.5 + RANK, dtype=torch.float64))
        self.up = torch.nn.Parameter(torch.full((3, 2), 0.25, dtype=torch.float64))

    def forward(self, inputs):
        weight = self.base.double() * self.scale.double()[:, None] + self.up @ self.down
        return inputs @ weight.t()


def batch(rank, step):
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * rank + step))


@pytest.mark.parametrize("view", [None, True])
@pytest.mark.parametrize("groups", [None, 1])
def test_a_frozen_base(hvd, groups, view):
    model, twin = Adapted(), Adapted()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        groups=groups,
        gradient_as_bucket_view=view,
        start_check="error",
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    check(model.base.detach(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn))
    check(model.scale, torch.ones(3).to(torch.float8_e5m2))
    twin.load_state_dict(model.state_dict())
    reference = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        reference.zero_grad()
        model(batch(RANK, step)).square().mean().backward()
        torch.stack([twin(batch(rank, step)).square().mean() for rank in range(SIZE)]).mean().backward()
        assert_close([model.up.grad, model.down.grad], [twin.up.grad, twin.down.grad])
        optimizer.step()
        reference.step()
    assert model.base.grad is None
    assert_same_bits([model.up, model.down])
    base = model.base.detach().clone()
    optimizer.zero_grad()
    model.base.requires_grad_(True)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="a gradient of dtype float8_e4m3fn cannot be sent"):
            model(batch(RANK, 9)).square().mean().backward()
    check(model.base.detach(), base)
    model.base.grad = None
    model.base.requires_grad_(False)
    optimizer.zero_grad()
    model(batch(RANK, 9)).square().mean().backward()
    assert_same_bits([model.up.grad, model.down.grad])
