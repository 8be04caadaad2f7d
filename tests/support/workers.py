"""Three pytests share the tests of a run (pytest-xdist): one begins with jobs of several ranks, two with tests of one process.

Most tests of one process use one processor, and the pytest of a job of several ranks only waits for the job. So the first
worker takes tests from the front of the queue, where the jobs are, and the others take tests from the end, until they meet.
Some tests mostly wait, for the end of processes or for deadlines, and leave a processor to the third worker. Their files are
spread over the queue, so that the run does not end with waiting. Tests that must stay together are one unit of the queue: the
tests of a file, and the files that share a job (support/parallel.py).

Workers share runs of whole folders if there are two processors. They do not share runs of named files, or runs with ``-n 0``.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import warm
from support.parallel import TESTS, company_of, is_parallel

WORKERS = 3
PROCESSORS = 2  # with fewer processors, one pytest runs all tests
WAITING = ("fault", "hosts")  # the folders whose tests mostly wait
EVERY_SECONDS = 20.0  # the time between two lines of progress


def choose_workers(config: pytest.Config) -> None:
    """Sets the number of workers, unless the command line sets it."""
    if hasattr(config, "workerinput"):  # this process is a worker
        return
    option = config.option
    folders = all(os.path.isdir(argument) for argument in config.args)
    wanted = folders and not option.collectonly and not option.usepdb and len(os.sched_getaffinity(0)) >= PROCESSORS
    if getattr(option, "numprocesses", 0) is None and wanted:
        option.numprocesses = WORKERS


def in_order_of_the_queue(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests on several ranks first, and then those of one process, with the files of waiting tests spread evenly."""
    parallel: list[pytest.Item] = []
    files: dict[bool, dict[Path, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        if is_parallel(item.path):
            parallel.append(item)
        else:
            files[_waits(item.path)].setdefault(item.path, []).append(item)
    placed = [((number + 0.5) / len(kind), tests) for kind in files.values() for number, tests in enumerate(kind.values())]
    placed.sort(key=lambda pair: pair[0])
    return parallel + [item for _, tests in placed for item in tests]


def _waits(path: Path) -> bool:
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in WAITING


class Shared:
    """The plugin of the pytest that starts the workers: deals the tests out, and prints the progress."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._config = config
        self._all: list[str] = []
        self._ended: set[str] = set()
        self._failed = 0
        self._began = self._said = time.monotonic()

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        shared = self

        class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc]
            """A queue in the order of the collection."""

            def _split_scope(self, nodeid: str) -> str:
                return company_of(nodeid, config.rootpath)

            def _assign_work_unit(self, node: Any) -> None:
                if node.gateway.id != "gw0":
                    self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
                super()._assign_work_unit(node)

            def schedule(self) -> None:
                super().schedule()
                shared.expect(self.collection or ())

        config.option.loadscopereorder = False
        return FromBothEnds(config, log)

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def expect(self, nodes: Sequence[str]) -> None:
        """Stores the names of all tests of the run."""
        self._all = list(nodes)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Replaces thousands of dots by a line from time to time, and a line for each failure."""
        if self._reporter.verbosity > 0 or not isinstance(report, pytest.TestReport) or report.failed:
            return None
        return ("passed" if report.passed and report.when == "call" else "skipped" if report.skipped else "", "", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._reporter.write_line(f" {report.nodeid} ({report.when})", red=True)
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        if time.monotonic() - self._said > EVERY_SECONDS and self._reporter.verbosity <= 0:
            self._say()

    def pytest_terminal_summary(self) -> None:
        if warm.is_first():
            for reason in warm.refusals():
                self._reporter.write_line(f"ranks were fresh processes instead of warm ones, which takes longer: {reason}")
            self._reporter.write_line(f"processor time: {warm.processor_seconds():.0f} s, with all processes of the run")

    def _say(self) -> None:
        self._said = time.monotonic()
        minutes, seconds = divmod(int(self._said - self._began), 60)
        jobs, tests = (self._counts(parallel) for parallel in (True, False))
        failed = f", {self._failed} failed" if self._failed else ""
        self._reporter.write_line(
            f"{minutes:2}:{seconds:02}  {jobs} files on several ranks, {tests} tests of one process{failed}"
        )

    def _counts(self, parallel: bool) -> str:
        chosen = {node for node in self._all if is_parallel(self._root / node.split("::")[0]) is parallel}
        return f"{len(chosen & self._ended)} of {len(chosen)}"
