"""What operations cost, as the engine counts it, with ranks as threads: bytes, times in each stage, who came last."""

import threading
import time

import numpy as np
import pytest
from support import thread_ranks
from support.limits import limit
from support.thread_ranks import ALLREDUCE, REDUCESCATTER, engines, in_threads, run_ranks

from hvdlite.errors import MismatchError

MS = 1_000_000  # nanoseconds
LATE = 1  # the rank that comes late where one does
STAGES = ("negotiating_ns", "waiting_ns", "moving_ns", "exposed_ns")


@pytest.fixture(params=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, or in messages through a coordinator."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    return request.param


def values(rank, count=1000):
    return np.full(count, rank.rank + 1.0)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 20_000])
def test_a_late_rank_is_waited_for_and_named(size, count):
    steps, delay = 5, 0.2  # much longer than an allreduce on a busy machine under a sanitizer

    def body(rank):
        for _ in range(steps):
            if rank.rank == LATE:
                time.sleep(delay)
            rank.allreduce("x", values(rank, count))
        return rank.engine.counters(), *rank.engine.lateness()

    everyone = run_ranks(size, body)
    total = steps * delay * 1000 * MS
    for number, (counters, operations, waited) in enumerate(everyone):
        assert sum(operations) == steps, "each operation has one last rank"
        assert operations[LATE] >= steps - 1  # the first may find another not started yet
        if number == LATE:
            assert counters["waiting_ns"] < 0.5 * total
        else:
            assert counters["waiting_ns"] > 0.7 * total
            assert counters["exposed_ns"] > 0.7 * total
            assert waited[LATE] > 0.7 * counters["waiting_ns"]
        assert counters["moving_ns"] < 0.5 * total, "waiting is not moving"
        assert counters["exposed_moving_ns"] <= counters["exposed_ns"]
        assert counters["waiting_ns"] <= counters["negotiating_ns"] <= counters["time_ns"]
        # every moment of waiting is charged to one rank
        assert sum(waited) == pytest.approx(counters["waiting_ns"], abs=MS)


def bus(nbytes, size, factor):
    return nbytes * factor // size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_bytes_are_exact(size, ways):
    def spent(rank, call):
        before = rank.engine.counters()
        call()
        after = rank.engine.counters()
        return after["bytes"] - before["bytes"], after["bus_bytes"] - before["bus_bytes"]

    def body(rank):
        mine = values(rank)
        rows = np.full((rank.rank + 1, 5), rank.rank, np.int32)
        dealt = np.full((2 * size, 3), rank.rank, np.int16)
        take = rank.take
        return [
            spent(rank, lambda: rank.allreduce("sum", mine)),
            spent(rank, lambda: rank.broadcast("root", mine, size - 1)),
            spent(rank, lambda: rank.allgather("all", rows)),
            spent(rank, lambda: take(rank.engine.wait(rank.start(REDUCESCATTER, "part", dealt)), dealt.dtype)),
            spent(
                rank,
                lambda: take(
                    rank.engine.wait(rank.start(thread_ranks.ALLTOALL, "deal", dealt, splits=[2] * size)), dealt.dtype
                ),
            ),
            spent(rank, lambda: rank.allreduce("tiny", mine[:1])),
            spent(rank, lambda: rank.barrier("b")),
        ]

    gathered = 20 * sum(range(1, size + 1))
    dealt = 2 * size * 3 * 2
    expected = [
        (8000, bus(8000, size, 2 * (size - 1))),
        (8000, 8000 if size > 1 else 0),
        (gathered, bus(gathered, size, size - 1)),
        (dealt, bus(dealt, size, size - 1)),
        (dealt, bus(dealt, size, size - 1)),
        # between ranks that share memory it travels with the agreement
        (8, 0 if ways == "memory" else bus(8, size, 2 * (size - 1))),
        (0, 0),
    ]
    for found in run_ranks(size, body):
        assert found == expected


def test_operations_that_overlap_count_once():
    def body(rank):
        start = time.monotonic_ns()
        handles = []
        if rank.rank == LATE:
            time.sleep(0.05)
        for index in range(30):
            array = values(rank, 3000)
            handles.append(rank.start(ALLREDUCE, f"x{index}", array, np.empty_like(array)))
        for handle in handles:
            rank.engine.wait(handle)
        return rank.engine.counters(), time.monotonic_ns() - start

    for counters, wall in run_ranks(2, body):
        assert counters["completed"] == 30
        for stage in STAGES:
            assert counters[stage] <= wall, stage


def test_what_the_program_does_not_wait_for_is_not_exposed():
    def body(rank):
        if rank.rank == LATE:
            time.sleep(0.1)
        array = values(rank, 100_000)
        handle = rank.start(ALLREDUCE, "x", array, np.empty_like(array))
        while not rank.engine.poll(handle):
            time.sleep(0.001)
        rank.engine.wait(handle)
        return rank.engine.counters()

    on_time, late = run_ranks(2, body)
    assert on_time["waiting_ns"] > 60 * MS
    for counters in (on_time, late):
        assert counters["moving_ns"] > 0
        assert counters["exposed_ns"] < 1 * MS


def test_each_blocked_thread_counts():
    with engines(2) as ranks:

        def body(rank):
            if rank.rank == LATE:
                time.sleep(0.2)
            threads = [
                threading.Thread(target=lambda i=i: rank.allreduce(f"t{i}", values(rank)), daemon=True) for i in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(limit(30))
            return rank.engine.counters()

        on_time, _ = in_threads(ranks, body)
    assert on_time["exposed_ns"] > 3 * 130 * MS
    assert on_time["waiting_ns"] < 0.7 * on_time["exposed_ns"]


def test_nothing_goes_on_when_all_has_ended():
    """Whatever way operations end, every stage that they entered is left."""

    def body(rank):
        for step in range(3):
            for index in range(4):
                rank.allreduce(f"x{index}", values(rank))
            rank.allgather("rows", np.full((rank.rank, 2), step))
            with pytest.raises(MismatchError):
                rank.allreduce("differs", np.zeros(2 + rank.rank))
            handles = [
                rank.start(ALLREDUCE, f"g{i}", values(rank), values(rank), group="group", group_size=3, group_index=i)
                for i in range(3)
            ]
            for handle in handles:
                rank.engine.wait(handle)
        number = rank.add_process_set([0, 2])
        if rank.rank != 1:
            rank.allreduce("in set", values(rank), process_set=number)
        rank.barrier("all")
        if rank.rank == 0:
            rank.allreduce("alone", values(rank))
        rank.join()
        first = rank.engine.counters()
        time.sleep(0.05)
        second = rank.engine.counters()
        return first, second, rank.engine.lateness()

    for first, second, (operations, _) in run_ranks(3, body):
        assert second["time_ns"] - first["time_ns"] > 40 * MS
        for stage in STAGES:
            assert 0 <= second[stage] - first[stage] < 5 * MS, stage
        assert first["failed"] == 3
        assert sum(operations) > 20
