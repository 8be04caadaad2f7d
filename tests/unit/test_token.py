"""The progress token: a thread that drives for long gives it to one that fails or leaves, and heeds its own deadline."""

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.limits import eventually, waits_in_engine
from support.thread_ranks import ALLREDUCE, Rank, engines, in_threads

from hvdlite import _engine

CORE = ctypes.CDLL(str(Path(_engine.__file__).with_name("libhvdlite_core.so")))
CORE.hvdlite_current_engine.restype = ctypes.c_void_p
ABORTED = 5
DEADLINE = 120.0  # only turns a hang into a failure,
FOR_EVER = 100 * DEADLINE  # so that a wait which ends by itself is none


@pytest.fixture(params=["auto", "off"], ids=["memory", "messages"])
def shared_memory(request):
    return request.param


class LongWait:
    """One native wait of a thread of its own, as the programs of XLA make it: no slices, no signals."""

    current = threading.Lock()

    def __init__(self, rank: Rank, handle: _engine.Work, seconds: float = FOR_EVER) -> None:
        self.code: int | None = None
        self.done = False
        with self.current:
            rank.engine.make_current()
            self._engine = ctypes.c_void_p(CORE.hvdlite_current_engine())
        self._thread = threading.Thread(target=self._run, args=(handle, seconds), daemon=True)
        self._begins = threading.Event()
        self._thread.start()
        assert self._begins.wait(DEADLINE)

    def _run(self, handle: _engine.Work, seconds: float) -> None:
        done = ctypes.c_int()
        work = ctypes.c_int64(handle.number)
        self._begins.set()
        self.code = CORE.hvdlite_wait(self._engine, ctypes.byref(work), 1, ctypes.c_double(seconds), ctypes.byref(done))
        self.done = bool(done.value)

    def sleeps(self) -> bool:
        """Does the thread come to sleep, as the one that drives the engine or beside that one?"""
        return eventually(lambda: waits_in_engine(self._thread.native_id or 0))

    def end(self) -> int | None:
        """The wait's code, once it is over."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the wait goes on"
        CORE.hvdlite_engine_destroy(self._engine)
        return self.code


def comes_through(call: Callable[[], None]) -> None:
    """Makes the call in a thread, so that one that hangs fails the test."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "it waits for what the other thread waits for"


def start(rank: Rank, name: str) -> _engine.Work:
    array = np.full(2, rank.rank + 1, np.float64)
    return rank.start(ALLREDUCE, name, array, array.copy())


def passes(rank: Rank) -> int:
    return rank.engine.counters()["passes"]


def test_a_rank_that_raises_is_heard_while_its_other_thread_drives(shared_memory):
    with engines(3, {"shared_memory": shared_memory, "deadlock_timeout": 0.0}) as ranks:
        handles = [start(rank, f"of{rank.rank}") for rank in ranks]
        waits = [LongWait(rank, handle) for rank, handle in zip(ranks, handles, strict=True)]
        assert all(wait.sleeps() for wait in waits)
        comes_through(lambda: ranks[1].engine.publish_failure("raised ValueError: bad batch"))
        assert all(wait.end() != 0 for wait in waits)
        assert all("raised ValueError: bad batch" in rank.engine.failure_cause for rank in ranks)


def test_a_rank_that_leaves_does_so_while_its_other_thread_drives(shared_memory):
    with engines(3, {"shared_memory": shared_memory, "deadlock_timeout": 0.0}) as ranks:
        handles = [start(ranks[1], "alone"), start(ranks[0], "other"), start(ranks[2], "other")]
        waits = [LongWait(ranks[who], handle) for who, handle in zip((1, 0, 2), handles, strict=True)]
        assert all(wait.sleeps() for wait in waits)
        comes_through(ranks[1].engine.shutdown)
        assert all(wait.end() == ABORTED for wait in waits)


def test_a_paused_engine_makes_no_pass(shared_memory):
    with engines(2, {"shared_memory": shared_memory, "deadlock_timeout": 0.0}) as ranks:
        ranks[1].engine.pause()
        paused_at, handles = passes(ranks[1]), [start(rank, "x") for rank in ranks]  # this wakes the engines' threads
        until = passes(ranks[0]) + 1000
        while passes(ranks[0]) < until:
            assert not any(handle.poll() for handle in handles)  # so does this
        assert passes(ranks[1]) == paused_at
        ranks[1].engine.resume()
        for handle in handles:
            handle.result()


def test_none_of_several_waiters_takes_the_token_before_the_thread_that_fails():
    """They wake whenever the token is given back, and would be faster than the one that wants it."""
    with engines(2, {"deadlock_timeout": 0.0}) as ranks:
        waits = [LongWait(ranks[0], start(ranks[0], f"x{i}")) for i in range(4)]
        theirs = LongWait(ranks[1], start(ranks[1], "y"))
        assert all(wait.sleeps() for wait in [*waits, theirs])
        comes_through(lambda: ranks[0].engine.publish_failure("raised ValueError: bad batch"))
        assert all(wait.end() != 0 for wait in [*waits, theirs])


def test_waits_end_and_operations_go_on_after_many_failures_at_any_moment():
    """The token is asked for after so many passes: while the waiter spins, yields or sleeps."""
    for turn in range(30):
        with engines(2, {"deadlock_timeout": 0.0}) as ranks:
            until = passes(ranks[0]) + turn
            wait = LongWait(ranks[0], start(ranks[0], "x"))
            while passes(ranks[0]) < until:
                os.sched_yield()
            comes_through(lambda ranks=ranks: ranks[0].engine.publish_failure("raised ValueError: bad batch"))
            assert wait.end() != 0


def test_a_wait_heeds_its_deadline_while_other_operations_move():
    """Each pass of it moves something, as long as it lasts: copies of a tensor, on a set of this rank alone."""
    values = np.ones(1 << 20, np.float32)
    results = np.empty_like(values)

    def wait(rank: Rank) -> None:
        own = [rank.add_process_set([each]) for each in range(rank.size)]
        if rank.rank == 1:
            return

        def copy(number: int) -> int:
            return rank.start(ALLREDUCE, f"copy{number}", values, results, prescale=2.0, process_set=own[0])

        never = start(rank, "never")
        flood = deque(copy(i) for i in range(200))
        short, copied, end = LongWait(rank, never, 0.05), 0, time.monotonic() + DEADLINE
        while short.code is None and time.monotonic() < end:
            if flood[0].poll():
                flood.popleft().result()
                copied += 1
                flood.append(copy(200 + copied))
        assert short.end() == 0
        assert not short.done
        assert not never.poll()
        for handle in flood:
            handle.result()

    with engines(2, {"fusion_threshold": 1, "deadlock_timeout": 0.0}) as ranks:
        in_threads(ranks, wait)
