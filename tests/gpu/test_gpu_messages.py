"""Send and receive of GPU tensors of every kind: values, orders of memory, gradients, and torch.distributed on top."""

import numpy as np
import pytest
from kinds import GPU, KINDS
from support.driver_arrays import DriverArray, Stream, read
from support.world import WORLD

import hvdlite

ROUTES = ("staged",)  # the only one for messages
STAND_INS = ("fakes",)
RANK, SIZE = WORLD.rank, WORLD.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
COUNTS = [7, 40_007]


def values(rank, count, salt=0):
    return (np.arange(count) % 251 + 10 * salt + rank).astype(np.float32)


@pytest.mark.parametrize("count", COUNTS)
def test_around_a_ring(kind, taken, count):
    with taken():
        for turn in range(3):
            mine, got = kind.tensor(values(RANK, count, turn)), kind.tensor(np.zeros(count, np.float32))
            handle = kind.door.irecv(got, LEFT)
            kind.door.send(mine, RIGHT)
            assert handle.synchronize() is got
            np.testing.assert_array_equal(kind.host(got), values(LEFT, count, turn))
            assert kind.gpu_of(got) == GPU


def test_in_one_batch_and_from_any_rank(kind):
    got = [kind.tensor(np.zeros(50, np.float32)) for _ in range(2)]
    done = hvdlite.batch(
        [
            hvdlite.P2POp(hvdlite.irecv, got[0], LEFT, tag=1),
            hvdlite.P2POp(hvdlite.isend, kind.tensor(values(RANK, 50)), RIGHT, tag=1),
            hvdlite.P2POp(hvdlite.isend, kind.tensor(values(RANK, 50, 1)), RIGHT, tag=2),
            hvdlite.P2POp(hvdlite.irecv, got[1], None, tag=2),
        ]
    ).synchronize()
    assert done[1] is done[2] is None
    assert done[3].source == LEFT
    np.testing.assert_array_equal(kind.host(got[0]), values(LEFT, 50))
    np.testing.assert_array_equal(kind.host(got[1]), values(LEFT, 50, 1))


def test_blocking_receives(kind):
    """Before what the other rank sends is ready."""
    for turn in range(3):
        sends = hvdlite.isend(kind.tensor(values(RANK, 9, turn)), RIGHT)
        got = kind.door.recv(kind.tensor(np.zeros(9, np.float32)), LEFT)
        np.testing.assert_array_equal(kind.host(got), values(LEFT, 9, turn))
        sends.synchronize()


@pytest.mark.parametrize("count", COUNTS)
def test_an_input_that_is_still_being_written(hvd, count):
    door, stream = KINDS["plain"].door, Stream(GPU)
    mine, got = (DriverArray.of(np.full(count, np.nan, np.float32), stream, GPU) for _ in range(2))
    for turn in range(5):
        stream.keep_busy(0.01)
        mine.write(values(RANK, count, turn), wait=False)
        receive = door.irecv(got, LEFT)
        door.send(mine, RIGHT)
        mine.write(np.full(count, np.nan, np.float32), wait=False)
        np.testing.assert_array_equal(read(receive.synchronize()), values(LEFT, count, turn))
    stream.synchronize()
    stream.close()


def test_gradients_go_back_to_the_gpu(hvd):
    kind = KINDS["torch"]
    if isinstance(kind, str):
        pytest.skip(kind)
    import torch

    x = kind.tensor(values(0, 30)).requires_grad_()
    if RANK == 0:
        (kind.door.send(x, 1) + 0).backward()
        np.testing.assert_array_equal(kind.host(x.grad), 2 * values(0, 30))
        assert x.grad.device == x.device
    if RANK == 1:
        room = torch.empty_like(x, requires_grad=True)
        kind.door.recv(room, 0).square().sum().backward()
    hvd.barrier()


def test_torch_distributed(hvd):
    kind = KINDS["torch"]
    if isinstance(kind, str):
        pytest.skip(kind)
    import torch.distributed as dist

    import hvdlite.torch.distributed

    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    try:
        got = kind.tensor(np.zeros(30, np.float32))
        receive = dist.irecv(got, LEFT)
        dist.send(kind.tensor(values(RANK, 30)), RIGHT)
        receive.wait()
        np.testing.assert_array_equal(kind.host(got), values(LEFT, 30))
        if RANK == 0:
            dist.send(kind.tensor(values(0, 5000)), 1)
        if RANK == 1:
            got = kind.tensor(np.zeros(5000, np.float32))
            assert dist.recv(got) == 0
            np.testing.assert_array_equal(kind.host(got), values(0, 5000))
        dist.barrier()
    finally:
        dist.destroy_process_group()
