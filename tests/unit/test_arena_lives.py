"""Where there is no arena and what it refuses; how long its memory lives, also if it is closed or a rank dies in between."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from support.arenas import SIZE, ranks_with_arenas, reduce, view
from support.limits import DEADLINE
from support.thread_ranks import ALLGATHER, ALLREDUCE, MAX, SUM, engines, in_threads

from hvdlite import _engine
from hvdlite.dtypes import code_of_name
from hvdlite.errors import HorovodInternalError, InvalidArgumentError, SystemFailure, UnsupportedError
from hvdlite.requests import Request


def mappings() -> int:
    return sum("hvdlite-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_what_an_arena_refuses():
    with ranks_with_arenas(2) as ranks:
        rank = ranks[0]
        array, outside = view(rank, 100), np.zeros(100, np.float32)

        def refused(match, kind=ALLREDUCE, source=array, target=array, **options):
            with pytest.raises(InvalidArgumentError, match=match):
                rank.start(kind, "x", source, target, **{"op": SUM, "arena": rank.arena.id, **options})

        refused("no open arena", arena=rank.arena.id + 1)
        refused("does not lie in arena", source=outside, target=outside)
        refused("reduced in place", target=view(rank, 100, offset=1024))
        refused("only allreduces with Sum or Average", op=MAX)
        refused("positive prescale", prescale=-1.0)
        refused("only allreduces", kind=ALLGATHER)
        address = array.ctypes.data + SIZE - 64
        with pytest.raises(InvalidArgumentError, match="does not lie in arena"):
            rank.engine.submit(
                [Request(ALLREDUCE, "x", int(code_of_name("float32")), (17,), address, address, arena=rank.arena.id)]
            )
        with pytest.raises(InvalidArgumentError, match="at least one byte"):
            rank.engine.create_arena(0, 0)
        with pytest.raises(InvalidArgumentError, match="unknown kind"):
            rank.engine.create_arena(0, 64, "tmp")

        rank.arena.close()
        assert rank.arena.id == 0
        refused("no open arena", arena=ranks[1].arena.id)


def test_what_opening_refuses():
    with engines(2) as ranks:
        small, large = ranks[0].engine.create_arena(0, 64), ranks[1].engine.create_arena(0, 128)
        with pytest.raises(InvalidArgumentError, match="differ in size: 128 bytes of member 1, 64 here; give one size"):
            small.open([small.address, large.address])
        with pytest.raises(InvalidArgumentError, match="one address for each of the 2 members"):
            small.open([small.address])
        with pytest.raises(ValueError, match="not the address"):
            small.open([small.address, b"x"])
        gone = ranks[1].engine.create_arena(0, 64)
        address = gone.address
        del gone
        with pytest.raises(SystemFailure):
            small.open([small.address, address])
        assert small.id == 0


def test_no_arena_without_shared_memory_or_across_hosts():
    with engines(2, {"shared_memory": "off"}) as ranks, pytest.raises(UnsupportedError, match="HVDLITE_SHARED_MEMORY=off"):
        ranks[0].engine.create_arena(0, 64)
    with engines(2, {"shared_memory": "shm"}) as ranks, pytest.raises(UnsupportedError, match="not allow an arena in memfd"):
        ranks[0].engine.create_arena(0, 64)
    fabric = _engine.Fabric(2, [0, 1])
    apart = [_engine.Engine.create_inproc(fabric, rank, {"log_level": 5}) for rank in range(2)]
    with pytest.raises(UnsupportedError, match="several hosts"):
        apart[0].create_arena(0, 64)
    for engine in apart:
        engine.shutdown()


def test_the_memory_lives_as_long_as_a_tensor_and_no_longer():
    gc.collect()
    before = mappings()
    with ranks_with_arenas(2) as ranks:
        array = view(ranks[0], 100)
        array[:] = 7
        assert mappings() == before + 4  # each rank maps both parts
    for rank in ranks:  # shut down: the others' parts are let go
        assert mappings() <= before + 2
        del rank.arena
    assert np.all(array == 7)
    gc.collect()
    assert mappings() == before + 1
    del array, ranks, rank
    gc.collect()
    assert mappings() == before


def test_an_arena_that_is_closed_in_flight_stays_until_the_operation_ends():
    with ranks_with_arenas(2) as ranks:

        def body(rank):
            array = view(rank, 1000)
            array[:] = rank.rank + 1
            handle = rank.start(ALLREDUCE, "x", array, array, op=SUM, arena=rank.arena.id)
            rank.arena.close()
            handle.result()
            return array.tolist()

        assert in_threads(ranks, body) == [[3.0] * 1000] * 2


def test_a_rank_that_dies_between_two_operations_fails_the_next():
    with ranks_with_arenas(3, config={"failure_linger": 0.2}) as ranks:
        reduced = threading.Barrier(3, timeout=DEADLINE)

        def body(rank):
            array = view(rank, 100)
            reduce(rank, "x", array)
            reduced.wait()  # a rank that learns of the death before it has its result would fail this operation
            if rank.rank == 2:
                rank.fabric.kill(2)
                return None
            with pytest.raises(HorovodInternalError, match="rank 2"):
                reduce(rank, "x", array)
            return None

        in_threads(ranks, body)
