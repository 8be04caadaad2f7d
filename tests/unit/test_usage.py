"""What operations cost, as the engine counts it, with ranks as threads: bytes, and how the times belong together.

How long each takes is shown in virtual time (tests/sim, usage).
"""

import numpy as np
import pytest
from support import thread_ranks
from support.limits import eventually
from support.thread_ranks import ALLREDUCE, REDUCESCATTER, engines, in_threads, run_ranks

LATE = 1  # the rank that comes late where one does
DEADLINE = 120.0  # only turns a hang into a failure


@pytest.fixture(params=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, or in messages through a coordinator."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    return request.param


def values(rank, count=1000):
    return np.full(count, rank.rank + 1.0)


def until(condition):
    """The condition comes true by what other threads do."""
    assert eventually(condition), "it never comes true"


def await_waiting(engines, submitted):
    """All of these have submitted so many operations, and their counters say that the last one waits."""
    until(lambda: all(each.counters()["submitted"] == submitted for each in engines))
    before = [each.counters()["waiting_ns"] for each in engines]
    until(lambda: all(each.counters()["waiting_ns"] > b for each, b in zip(engines, before, strict=True)))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("blocking", [True, False], ids=["waited for", "polled"])
def test_a_late_rank_is_charged_with_all_the_waiting(size, blocking):
    """It comes when the others' counters say that they wait for it: after what counts as waiting, so no clock is asked."""
    steps = 4

    def body(rank, ranks):
        exposed = rank.engine.counters()["exposed_ns"]
        for step in range(steps):
            if rank.rank == LATE:
                await_waiting([each.engine for each in ranks if each.rank != LATE], step + 2)
            output = np.empty(1000)
            array = values(rank)
            handle = rank.start(ALLREDUCE, "x", array, output)
            if not blocking:
                until(lambda handle=handle: handle.poll())
            handle.result()
            assert output[0] == size * (size + 1) / 2
        counters = rank.engine.counters()
        return counters, counters["exposed_ns"] - exposed, *rank.engine.lateness()

    with engines(size) as ranks:
        in_threads(ranks, lambda rank: rank.barrier())
        everyone = in_threads(ranks, lambda rank: body(rank, ranks), DEADLINE)
    for number, (counters, exposed, operations, waited) in enumerate(everyone):
        assert sum(operations) == steps + 1, "each operation has one last rank, and the barrier had one"
        assert operations[LATE] >= steps
        assert sum(waited) <= counters["waiting_ns"], "no moment of waiting is charged twice"
        assert counters["waiting_ns"] <= counters["negotiating_ns"] <= counters["time_ns"]
        assert counters["exposed_moving_ns"] <= counters["exposed_ns"]
        if number != LATE:
            assert waited[LATE] > 0
        if not blocking:
            assert exposed == 0, "who has not been kept waiting was not blocked"
        elif number != LATE:
            assert exposed > 0


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
        dealt = np.full((2 * size, 30), rank.rank, np.int16)  # more than what counts as tiny
        take = rank.take
        return [
            spent(rank, lambda: rank.allreduce("sum", mine)),
            spent(rank, lambda: rank.broadcast("root", mine, size - 1)),
            spent(rank, lambda: rank.allgather("all", rows)),
            spent(rank, lambda: take(rank.start(REDUCESCATTER, "part", dealt).result(), dealt.dtype)),
            spent(
                rank,
                lambda: take(rank.start(thread_ranks.ALLTOALL, "deal", dealt, splits=[2] * size).result(), dealt.dtype),
            ),
            spent(rank, lambda: rank.allreduce("tiny", mine[:1])),
            spent(rank, lambda: rank.barrier("b")),
        ]

    gathered = 20 * sum(range(1, size + 1))
    dealt = 2 * size * 30 * 2
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
