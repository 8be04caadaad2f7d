"""How an engine waits, by its counters and not by the clock. Programs of jobs ask, too: run_job(..., env=ENVIRONMENT)."""

import os
from pathlib import Path
from typing import Any

from support.limits import eventually, waits_in_engine

_TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)])}
_ENOUGH = 4  # sleeps
# A caller looks for signals so often, and then at first spins: for less than 0.1 ms, in which nobody makes more passes.
_SLICE_US = 100_000
_SPINS = 2000


def rests(engine: Any, microseconds: int, caller: int | None = None) -> bool:
    """Does the engine come to rest? Then it sleeps for so long or longer each time, and nobody wakes it.

    What that costs is a share of a processor that hardly depends on the machine.

    Args:
        engine: of any rank.
        microseconds: that the sleeps last on average.
        caller: the native id of the thread that waits and drives it, and then sleeps itself. If there is none, the engine
            looks once after each sleep for something to do.
    """
    since = engine.counters()

    def over() -> bool:
        nonlocal since
        now = engine.counters()
        passes, sleeps, limits, rung = (
            now[name] - since[name] for name in ("passes", "sleeps", "sleep_limits_us", "rung_sleeps")
        )
        if sleeps < _ENOUGH:
            return False
        since = now
        spins = _SPINS * (1 + limits // _SLICE_US) if caller else 0
        return rung == 0 and passes <= sleeps + 1 + spins and limits >= microseconds * sleeps

    return eventually(over) and (caller is None or eventually(lambda: waits_in_engine(caller)))


def outlasts(engine: Any, seconds: float) -> bool:
    """Waits until an engine that has nothing to do has slept for so long altogether, by its own count.

    All that the ranks would have found out meanwhile by looking again and again they have then had the time for.
    """
    enough = engine.counters()["sleep_limits_us"] + 1e6 * seconds
    return eventually(lambda: engine.counters()["sleep_limits_us"] >= enough)


def awaits_others(engine: Any, since: dict[str, int]) -> bool:
    """Has the engine, since it had these counters, announced something that other ranks have not asked for?"""
    return engine.counters()["waiting_ns"] > since["waiting_ns"]
