"""Divides the tests marked slow into slices. CI runs one slice for each change, which the commit's hash selects, so that all
slow tests run from time to time.

Usage, in tests/: python -m support.slices [--show]

The program runs the slice of HEAD. Tests that fail run again on the parent commit, in a checkout and a build of its own. A test
that fails on both is reported and does not block the change, which has not caused it. The exit status is 1 if a test fails only
on HEAD.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).parents[2]
SLICES = 12  # one takes up to about five minutes on two cores
BUILD = ROOT / "build" / "slice"
Test = TypeVar("Test")


def add_options(parser: pytest.Parser) -> None:
    """Adds the options to pytest."""
    parser.addoption("--slice", type=int, help="run the tests of this slice only (support/slices.py), with -m slow or -m ''")
    parser.addoption("--write-failed", type=Path, help="a file to which the names of tests that fail are added")


def dealt(tests: Sequence[Test], chosen: int) -> list[Test]:
    """The tests of a slice, counted from 0. Neighbours take similar times, so they are dealt to different slices."""
    return list(tests[chosen::SLICES])


def slice_of_commit(commit: str) -> int:
    """The slice that CI runs for a commit, from the hexadecimal digits of its hash."""
    return int(commit[:12], 16) % SLICES


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps only the tests of the slice that --slice names."""
    chosen = config.getoption("--slice")
    if chosen is not None:
        mine = dealt(items, chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = mine


class FailedTests:
    """The plugin that adds the name of each test that fails to the file of --write-failed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def configure(config: pytest.Config) -> None:
    """Registers the plugin in the pytest that starts the workers, which gets their reports and notices their deaths."""
    path = config.getoption("--write-failed")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(path))


def verdict(failed: Iterable[str], also_on_parent: Iterable[str]) -> tuple[str, int]:
    """The report on the tests that fail on HEAD, and the exit status."""
    old = sorted(set(failed) & set(also_on_parent))
    new = sorted(set(failed) - set(old))
    lines = [f"fails on the parent commit as well, so it does not block: {node}" for node in old]
    lines += [f"fails since this commit: {node}" for node in new]
    return "\n".join(lines), int(bool(new))


def main(arguments: Sequence[str]) -> int:
    """Runs the slice of HEAD, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Run the slice of the slow tests that CI runs for HEAD.")
    parser.add_argument("--show", action="store_true", help="only list the tests of the slice")
    options = parser.parse_args(arguments)
    chosen = slice_of_commit(_git("rev-parse", "HEAD"))
    print(f"slice {chosen} of {SLICES} (0 to {SLICES - 1}) of the tests marked slow", flush=True)
    # With "=", because pytest would take the value for a path before it knows the option.
    command = ["-m", "slow", f"--slice={chosen}"]
    if options.show:
        return _pytest(ROOT, [*command, "--collect-only", "-q"])[0]
    code, failed = _pytest(ROOT, command)
    if code != pytest.ExitCode.TESTS_FAILED or not failed:  # all tests passed, or pytest itself failed
        return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code
    text, code = verdict(failed, _failed_on_parent(failed))
    print(text, flush=True)
    return code


def _failed_on_parent(nodes: Sequence[str]) -> list[str]:
    """The tests among these that also fail on the parent commit; none if there is no parent or it does not build."""
    if not _git("rev-parse", "--quiet", "--verify", "HEAD^", check=False):
        print("there is no parent commit on which the failed tests could run")
        return []
    print("the failed tests run on the parent commit", flush=True)
    checkout = BUILD / "parent"
    shutil.rmtree(checkout, ignore_errors=True)
    _git("worktree", "prune")
    _git("worktree", "add", "--detach", str(checkout), "HEAD^")
    try:
        if subprocess.run(["make", "develop", f"VENV={sys.prefix}"], cwd=checkout, check=False).returncode:
            print("the parent commit does not build")
            return []
        # With a worker, a test that ends its process does not end this run.
        return _pytest(checkout, ["-m", "", "-n", "1", *nodes])[1]
    finally:
        _git("worktree", "remove", "--force", str(checkout))


def _pytest(tree: Path, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Runs pytest; returns its exit status and the names of the tests that failed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / "failed.txt"
    file.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    options = ["--rootdir", str(tree), "--confcutdir", str(tree), "-p", "no:cacheprovider", f"--write-failed={file}"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    code = subprocess.run(command, cwd=tree, env=environment, check=False).returncode
    return code, sorted(set(file.read_text().splitlines()))


def _git(*arguments: str, check: bool = True) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=check, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
