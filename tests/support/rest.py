"""How an engine waits, by its counters and not by the clock. Programs of jobs ask, too: run_job(..., env=ENVIRONMENT)."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.limits import eventually, waits_in_engine

_TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)])}
_ENOUGH = 4  # sleeps
# A caller looks for signals so often, and then at first spins: for less than 0.1 ms, in which nobody makes more passes.
_SLICE_US = 100_000
_SPINS = 2000


class _Seen(NamedTuple):
    """What an engine did between two looks at its counters."""

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
    """Does an engine that nobody calls come to rest? Then its sleeps last so long or longer on average, and nobody ends them.

    After each it looks once for something to do: what that costs is a share of a processor that hardly depends on the machine.
    """
    return _comes_to(
        engine,
        lambda seen: (
            seen.rung_sleeps == 0 and seen.passes <= seen.sleeps + 1 and seen.sleep_limits_us >= microseconds * seen.sleeps
        ),
    )


def looks_seldom(engine: Any, microseconds: int) -> bool:
    """Does an engine for which a caller waits come to sleep so long on average between its looks for something to do?

    The caller looks now and then for signals, too, and more often for a moment after that.
    """
    return _comes_to(
        engine,
        lambda seen: (
            seen.passes <= seen.sleeps + 1 + _SPINS * (1 + seen.sleep_limits_us // _SLICE_US)
            and seen.sleep_limits_us >= microseconds * seen.sleeps
        ),
    )


def rests_with(caller: threading.Thread, engine: Any, microseconds: int) -> bool:
    """Does the engine look seldom, and does this thread, which waits and drives it, sleep meanwhile and undisturbed?"""
    asleep = eventually(lambda: waits_in_engine(caller.native_id or 0))
    return asleep and looks_seldom(engine, microseconds) and _comes_to(engine, lambda seen: seen.rung_sleeps == 0)


def outlasts(engine: Any, seconds: float) -> bool:
    """Waits until an engine that has nothing to do has slept for so long altogether, by its own count.

    All that the ranks would have found out meanwhile by looking again and again they have then had the time for.
    """
    enough = engine.counters()["sleep_limits_us"] + 1e6 * seconds
    return eventually(lambda: engine.counters()["sleep_limits_us"] >= enough)


def awaits_others(engine: Any, since: dict[str, int]) -> bool:
    """Has the engine, since it had these counters, announced something that other ranks have not asked for?"""
    return engine.counters()["waiting_ns"] > since["waiting_ns"]
