"""Parallel files run beside the tests of one process: a second pytest starts their jobs while this one runs the others.

Most tests of one process take one processor or sleep, and while a job of several ranks runs its pytest only waits for it. So
where both kinds are selected the session's items are: first those of one process, meanwhile a second pytest runs the jobs, one
after another; then the parallel files, which take over its verdicts; at last the tests marked `measures`, which measure times
and have the machine for themselves. A process and not a thread, for tests change the environment, the folder and the clock of
theirs. ``--in-turn`` does without.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.parallel import ChildrenFailed, ParallelItem

TAIL_LINES = 60
END_SECONDS = 30.0  # for the second pytest to end its job


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--in-turn", action="store_true", help="start jobs of several ranks in turn with the other tests, not beside them"
    )
    parser.addoption("--outcomes", type=Path, help="of the second pytest: the folder for what has come of its items")


def outcome_file(folder: Path, node: str) -> Path:
    """Where the second pytest says how it went with an item."""
    return folder / f"{hashlib.sha256(node.encode()).hexdigest()[:32]}.json"


def run_beside(session: pytest.Session) -> None:
    """Starts the second pytest and brings the items in order, if there is something for both."""
    config = session.config
    jobs = [item for item in session.items if isinstance(item, ParallelItem) and item.impossible is None]
    alone = [item for item in session.items if item.get_closest_marker("measures")]
    others = [item for item in session.items if item not in set(jobs) | set(alone)]
    unwanted = config.option.collectonly or config.option.in_turn or config.option.outcomes is not None
    if unwanted or not jobs or not others or len(os.sched_getaffinity(0)) < 2:
        return
    beside = Beside(jobs, config)
    config.add_cleanup(beside.end)
    for item in jobs:
        item.company = beside
    session.items[:] = [*others, *jobs, *alone]


class Beside:
    """The second pytest; for its items what a company of parallel.py is for those of the first."""

    def __init__(self, items: Sequence[ParallelItem], config: pytest.Config) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hvdlite-beside-"))
        self._output = self._folder / "output.txt"
        options = ["-m", config.getoption("markexpr"), "-k", config.getoption("keyword"), "--outcomes", str(self._folder)]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "--rootdir", str(config.rootpath), *options]
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*command, *(item.nodeid for item in items)],
                cwd=config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, item: ParallelItem) -> str | None:
        """Waits for what comes of an item; says why if it was skipped, and raises ChildrenFailed if it failed."""
        file = outcome_file(self._folder, item.nodeid)
        while not file.exists():
            if self._process.poll() is not None and not file.exists():
                lines = self._output.read_text(errors="replace").splitlines()[-TAIL_LINES:]
                raise ChildrenFailed("\n".join([f"the second pytest ended with {self._process.returncode}", *lines]))
            time.sleep(0.05)
        outcome = json.loads(file.read_text())
        item.seconds = outcome["seconds"]
        if outcome["failed"]:
            raise ChildrenFailed("\n".join(outcome["failed"]))
        return outcome["skipped"]

    def end(self) -> None:
        """Ends it and, if pytest stops early, its job."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Outcomes:
    """The plugin of the second pytest: writes down what comes of each item."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = os.getppid()
        self._outcome: dict[str, Any] = {}

    def pytest_runtest_logstart(self) -> None:
        self._outcome = {"failed": [], "skipped": None, "seconds": 0.0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcome["seconds"] += report.duration
        if report.failed:
            self._outcome["failed"].append(report.longreprtext)
        elif report.skipped:
            self._outcome["skipped"] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """In one step, for the first pytest looks all the time."""
        file = outcome_file(self._folder, nodeid)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self._outcome))
        unfinished.rename(file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if os.getppid() != self._first:
            pytest.exit("the pytest that wants these outcomes is gone")
