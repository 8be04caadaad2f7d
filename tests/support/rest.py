"""Checks how an engine waits, by its counters and not by a clock. Programs of jobs can use it with run_job(...,
env=ENVIRONMENT).
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.limits import eventually, waits_in_engine

_TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)])}
_ENOUGH = 4  # the number of sleeps that are looked at
# A waiting caller checks for signals at this interval, and then spins for less than 0.1 ms, in which it makes
# at most _SPINS passes.
_SLICE_US = 100_000
_SPINS = 2000


class _Seen(NamedTuple):
    """The changes of an engine's counters between two looks at them."""

    passes: int
    sleeps: int
    sleep_limits_us: int
    rung_sleeps: int


def _comes_to(engine: Any, rest: Callable[[_Seen], bool]) -> bool:
    since = engine.counters()

    def over() -> bool:
        nonlocal since
        now = engine.counters()
        seen = _Seen(*(now[name] - since[name] for name in _Seen._fields))
        if seen.sleeps < _ENOUGH:
            return False
        since = now
        return rest(seen)

    return eventually(over)


def rests(engine: Any, microseconds: int) -> bool:
    """Does an engine without callers come to rest? Then its sleeps last at least `microseconds` on average, and no event ends
    them.

    After each sleep the engine makes one pass, so this bounds the share of a processor that it takes, on any machine.
    """
    return _comes_to(
        engine,
        lambda seen: (
            seen.rung_sleeps == 0 and seen.passes <= seen.sleeps + 1 and seen.sleep_limits_us >= microseconds * seen.sleeps
        ),
    )


def looks_seldom(engine: Any, microseconds: int) -> bool:
    """Does an engine with a waiting caller come to sleep at least `microseconds` on average between its passes?

    The caller also checks for signals from time to time, and makes more passes for a moment after that.
    """
    return _comes_to(
        engine,
        lambda seen: (
            seen.passes <= seen.sleeps + 1 + _SPINS * (1 + seen.sleep_limits_us // _SLICE_US)
            and seen.sleep_limits_us >= microseconds * seen.sleeps
        ),
    )


def rests_with(caller: threading.Thread, engine: Any, microseconds: int) -> bool:
    """Does the engine make passes seldom, and does the waiting thread `caller` sleep without interruption?"""
    asleep = eventually(lambda: waits_in_engine(caller.native_id or 0))
    return asleep and looks_seldom(engine, microseconds) and _comes_to(engine, lambda seen: seen.rung_sleeps == 0)


def outlasts(engine: Any, seconds: float) -> bool:
    """Waits until an idle engine has slept for `seconds` in total, by its own counter.

    In this time the ranks would have noticed everything that they notice by repeated checks.
    """
    enough = engine.counters()["sleep_limits_us"] + 1e6 * seconds
    return eventually(lambda: engine.counters()["sleep_limits_us"] >= enough)


def awaits_others(engine: Any, since: dict[str, int]) -> bool:
    """Since the counters `since`, has the engine announced an operation that other ranks have not asked for?"""
    return engine.counters()["waiting_ns"] > since["waiting_ns"]
