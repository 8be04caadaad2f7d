"""torch.distributed on backend "hvdlite": its default group, values that differ by rank, and the ways to wait."""

import pytest
import torch
import torch.distributed as dist
from reference import assert_close
from support.world import WORLD

RANK, SIZE = WORLD.rank, WORLD.size
EVERYONE = list(range(SIZE))


@pytest.fixture(scope="module", autouse=True)
def world(hvd):
    """The default group."""
    import hvdlite.torch.distributed

    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def gloo(world):
    """A group of torch's own backend, which meets in hvdlite's store."""
    return dist.new_group(backend="gloo")


def value(rank, shape=(3, 2), dtype=torch.float64, salt=0):
    generator = torch.Generator().manual_seed(10 * rank + salt)
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(8).to(dtype)


def values(**options):
    return torch.stack([value(rank, **options) for rank in EVERYONE])


def check(found, expected):
    assert_close(list(found), list(expected))


def waited(call, *arguments, **options):
    """Blocking first, then through a handle and through its future."""
    call(*arguments, **options)
    yield
    work = call(*arguments, **options, async_op=True)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    yield
    call(*arguments, **options, async_op=True).get_future().wait()
    yield
