"""What Python has to do with stalls: the main thread's place, and excuses. Who is named when is shown in tests/sim (stalls)."""

import os
import re
import threading
import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from support.thread_ranks import ALLREDUCE, run_ranks

import hvdlite
from hvdlite import runtime, watchdog
from hvdlite.errors import InvalidArgumentError, NotInitializedError
from hvdlite.runtime import Runtime

DEADLINE = 120.0  # only turns a hang into a failure
WARNING = 3
KNOBS = {"deadlock_timeout": 0.0, "log_level": WARNING, "log_timestamps": 0, "stall_check_time_seconds": 0.2}


def test_who_is_excused_is_not_spoken_of(capfd):
    """Ranks 1 and 2 are both late, until somebody has said so of rank 2."""
    said, excused = threading.Event(), threading.Event()

    def hear(text=""):
        end = time.monotonic() + DEADLINE
        while "stall: " not in text and time.monotonic() < end:
            text += capfd.readouterr().err
            time.sleep(0.01)
        return text

    def body(rank):
        values = np.full(3, rank.rank + 1.0)
        text = ""
        if rank.rank == 1:
            rank.engine.exempt_from_stalls(1e6)
            excused.set()
        assert excused.wait(DEADLINE)
        if rank.rank > 0:
            assert said.wait(DEADLINE)
        sums = np.zeros(3)
        handle = rank.start(ALLREDUCE, "x", values, sums)
        if rank.rank == 0:
            text = hear()
            said.set()
        handle.result()
        assert sums.tolist() == [6.0] * 3
        return text

    text, _, _ = run_ranks(3, body, {**KNOBS, "stall_shutdown_time_seconds": 0.0})
    lines = [line for line in text.splitlines() if "stall: " in line]
    assert re.search(r"allreduce of 'x' in process set 0 has waited .* for rank 2", lines[0]), text
    assert not any("rank 1" in line.partition("] ")[2] for line in lines), text


def runtime_at(now, monkeypatch):
    """A runtime with this clock and a stand-in for the engine, and what that is told."""
    monkeypatch.setattr(runtime, "time", SimpleNamespace(monotonic=now))
    said = []
    state = Runtime()
    monkeypatch.setattr(state, "require", lambda: state.engine)
    state.engine = SimpleNamespace(exempt_from_stalls=said.append)
    return state, said


def test_excuses_may_be_nested_and_the_latest_end_counts(monkeypatch):
    clock = [1000.0]
    state, said = runtime_at(lambda: clock[0], monkeypatch)
    with state.stall_limit(100.0):
        assert said == [100.0]
        clock[0] += 10.0
        with state.stall_limit(20.0):
            assert said == [100.0, 90.0]
            clock[0] += 5.0
        assert said == [100.0, 90.0, 85.0]
        with state.stall_limit(500.0):
            assert said[-1] == 500.0
            clock[0] += 5.0
        assert said[-1] == 80.0
    assert said[-1] == 0.0


def test_an_excuse_that_is_over_at_once_counts_as_none(monkeypatch):
    clock = count(1000.0)
    state, said = runtime_at(lambda: next(clock), monkeypatch)
    with state.stall_limit(0.5):
        assert said == [0.0]
    assert said == [0.0, 0.0]


def test_where_the_main_thread_is():
    def somewhere():
        return watchdog.where_is_main()

    text = somewhere()
    inside = r"hvdlite/watchdog\.py:\d+ where_is_main > hvdlite/watchdog\.py:\d+ main_frame"
    assert re.match(rf"its main thread is at .* > unit/test_stall\.py:\d+ somewhere > {inside}$", text)

    def deep(depth):
        return deep(depth - 1) if depth else watchdog.where_is_main()

    assert deep(100).startswith("its main thread is at ... > ")
    assert deep(100).count(" deep") < 20
    assert "\n" not in text


def test_where_the_main_thread_is_if_a_file_has_a_name_that_is_no_text():
    """The engine takes valid text only."""
    code = compile("where_is_main()", os.fsdecode(b"job/\xff.py"), "eval")
    assert r" > job/\udcff.py:1 <module> > " in eval(code, {"where_is_main": watchdog.where_is_main})


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e10, 10**400, "60", None])
def test_stall_limit_refuses_what_is_no_time(seconds):
    with pytest.raises(InvalidArgumentError, match=r"stall_limit\(.*\): seconds is a number above 0"):
        hvdlite.stall_limit(seconds)


def test_stall_limit_needs_an_engine():
    with pytest.raises(NotInitializedError):
        hvdlite.stall_limit(60)
