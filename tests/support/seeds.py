"""The seeds of tests with random values: the usual seeds, or the one that HVDTEST_SEED names. A failing test reports its seed.

The source of a test fixes its seed, so that the test has the same values in each run. Tests that work with any seed take their
seeds from `seeds`, in a parameter or in a loop, and call the variable `seed`.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

VARIABLE = "HVDTEST_SEED"

Seed = TypeVar("Seed")


def seeds(usual: Iterable[Seed]) -> list[Seed | int]:
    """The seed that HVDTEST_SEED names, or else the usual seeds."""
    chosen = os.environ.get(VARIABLE)
    return list(usual) if chosen is None else [int(chosen)]


def say_seed(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Adds the seed of a failed test to its report, if it had one."""
    seed = _seed_of(item, call)
    if seed is not None and hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection("seed", f"seed={seed}: with {VARIABLE}={seed} the test has only this seed")


def _seed_of(item: pytest.Item, call: pytest.CallInfo[None]) -> int | None:
    """The seed in the outermost function that has one: the test, or a function that loops over seeds."""
    entries = call.excinfo.traceback if call.excinfo is not None else ()
    found = [entry.frame.f_locals.get("seed") for entry in entries]
    found.append(getattr(item, "funcargs", {}).get("seed"))
    return next((seed for seed in found if type(seed) is int), None)
