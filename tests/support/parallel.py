"""Test files that run under mpirun: the parent starts one job per file and rank count, children run pytest in step.

Parent: each file of tests/parallel and tests/adapters becomes one item per number of ranks. Children: after each test
the ranks compare verdicts over mpi4py (not through hvdlite), and one failure stops the file everywhere. A test that
hangs is ended by a watchdog, which writes the stacks of all threads first.

A file may declare RANKS = (2, 3), the numbers of ranks it runs with; ENVIRONMENT = {"NAME": "value"}, variables that its
processes start with; DEADLINE = 900.0, seconds for the whole file; and WATCHDOG = 300.0, seconds for one test. Its tests
marked `slow` are an item of their own, so that -m selects them here.
"""

import ast
import faulthandler
import json
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from support.job import JobResult, run_python

if TYPE_CHECKING:
    from support.hosts import EmulatedHosts

TESTS = Path(__file__).parents[1]
RESULTS = "HVDTEST_RESULTS"  # set in children: the folder for their results
WATCHDOG_SECONDS = 120.0
GRACE_SECONDS = 8.0  # for the other ranks to end a test that one rank has failed already
DEADLINE_SECONDS = 600.0
DEFAULT_RANKS = {"parallel": (1, 2, 3, 4), "adapters": (2, 3)}
TAIL_LINES = {"failed": 150, "other": 60}


# --- the parent ----------------------------------------------------------------------------------------------------


def is_parallel(path: Path) -> bool:
    """Does this test file run under mpirun?"""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in DEFAULT_RANKS


class ParallelFile(pytest.File):
    """A file of parallel tests; it is read but not imported here."""

    def collect(self) -> Iterator["ParallelItem"]:
        tree = ast.parse(self.path.read_text())
        declared = _constants(tree)
        ranks = declared.get("RANKS", DEFAULT_RANKS[self.path.relative_to(TESTS).parts[0]])
        wanted = self.config.getoption("--ranks")
        for n in ranks:
            if wanted and n not in wanted:
                continue
            for slow, names in _test_names(tree).items():
                item = ParallelItem.from_parent(self, name=f"ranks={n}, slow" if slow else f"ranks={n}")
                item.ranks = n
                item.slow = slow
                item.deadline = declared.get("DEADLINE", DEADLINE_SECONDS)
                item.environment = declared.get("ENVIRONMENT", {})
                if slow:
                    item.add_marker("slow")
                # So that -k with the name of a test selects its file; the expression goes on to the children.
                item.extra_keyword_matches.update(names)
                yield item


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The values of RANKS, ENVIRONMENT and DEADLINE, where the file sets them at its top level."""
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in ("RANKS", "ENVIRONMENT", "DEADLINE"):
            found[target.id] = ast.literal_eval(node.value)
    return found


def _test_names(tree: ast.Module) -> dict[bool, set[str]]:
    """Names of the tests that are not slow, and of those that are; a test with both kinds of parameters is in both."""
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    assigned = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    all_slow = any(_mentions_slow(value) for value in assigned)
    fast = {test.name for test in tests if not all_slow and not any(_is_slow(mark) for mark in test.decorator_list)}
    slow = {test.name for test in tests if all_slow or any(_mentions_slow(mark) for mark in test.decorator_list)}
    # A file without tests, or one that skips itself, is started all the same, to say so.
    return {False: fast, True: slow} if fast and slow else {True: slow} if slow else {False: fast}


def _is_slow(mark: ast.expr) -> bool:
    return ast.unparse(mark) == "pytest.mark.slow"


def _mentions_slow(marks: ast.expr) -> bool:
    return any(isinstance(node, ast.expr) and _is_slow(node) for node in ast.walk(marks))


class ChildrenFailed(Exception):
    """Carries the report of a job that did not end well."""


class ParallelItem(pytest.Item):
    """One file with one number of ranks."""

    ranks = 1
    slow = False
    deadline = DEADLINE_SECONDS
    environment: Mapping[str, str] = MappingProxyType({})

    def runtest(self) -> None:
        keyword = self.config.getoption("keyword")
        options = ["-m", "slow" if self.slow else "not slow", *(["-k", keyword] if keyword else [])]
        run_in_step([self.path], self.ranks, self.deadline, options, environment=self.environment)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ChildrenFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.name} with {self.ranks} ranks{', slow tests' if self.slow else ''}"


def run_in_step(
    files: Sequence[Path],
    ranks: int,
    deadline: float,
    options: Sequence[str] = (),
    hosts: "EmulatedHosts | None" = None,
    mpirun_args: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Runs test files as one job of so many ranks; raises ChildrenFailed, or skips if every test was skipped."""
    folder = Path(tempfile.mkdtemp(prefix="hvdlite-test-"))
    arguments = ["-m", "pytest", *map(str, files), "-p", "no:cacheprovider", "-q", "--tb=short", "-rs"]
    arguments += ["--rootdir", str(TESTS.parent), *options]
    try:
        job = run_python(arguments, ranks, deadline, folder, {**environment, RESULTS: str(folder)}, mpirun_args, hosts)
        results = {rank: _result(folder, rank) for rank in range(ranks)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _judge(job, results)


def _result(folder: Path, rank: int) -> dict[str, Any] | None:
    file = folder / f"rank{rank}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _judge(job: JobResult, results: dict[int, dict[str, Any] | None]) -> None:
    """Raises ChildrenFailed, failing rank first, or skips if every test was skipped on every rank."""
    ended = [result for result in results.values() if result is not None]
    if len(ended) == len(results) and job.returncode == 0 and not any(result["failed"] for result in ended):
        if not any(result["passed"] for result in ended):
            pytest.skip("; ".join(sorted({reason for result in ended for reason in result["skipped"]})) or "no tests")
        return
    lines = [f"mpirun ended with {job.returncode} after {job.seconds:.1f} s" + (" (deadline)" if job.timed_out else "")]
    order = sorted(results, key=lambda rank: _suspicion(results[rank], job.stderr.get(rank, "")))
    for place, rank in enumerate(order):
        result = results[rank]
        state = "ended early" if result is None else f"failed: {', '.join(result['failed']) or 'nothing'}"
        keep = TAIL_LINES["failed"] if place == 0 else TAIL_LINES["other"]
        text = job.stdout.get(rank, "") + job.stderr.get(rank, "")
        lines += [f"=== rank {rank} of {len(results)}, {state}", *text.splitlines()[-keep:]]
    raise ChildrenFailed("\n".join([*lines, "=== mpirun", *job.launcher.splitlines()[-TAIL_LINES["other"] :]]))


def _suspicion(result: dict[str, Any] | None, stderr: str) -> int:
    """Smaller is more suspect: a failed test, a watchdog's dump, an early end, and last a good end."""
    if result is not None:
        return 0 if result["failed"] else 3
    return 0 if " failed:\n" in stderr else 1 if "Timeout (" in stderr else 2


# --- the children --------------------------------------------------------------------------------------------------


class InStep:
    """The plugin of a child: watchdog, comparison of verdicts, and the result file."""

    def __init__(self, folder: Path) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()
        self._folder = folder
        self._lock = threading.Lock()
        self._in_test = False
        # The capture of pytest swallows what is written to descriptor 2.
        self._log = (folder / f"rank{self._comm.rank}.stderr").open("a")
        self._failed: list[str] = []
        self._passed = 0
        self._skipped: list[str] = []
        threading.Thread(target=self._watch_others, daemon=True).start()

    def _watch_others(self) -> None:
        """Once a rank has failed its test, the others, which may wait for it, get a shorter time."""
        while not list(self._folder.glob("*.failed")):
            time.sleep(0.2)
        with self._lock:
            if self._in_test:
                faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=self._log)

    def _exchange(self, number: int) -> list[int]:
        """All ranks' numbers, waiting without taking the processor from ranks still at work."""
        import numpy as np

        mine = np.array([number], dtype=np.int64)
        everyone = np.empty(self._comm.size, dtype=np.int64)
        request = self._comm.Iallgather(mine, everyone)
        while not request.Test():
            time.sleep(0.0005)
        return [int(value) for value in everyone]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        names = "\n".join(item.nodeid for item in session.items)
        if len(set(self._exchange(zlib.crc32(names.encode())))) > 1:
            self._failed.append("collection")
            raise pytest.UsageError("the ranks collected different tests")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = len(self._failed)
        limit = getattr(item.getparent(pytest.Module).obj, "WATCHDOG", WATCHDOG_SECONDS)
        with self._lock:
            self._in_test = True
            faulthandler.dump_traceback_later(limit, exit=True, file=self._log)
        outcome = yield
        with self._lock:
            self._in_test = False
            # A rank that hangs shows its stacks before those that wait for its verdict.
            faulthandler.dump_traceback_later(limit + GRACE_SECONDS, exit=True, file=self._log)
        failures = self._exchange(len(self._failed) - before)
        faulthandler.cancel_dump_traceback_later()
        if any(failures):
            ranks = [rank for rank, count in enumerate(failures) if count]
            item.session.shouldstop = f"{item.name} failed on ranks {ranks}"
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid.split('::')[-1]} ({report.when})")
            # At once: should the others hang now, this process will not live to print its summary.
            print(f"\n{self._failed[-1]} failed:\n{report.longreprtext}", file=self._log, flush=True)
            (self._folder / f"rank{self._comm.rank}.failed").touch()
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped.append(reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self._passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid} (collection)")
        elif report.skipped:
            self._skipped.append(str(report.longrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        result = {"failed": self._failed, "passed": self._passed, "skipped": self._skipped}
        (self._folder / f"rank{self._comm.rank}.json").write_text(json.dumps(result))
        # The verdict is in the file: mpirun would kill the other ranks, reports unwritten, if one exited with an error.
        session.exitstatus = 0


def child_plugin() -> InStep | None:
    """The plugin, where this pytest is a rank of a parallel test file."""
    folder = os.environ.get(RESULTS)
    return InStep(Path(folder)) if folder else None
