"""The children of support/parallel.py: the ranks of one job run test files in step.

After each test the ranks compare their results by mpi4py (not by hvdlite), and one failure ends the job. If a test hangs, a
watchdog writes the stacks of all threads and ends the process. After each file hvdlite is shut down. A file that changes the
process for the next file fails (support/leftovers.py).
"""

import faulthandler
import json
import os
import threading
import time
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.leftovers import Leftovers

RESULTS = "HVDTEST_RESULTS"  # set in children: the folder for their results
WATCHDOG_SECONDS = 120.0
GRACE_SECONDS = 8.0  # the time in which the other ranks have to end a test after it has failed on one rank


def result_file(folder: Path, rank: int, place: int) -> Path:
    """The file with a rank's result for one of the job's test files."""
    return folder / f"rank{rank}.file{place}.json"


def child_plugin(config: pytest.Config) -> "InStep | None":
    """The plugin if this pytest is a rank of a job, otherwise None."""
    folder = os.environ.get(RESULTS)
    return InStep(Path(folder), [_name(config, Path(argument)) for argument in config.args]) if folder else None


def _name(config: pytest.Config, file: Path) -> str:
    """The name of a file, as it begins node ids."""
    return file.relative_to(config.rootpath).as_posix()


class InStep:
    """The plugin of a child: watchdog, comparison of verdicts, and the result files."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        # pytest has already installed Python's handler for crashes, and Open MPI installs its own only where none is. In this
        # order, both work: after a crash Python prints the stacks in Python, and then Open MPI prints the stack in native code.
        faulthandler.disable()
        from mpi4py import MPI
        from support.patient_comm import PatientComm

        self._comm = PatientComm(MPI.COMM_WORLD.Dup())
        self._folder = folder
        self._lock = threading.Lock()
        self._in_test = False
        # pytest captures the text that is written to sys.stderr.
        self._log = (folder / f"rank{self._comm.rank}.stderr").open("a")
        faulthandler.enable(self._log)
        self._files = list(files)
        self._results: list[dict[str, Any]] = [
            {"failed": [], "passed": 0, "skipped": [], "ends_job": False, "broken": False} for _ in files
        ]
        self._leftovers: Leftovers | None = None  # between a file's first test and its end
        threading.Thread(target=self._watch_others, daemon=True).start()

    def _watch_others(self) -> None:
        """When a test has failed on one rank, the others get a shorter time for it, because they may wait for that rank."""
        while not list(self._folder.glob("*.failed")):
            time.sleep(0.2)
        with self._lock:
            if self._in_test:
                faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=self._log)

    def _place(self, node: str) -> int | None:
        """The place of a node id's file among the job's files; None if it is not one of them."""
        file = node.split("::")[0]
        return self._files.index(file) if file in self._files else None

    def _fail(self, place: int, what: str, details: str) -> None:
        """Notes and prints a failure at once, because this process may not print its summary if the other ranks hang now."""
        self._results[place]["failed"].append(what)
        print(f"\n{what} failed:\n{details}", file=self._log, flush=True)

    def _write(self, place: int) -> None:
        """Writes a result in one step, because the parent may read it at any time."""
        file = result_file(self._folder, self._comm.rank, place)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self._results[place]))
        unfinished.rename(file)

    # --- collection ---------------------------------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        place = self._place(report.nodeid)
        if place is None:
            return
        if report.failed:
            self._fail(place, f"{report.nodeid} (collection)", report.longreprtext)
        elif report.skipped:
            self._skip(place, report.longrepr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Marks the tests that a file declares as SLOW, before pytest selects by marks."""
        for item in items:
            module = item.getparent(pytest.Module).obj
            if item.name.partition("[")[0] in getattr(module, "SLOW", ()):
                item.add_marker("slow")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Ends the files that have no tests, and those whose tests differ between the ranks."""
        names: list[list[str]] = [[] for _ in self._files]
        for item in session.items:
            names[self._place(item.nodeid)].append(item.nodeid)
        found = self._comm.allgather([zlib.crc32("\n".join(of_file).encode()) for of_file in names])
        for place, hashes in enumerate(zip(*found, strict=True)):
            if len(set(hashes)) > 1:
                self._fail(place, f"{self._files[place]} (collection)", "the ranks collected different tests")
                names[place].clear()
            if not names[place]:
                self._write(place)
        session.items[:] = [item for item in session.items if names[self._place(item.nodeid)]]

    # --- tests --------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        place = self._place(item.nodeid)
        failed = self._results[place]["failed"]
        module = item.getparent(pytest.Module).obj
        limit = getattr(module, "WATCHDOG", WATCHDOG_SECONDS)
        if self._leftovers is None:
            self._leftovers = Leftovers(self._comm.rank)
        before = len(failed)
        with self._lock:
            self._in_test = True
            faulthandler.dump_traceback_later(limit, exit=True, file=self._log)
        outcome = yield
        with self._lock:
            self._in_test = False
            # A rank that hangs writes its stacks before the ranks that wait for its result.
            faulthandler.dump_traceback_later(limit + GRACE_SECONDS, exit=True, file=self._log)
        self._compare(item, len(failed) - before, "failed")
        if item.session.shouldstop:
            self._write(place)
        elif nextitem is None or self._place(nextitem.nodeid) != place:
            found = self._leftovers.take_away()
            self._leftovers = None
            self._results[place]["broken"] = any("broken engine" in each for each in found)
            if found and not getattr(module, "ALONE", False):
                self._results[place]["ends_job"] = True
                self._fail(place, f"{self._files[place]} (end)", f"it leaves behind: {'; '.join(found)}")
            self._write(place)  # before the other ranks begin the next file, which may end this process
            self._compare(item, len(failed) - before, "left something behind")
        faulthandler.cancel_dump_traceback_later()
        return outcome

    def _compare(self, item: pytest.Item, failures: int, what: str) -> None:
        ranks = [rank for rank, count in enumerate(self._comm.allgather(failures)) if count]
        if ranks:
            self._results[self._place(item.nodeid)]["ends_job"] = True
            item.session.shouldstop = f"{item.name} {what} on ranks {ranks}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        place = self._place(report.nodeid)
        if report.failed:
            self._fail(place, f"{report.nodeid.split('::')[-1]} ({report.when})", report.longreprtext)
            (self._folder / f"rank{self._comm.rank}.failed").touch()
        elif report.skipped:
            self._skip(place, report.longrepr)
        elif report.when == "call":
            self._results[place]["passed"] += 1

    def _skip(self, place: int, why: Any) -> None:
        reason = why[2] if isinstance(why, tuple) else str(why)
        self._results[place]["skipped"].append(reason.removeprefix("Skipped: "))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # The results are in the files. With an error as exit status, mpirun would kill ranks that have not written theirs.
        session.exitstatus = 0
