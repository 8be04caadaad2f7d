"""Runs a row's tests in the copy of the project, and reads from what pytest writes who noticed."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Verdict", "first_failure", "run_tests"]

MARK = "HVDTEST_MUTANT"  # in the environment of every process of a run, so that none outlives it
GRACE_SECONDS = 30.0  # for pytest to end its jobs, once it is interrupted
LONGEST_TEXT = 300
KILLED_BY_TIME = "nothing had ended at the deadline"
_RAISED = re.compile(r"^E   +(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """How a run of tests ended.

    Attributes:
        passed: did all pass? At least one ran.
        by: the test that failed first; "" if none did.
        error: the last line of its error.
        seconds: that the run took.
        tests: how many passed.
    """

    passed: bool
    by: str
    error: str
    seconds: float
    tests: int


def run_tests(tree: Path, tests: Sequence[str], deadline: float, log: Path) -> Verdict:
    """Runs them one after another, up to the first that fails, and ends whatever is left at the deadline.

    Args:
        tree: the root of the copy.
        tests: arguments for pytest.
        deadline: in seconds.
        log: gets what is written.
    """
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", *tests]
    environment = {
        **os.environ,
        MARK: mark,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH", "")])),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant and its original may have one size and one second
        "COLUMNS": "400",
    }
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            timed_out = _wait(process, deadline)
        finally:
            _end_all(mark)
    seconds = time.monotonic() - started
    text = log.read_text(errors="replace")
    by, error = first_failure(text)
    if timed_out:
        by, error = by or _under_way(text), error or f"{KILLED_BY_TIME} of {deadline:.0f} s"
    elif process.returncode < 0:
        error = f"pytest was ended by {signal.Signals(-process.returncode).name}; {error or _last_line(text)}"
        by = by or _under_way(text)
    elif process.returncode != 0 and not by:
        error = f"pytest ended with {process.returncode}: {_last_line(text)}"
    count = re.search(r"(\d+) passed", text)
    tests_passed = int(count.group(1)) if count else 0
    passed = process.returncode == 0 and not timed_out and tests_passed > 0
    if process.returncode == 0 and not passed and not error:
        error = f"no test ran: {_last_line(text)}"
    return Verdict(passed, by, error[:LONGEST_TEXT], seconds, tests_passed)


def _wait(process: "subprocess.Popen[bytes]", deadline: float) -> bool:
    """True if it had to be interrupted."""
    try:
        process.wait(deadline)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return True
    return False


def _end_all(mark: str) -> None:
    """Kills the processes of a run that are left."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # ended meanwhile, or another user's
            continue


def first_failure(text: str) -> tuple[str, str]:
    """The first failing test, in a job of several ranks with the test within, and the last line of its error."""
    summary = re.search(r"^(FAILED|ERROR) (\S+(?:\[.*?\])?(?:::ranks=[^-\n]*\S)?)(?: - (.*))?$", text, re.MULTILINE)
    if summary is None:
        return "", ""
    by, error, before = summary.group(2), summary.group(3) or "", text[: summary.start()]
    if "::ranks=" in by:  # what the ranks wrote comes first
        within, error = _failure_of_ranks(before, error)
        by += f" ({within})" if within else ""
    raised = _RAISED.findall(before)
    return by, error or (raised[-1] if raised else _last_line(before))


def _failure_of_ranks(report: str, summary: str) -> tuple[str, str]:
    """The same of the report of a job (support/parallel.py): a test that failed on a rank, or else in which one hung."""
    said = re.search(r"^(\S.*) \(\w+\) failed:$|^=== rank \d+ of \d+, failed: (?!nothing)([^,\n]+)", report, re.MULTILINE)
    if said is None:
        hung = re.search(r"\bin (test_\w+)$", report, re.MULTILINE)
        return (hung.group(1), f"{summary}; a rank hung there") if hung else ("", summary)
    raised = _RAISED.findall(report[said.start() :].split("\n=== ")[0])
    return said.group(1) or said.group(2), raised[-1] if raised else summary


def _under_way(text: str) -> str:
    """The file whose tests ran last."""
    found = re.findall(r"(tests/\S+\.py)", text)
    return found[-1] if found else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was written"
