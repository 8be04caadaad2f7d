"""Runs some test files with a copy of the support for parallel files, for tests of this support."""

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.job import job_environment
from support.warm import NURSERY

TESTS = Path(__file__).parents[1]
PREAMBLE = """
import os, time
import pytest
from mpi4py import MPI
RANK = MPI.COMM_WORLD.rank
RANKS = (2,)
"""


@pytest.fixture
def run_files(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """A function that runs parallel test files with two ranks and test files of one process. It returns pytest's exit code and
    output.
    """
    shutil.copytree(TESTS / "support", tmp_path / "tests" / "support")
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "parallel").mkdir()
    (tmp_path / "tests" / "unit").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n  slow:\n")

    def run_files(
        texts: Mapping[str, str], *options: str, unit: Mapping[str, str] | None = None, workers: int = 0
    ) -> tuple[int, str]:
        for name, text in texts.items():
            (tmp_path / "tests" / "parallel" / f"test_{name}.py").write_text(PREAMBLE + textwrap.dedent(text))
        for name, text in (unit or {}).items():
            (tmp_path / "tests" / "unit" / f"test_{name}.py").write_text(textwrap.dedent(text))
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-n", str(workers), *options]
        environment = job_environment()
        if workers:  # this makes it the first pytest of a run, which ends its zygotes
            del environment[NURSERY]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
        return done.returncode, done.stdout

    return run_files


@pytest.fixture
def run(run_files: Callable[..., tuple[int, str]]) -> Callable[..., tuple[int, str]]:
    """A function that runs one parallel test file."""
    return lambda text, *options: run_files({"it": text}, *options)
