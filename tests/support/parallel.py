"""Test files that run under mpirun: the parent starts jobs of several ranks, whose children run pytest in step.

Each file of tests/parallel and tests/adapters becomes one item for each number of ranks. Files of one folder with the same
number of ranks and the same ENVIRONMENT share a job, because importing the frameworks takes seconds. If a file fails, its job
ends, and the files after it get a new job. support/in_step.py is the program of the children.

A file may declare

    RANKS = (2, 3)                     the numbers of ranks it runs with
    MORE_RANKS = (1, 4)                further numbers of ranks, as tests marked slow
    DEADLINE = 900.0                   seconds for the whole file
    WATCHDOG = 300.0                   seconds for one test
    ENVIRONMENT = {"NAME": "value"}    variables of its processes
    ALONE = True                       a job of its own: it leaves a broken engine behind, changes the process, measures memory
    SLOW = ("test_name", ...)          imported tests to mark as slow
    FRESH = True                       a job of its own with fresh processes, not forked from warm ones (support/warm.py)

A file's tests marked `slow` are a separate item, so that -m can select them.

A file of tests/gpu runs in several variants (support/gpu.py), and may declare

    ROUTES = ("nccl", "staged")        the routes between the ranks that it tests
    STAND_INS = ("fakes", "host")      the replacements for a GPU on which it can run; none by default
"""

import ast
import functools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import gpu, warm
from support.in_step import GRACE_SECONDS, RESULTS, result_file
from support.job import Job, JobResult

if TYPE_CHECKING:
    from support.hosts import EmulatedHosts

TESTS = Path(__file__).parents[1]
DEADLINE_SECONDS = 600.0
# For each folder, the RANKS and MORE_RANKS of files that do not declare them.
DEFAULT_RANKS = {"parallel": ((2, 3), (1, 4)), "adapters": ((2,), (3,)), "gpu": ((2,), (1, 3))}
DECLARATIONS = ("RANKS", "MORE_RANKS", "SLOW", "DEADLINE", "ENVIRONMENT", "ALONE", "FRESH", "ROUTES", "STAND_INS")
# A wait that spins takes the processor from the tests beside this job. With this setting it spins shortly, and then sleeps.
SPIN = {"HVDLITE_SPIN_US": "50"}
# What LLVM makes of a program is not hvdlite's, and takes most of each compilation by XLA. The versions that the Makefile pins
# know these options; XLA ends a process that has one it does not know.
XLA_OPTIONS = ("backend_optimization_level=0", "llvm_disable_expensive_passes=true", "cpu_use_fusion_emitters=false")
XLA = {"XLA_FLAGS": " ".join(f"--xla_{option}" for option in XLA_OPTIONS)}
TAIL_LINES = {"failed": 150, "other": 60}
FRAMES_OF_PYTEST = ("site-packages/_pytest/", "site-packages/pluggy/")  # left out of reports: dozens in each stack


@functools.cache  # each of thousands of tests asks
def is_parallel(path: Path) -> bool:
    """Does this test file run under mpirun?"""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in DEFAULT_RANKS


def company_of(node: str, root: Path) -> str:
    """A text that is equal for tests that must stay together: those of a file, or of the files that may share a job."""
    file, _, name = node.partition("::")
    path = root / file
    if not is_parallel(path):
        return file
    declared = _declarations(_with_shared_tests(path))
    place = path if declared.get("ALONE") or declared.get("FRESH") else path.parent
    return "::".join([str(place), name, *sorted(f"{key}={value}" for key, value in declared.get("ENVIRONMENT", {}).items())])


class ParallelFile(pytest.File):
    """A file of parallel tests. This process reads the file but does not import it."""

    def collect(self) -> Iterator["ParallelItem"]:
        tree = _with_shared_tests(self.path)
        declared = _declarations(tree)
        folder = self.path.relative_to(TESTS).parts[0]
        usual = (declared["RANKS"], ()) if "RANKS" in declared else DEFAULT_RANKS[folder]
        ranks, more = usual[0], declared.get("MORE_RANKS", usual[1])
        tests = _test_names(tree, declared.get("SLOW", ()))
        wanted = self.config.getoption("--ranks")
        for n in [*ranks, *more]:
            if wanted and n not in wanted:
                continue
            for variant in self._variants(declared, n, n == ranks[0]) if folder == "gpu" else [gpu.Variant()]:
                for slow, names in tests.items():
                    item = self._item(n, variant, slow, names, declared)
                    if slow or n in more:
                        item.add_marker("slow")
                    yield item

    def _variants(self, declared: Mapping[str, Any], ranks: int, first: bool) -> list[gpu.Variant]:
        wanted = self.config.getoption("--routes")
        routes = tuple(route for route in declared.get("ROUTES", gpu.ROUTES) if route in wanted)
        return list(gpu.variants(ranks, routes, declared.get("STAND_INS", ()), first))

    def _item(
        self, ranks: int, variant: gpu.Variant, slow: bool, names: set[str], declared: Mapping[str, Any]
    ) -> "ParallelItem":
        words = [f"ranks={ranks}", *filter(None, [variant.label, "slow" if slow else ""])]
        item = ParallelItem.from_parent(self, name=", ".join(words))
        item.ranks = ranks
        item.slow = slow
        item.deadline = declared.get("DEADLINE", DEADLINE_SECONDS)
        item.environment = {**declared.get("ENVIRONMENT", {}), **variant.environment}
        item.fresh = declared.get("FRESH", False)
        item.impossible = variant.impossible
        for marker in variant.markers:
            item.add_marker(marker)
        # With these, -k with the name of a test selects its file. The children get the expression as well.
        item.extra_keyword_matches.update(names)
        return item


@functools.cache
def _with_shared_tests(path: Path) -> ast.Module:
    """The syntax tree of a file, after the statements of the modules beside it from which it imports a star: these modules have
    tests that several files share.
    """
    tree = ast.parse(path.read_text())
    shared = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    bodies = [ast.parse(path.with_name(f"{module}.py").read_text()).body for module in shared]
    return ast.Module([statement for body in [*bodies, tree.body] for statement in body], [])


def _declarations(tree: ast.Module) -> dict[str, Any]:
    """The values of those DECLARATIONS that the file sets at its top level."""
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in DECLARATIONS:
            found[target.id] = ast.literal_eval(node.value)
    return found


def _test_names(tree: ast.Module, declared_slow: Sequence[str]) -> dict[bool, set[str]]:
    """The names of the tests that are not slow (False) and of the slow ones (True). A test with both kinds of parameters is in
    both sets.
    """
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    assigned = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    all_slow = any(_mentions_slow(value) for value in assigned)
    fast = {test.name for test in tests if not all_slow and not any(_is_slow(mark) for mark in test.decorator_list)}
    fast -= set(declared_slow)
    slow = {test.name for test in tests if all_slow or any(_mentions_slow(mark) for mark in test.decorator_list)}
    slow |= set(declared_slow)
    # A file without tests, or one that skips itself, is started nevertheless, and reports that.
    return {False: fast, True: slow} if fast and slow else {True: slow} if slow else {False: fast}


def _is_slow(mark: ast.expr) -> bool:
    return ast.unparse(mark) == "pytest.mark.slow"


def _mentions_slow(marks: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and _is_slow(node) for node in ast.walk(marks))


class ParallelItem(pytest.Item):
    """One file with one number of ranks."""

    ranks = 1
    slow = False  # does it run the file's slow tests, or the others?
    deadline = DEADLINE_SECONDS
    environment: Mapping[str, str] = {}
    fresh = False
    impossible: str | None = None  # the reason why it cannot run on this machine
    company: "Company"  # the files that may share its job

    @property
    def frameworks(self) -> Set[str]:
        """The frameworks that the file imports. Only the worker that starts the job asks."""
        return warm.frameworks_of(warm.imports_of(_with_shared_tests(self.path)), self.environment)

    def runtest(self) -> None:
        if self.impossible is not None:
            pytest.skip(self.impossible)
        skipped = self.company.run(self)
        if skipped is not None:
            pytest.skip(skipped)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ChildrenFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.name} with {self.ranks} ranks{', slow tests' if self.slow else ''}"


def share_jobs(session: pytest.Session) -> None:
    """Moves the selected items that may share a job together, to the place of the first of them."""
    together: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        together.setdefault(company_of(item.nodeid, session.config.rootpath), []).append(item)
    for items in together.values():
        if isinstance(items[0], ParallelItem):
            company = Company(items, session.config.getoption("keyword"))
            session.config.add_cleanup(company.end)
            for item in items:
                item.company = company
    session.items[:] = [item for items in together.values() for item in items]


class Company:
    """Items that share jobs. The first item starts a job for all of them, and after a failure the next item starts a job for
    the rest.
    """

    def __init__(self, items: Sequence[ParallelItem], keyword: str) -> None:
        self._waiting = list(items)
        self._keyword = ["-k", keyword] if keyword else []
        self._run: Run | None = None

    def run(self, item: ParallelItem) -> str | None:
        """Waits for an item's end. Returns the reasons if all of its tests were skipped, otherwise None.

        Raises:
            ChildrenFailed: a test failed.
        """
        if self._run is None or self._run.over:
            items = [item, *(other for other in self._waiting if other is not item)]
            options = ["-m", "slow" if item.slow else "not slow", *self._keyword]
            frameworks = None if item.fresh else frozenset().union(*(each.frameworks for each in items))
            self._run = Run([each.path for each in items], item.ranks, options, item.environment, frameworks=frameworks)
        self._waiting.remove(item)
        return self._run.verdict(item.path, item.deadline)

    def end(self) -> None:
        """Ends a job that has files left, because pytest stops early."""
        if self._run is not None:
            self._run.end()


class ChildrenFailed(Exception):
    """A job failed. The text is its report."""


class Run:
    """One job that runs test files one after the other, on all its ranks."""

    def __init__(
        self,
        files: Sequence[Path],
        ranks: int,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        hosts: "EmulatedHosts | None" = None,
        mpirun_args: Sequence[str] = (),
        frameworks: Set[str] | None = None,
    ) -> None:
        self.over = False
        self._files = list(files)
        self._ranks = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="hvdlite-test-"))
        arguments = ["-m", "pytest", *map(str, files), "-p", "no:cacheprovider", "-n", "0", "-q", "--tb=short", "-rs"]
        # What native code prints, such as its stack after a crash, goes to the rank's file at once. If a test file cannot be
        # imported, the others run nevertheless.
        arguments += ["--capture=sys", "--continue-on-collection-errors", "--rootdir", str(TESTS.parent), *options]
        changes = {**SPIN, **XLA, **(environment or {}), RESULTS: str(self._folder)}
        self._job = Job(arguments, ranks, self._folder, changes, mpirun_args, hosts, frameworks)

    def verdict(self, file: Path, deadline: float) -> str | None:
        """Waits for a file's end, at most `deadline` seconds. Returns the reasons if all of its tests were skipped, otherwise
        None.

        Raises:
            ChildrenFailed: a test failed, or the ranks ended or hang.
        """
        place = self._files.index(file)
        in_time = self._job.wait(deadline, until=lambda: all(self._results(place).values()))
        results = self._results(place)
        good = all(result and not result["failed"] for result in results.values())
        goes_on = all(result and not result["ends_job"] for result in results.values()) and file != self._files[-1]
        if goes_on:
            job = self._job.result()
        else:
            in_time = in_time and self._job.wait(deadline if good else 2 * GRACE_SECONDS)
            job = self.end(timed_out=not in_time)
        # A program whose engine has failed ends with exit code 1.
        ends = (0, 1, None) if any(result.get("broken") for result in results.values()) else (0, None)
        if not good or job.returncode not in ends:
            raise ChildrenFailed(_report(job, results))
        if any(result["passed"] for result in results.values()):
            return None
        return "; ".join(sorted({reason for result in results.values() for reason in result["skipped"]})) or "no tests"

    def _results(self, place: int) -> dict[int, dict[str, Any]]:
        """Each rank's result of a file; empty before the file's end."""
        files = {rank: result_file(self._folder, rank, place) for rank in range(self._ranks)}
        return {rank: json.loads(file.read_text()) if file.exists() else {} for rank, file in files.items()}

    def end(self, timed_out: bool = False) -> JobResult | None:
        """Ends the job and returns its result; returns None if the job was ended before."""
        if self.over:
            return None
        self.over = True
        try:
            return self._job.end(timed_out)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def run_in_step(files: Sequence[Path], ranks: int, deadline: float, hosts: "EmulatedHosts", mpirun_args: Sequence[str]) -> None:
    """Runs test files as one job on emulated hosts. Skips the test if all tests of a file were skipped.

    Args:
        files: the test files.
        ranks: the number of ranks of the job.
        deadline: the most seconds for each file.
        hosts: the emulated hosts.
        mpirun_args: arguments of mpirun, after ``-n``.

    Raises:
        ChildrenFailed: a test failed, or the ranks ended or hang.
    """
    run = Run(files, ranks, hosts=hosts, mpirun_args=mpirun_args)
    try:
        skipped = [run.verdict(file, deadline) for file in files]
    finally:
        run.end()
    if any(skipped):
        pytest.skip("; ".join(filter(None, skipped)))


def _report(job: JobResult, results: dict[int, dict[str, Any]]) -> str:
    """The output of all ranks. The rank that most likely failed first comes first."""
    state = "goes on" if job.returncode is None else f"ended with {job.returncode}"
    lines = [f"mpirun {state} after {job.seconds:.1f} s{' (deadline)' if job.timed_out else ''}"]
    order = sorted(results, key=lambda rank: _suspicion(results[rank], job.stderr.get(rank, "")))
    for place, rank in enumerate(order):
        result = results[rank]
        state = f"failed: {', '.join(result['failed']) or 'nothing'}" if result else "ended early"
        keep = TAIL_LINES["failed"] if place == 0 else TAIL_LINES["other"]
        text = (job.stdout.get(rank, "") + job.stderr.get(rank, "")).splitlines()
        told = [line for line in text if not any(frame in line for frame in FRAMES_OF_PYTEST)]
        lines += [f"=== rank {rank} of {len(results)}, {state}", *told[-keep:]]
    return "\n".join([*lines, "=== mpirun", *job.launcher.splitlines()[-TAIL_LINES["other"] :]])


def _suspicion(result: dict[str, Any], stderr: str) -> int:
    """A number that is smaller the more likely a rank has failed first: 0 for a crash, then a failed test, a watchdog's dump,
    an early end, and 4 for success.
    """
    if result:
        return 1 if result["failed"] else 4
    return 0 if "Fatal Python error" in stderr else 1 if " failed:\n" in stderr else 2 if "Timeout (" in stderr else 3
