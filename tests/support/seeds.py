"""The seeds of tests that draw: the usual ones, or the one that HVDTEST_SEED names; a failing test says which it had.

What a test draws comes from a seed that its source fixes, so that it draws the same whenever it runs. Tests for which one
seed is as good as another take theirs from `seeds`, in a parameter or in a loop, and call it `seed`.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

VARIABLE = "HVDTEST_SEED"

Seed = TypeVar("Seed")


def seeds(usual: Iterable[Seed]) -> list[Seed | int]:
    """The seeds to test with."""
    chosen = os.environ.get(VARIABLE)
    return list(usual) if chosen is None else [int(chosen)]


def say_seed(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Adds to the report of a failed test with which seed it failed, if it had one."""
    seed = _seed_of(item, call)
    if seed is not None and hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection("seed", f"seed={seed}: with {VARIABLE}={seed} the test has this one alone")


def _seed_of(item: pytest.Item, call: pytest.CallInfo[None]) -> int | None:
    """Of the outermost function that has one: the test, or what loops for it."""
    entries = call.excinfo.traceback if call.excinfo is not None else ()
    found = [entry.frame.f_locals.get("seed") for entry in entries]
    found.append(getattr(item, "funcargs", {}).get("seed"))
    return next((seed for seed in found if type(seed) is int), None)
