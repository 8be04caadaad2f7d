"""Streams of arrays that only have __cuda_array_interface__: everything comes in the order of the array's own stream."""

import numpy as np
import pytest
from kinds import GPU, KINDS
from support.driver_arrays import DriverArray, Stream, read
from support.world import WORLD

STAND_INS = ("fakes",)
RANK, SIZE = WORLD.rank, WORLD.size
COUNT = 10_007


@pytest.fixture
def door(hvd):
    return KINDS["plain"].door


@pytest.fixture
def stream():
    made = Stream(GPU)
    yield made
    made.synchronize()
    made.close()


def values(turn, rank=RANK):
    return (np.arange(COUNT) % 251 + 10 * turn + rank).astype(np.float32)


def summed(turn):
    return sum(values(turn, rank) for rank in range(SIZE))


@pytest.mark.parametrize("in_place", [True, False])
def test_an_input_that_is_still_being_written(door, stream, in_place):
    call = door.allreduce_ if in_place else door.allreduce
    array = DriverArray.of(np.full(COUNT, np.nan, np.float32), stream, GPU)
    for turn in range(10):
        stream.keep_busy(0.01)
        array.write(values(turn), wait=False)
        result = call(array, op=door.Sum, name=f"written.{in_place}")
        np.testing.assert_array_equal(read(result), summed(turn))
        # Written again at once: what was read before must not see it.
        array.write(np.full(COUNT, np.nan, np.float32), wait=False)


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "reducescatter", "broadcast"])
def test_other_collectives_wait_for_their_input(door, stream, kind):
    rows = 3 * SIZE
    root = SIZE - 1

    def matrix(turn, rank=RANK):
        return values(turn, rank)[: rows * 5].reshape(rows, 5)

    wanted = {
        "allgather": lambda turn: np.concatenate([matrix(turn, rank) for rank in range(SIZE)]),
        "alltoall": lambda turn: np.concatenate([matrix(turn, rank)[3 * RANK : 3 * RANK + 3] for rank in range(SIZE)]),
        "reducescatter": lambda turn: sum(matrix(turn, rank) for rank in range(SIZE))[3 * RANK : 3 * RANK + 3],
        "broadcast": lambda turn: matrix(turn, root),
    }[kind]
    options = {"broadcast": {"root_rank": root}, "reducescatter": {"op": door.Sum}}.get(kind, {})
    array = DriverArray.of(np.full((rows, 5), np.nan, np.float32), stream, GPU)
    for turn in range(5):
        stream.keep_busy(0.01)
        array.write(matrix(turn), wait=False)
        result = getattr(door, kind)(array, name=f"waits.{kind}", **options)
        np.testing.assert_array_equal(read(result), wanted(turn))


def test_streams_that_overtake_each_other(door):
    """Many operations in flight, on three streams of which one is always late."""
    streams = [Stream(GPU) for _ in range(3)]
    for turn in range(4):
        streams[turn % 3].keep_busy(0.02)
        arrays = [DriverArray.of(values(turn), streams[place % 3], GPU) for place in range(12)]
        for place, array in enumerate(arrays):
            array.write(values(turn + place), wait=False)
        handles = [door.allreduce_async(array, op=door.Sum, name=f"overtake.{place}") for place, array in enumerate(arrays)]
        for place in reversed(range(len(arrays))):
            result = read(door.synchronize(handles[place]))
            np.testing.assert_array_equal(result, summed(turn + place))
    for each in streams:
        each.synchronize()
        each.close()


def test_nobody_waits_for_the_gpu(door, stream, route):
    """Submitting and synchronizing return while the stream has not come to the input yet."""
    if route != "nccl":
        pytest.skip("through host memory, synchronize() waits for the array to come there")
    array = DriverArray.of(values(0), stream, GPU)
    for _ in range(3):  # the first ones make communicators, buffers and kernels
        door.allreduce(array, op=door.Sum, prescale_factor=1.0, name="hot")
    stream.synchronize()
    WORLD.Barrier()
    stream.keep_busy(0.4)
    passed = stream.event()
    result = door.allreduce(array, op=door.Sum, name="hot")
    early = not passed.passed()
    np.testing.assert_array_equal(read(result), summed(0))
    assert early, "hvdlite waited for the GPU"
