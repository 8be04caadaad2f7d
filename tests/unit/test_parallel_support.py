"""The support for parallel tests itself: what it reports when ranks fail, crash, hang or disagree."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.job import job_environment, run_job

TESTS = Path(__file__).parents[1]
PREAMBLE = """
import os, time
import pytest
from mpi4py import MPI
RANK = MPI.COMM_WORLD.rank
RANKS = (2,)
WATCHDOG = 5.0
"""


@pytest.fixture
def run(tmp_path):
    """Runs a parallel test file with two ranks through a copy of the support; gives pytest's exit code and output."""
    shutil.copytree(TESTS / "support", tmp_path / "tests" / "support")
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "parallel").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")

    def run(text, *options):
        (tmp_path / "tests" / "parallel" / "test_it.py").write_text(PREAMBLE + textwrap.dedent(text))
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=job_environment(), timeout=300)
        return done.returncode, done.stdout

    return run


def test_success_is_one_item_per_number_of_ranks(run):
    code, text = run("RANKS = (1, 3)\ndef test_a():\n    assert RANK < 3\n", "-vv")
    assert code == 0, text
    assert "test_it.py::ranks=1 PASSED" in text
    assert "test_it.py::ranks=3 PASSED" in text
    code, text = run("RANKS = (1, 3)\ndef test_a():\n    pass\n", "-vv", "--ranks", "3")
    assert "1 passed" in text, text


def test_a_file_declares_variables_for_its_processes(run):
    code, text = run("""
        ENVIRONMENT = {"HVDTEST_DECLARED": "yes"}
        def test_a():
            assert os.environ["HVDTEST_DECLARED"] == "yes"
    """)
    assert code == 0, text


def test_a_failure_on_one_rank_stops_all_and_comes_first(run):
    code, text = run("""
        def test_a():
            print("printed by", RANK)
            assert RANK == 0, "only rank 0 is fine"
        def test_b():
            raise AssertionError("never reached")
    """)
    assert code == 1
    assert text.index("=== rank 1 of 2, failed: test_a (call)") < text.index("=== rank 0 of 2, failed: nothing")
    assert "only rank 0 is fine" in text
    assert "printed by 1" in text
    assert "test_a failed on ranks [1]" in text
    assert "never reached" not in text


def test_a_rank_that_waits_for_a_failed_one_is_not_waited_for_long(run):
    code, text = run("""
        WATCHDOG = 100.0
        def test_a():
            assert RANK == 0, "this is why"
            MPI.COMM_WORLD.Barrier()
    """)
    assert code == 1
    assert "this is why" in text
    assert text.index("this is why") < text.index("Timeout (0:00:08)!")


def test_a_hanging_test_shows_its_stack(run):
    code, text = run("""
        def test_a():
            if RANK == 1:
                time.sleep(600)
    """)
    assert code == 1
    assert "Timeout (0:00:05)!" in text
    assert "test_a" in text


def test_a_rank_that_dies_is_named(run):
    code, text = run("""
        def test_a():
            if RANK == 1:
                os._exit(7)
            time.sleep(0.5)
    """)
    assert code == 1
    assert "=== rank 1 of 2, ended early" in text
    assert "mpirun ended with" in text


def test_ranks_that_collect_different_tests_are_told(run):
    code, text = run("""
        @pytest.mark.parametrize("value", [RANK])
        def test_a(value):
            pass
    """)
    assert code == 1
    assert "the ranks collected different tests" in text


def test_an_import_error_is_reported(run):
    code, text = run("import no_such_module")
    assert code == 1
    assert "no_such_module" in text


def test_skipped_everywhere_is_skipped(run):
    code, text = run("pytest.skip('no framework here', allow_module_level=True)")
    assert code == 0
    assert "1 skipped" in text
    assert "no framework here" in text


def test_an_expression_selects_tests_inside_files(run):
    code, text = run("def test_a():\n    pass\ndef test_b():\n    raise AssertionError('b ran')\n", "-k", "test_a")
    assert code == 0, text
    assert "1 passed" in text


SLOW_AND_FAST = """
def test_fast():
    print("fast ran")
@pytest.mark.slow
def test_slow():
    raise AssertionError("slow ran")
@pytest.mark.parametrize("value", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_both(value):
    assert value == 1, "both ran"
"""


@pytest.mark.parametrize(
    ("selection", "items", "failures"),
    [
        (["-m", "not slow"], ["ranks=2 PASSED"], 0),
        (["-m", "slow"], ["ranks=2, slow FAILED"], 1),
        ([], ["ranks=2 PASSED", "ranks=2, slow FAILED"], 1),
        (["-k", "test_slow"], ["ranks=2, slow FAILED"], 1),
        (["-k", "test_both", "-m", "not slow"], ["ranks=2 PASSED"], 0),
    ],
)
def test_slow_tests_of_a_file_are_selected_by_themselves(run, selection, items, failures):
    code, text = run(SLOW_AND_FAST, "-vv", *selection)
    assert code == bool(failures), text
    results = [line.split("::")[1].split("  ")[0].rstrip() for line in text.splitlines() if "test_it.py::ranks" in line]
    assert results[: len(items)] == items, text
    if failures:
        assert ("slow ran" in text) != ("both ran" in text)  # the first failure ends the file


def test_a_file_of_slow_tests_only_is_not_started_for_others(run):
    code, text = run("pytestmark = pytest.mark.slow\ndef test_a():\n    raise AssertionError\n", "-m", "not slow")
    assert code == 5, text  # nothing was collected
    assert "1 deselected" in text


def test_a_job_has_output_by_rank_and_an_exit_code():
    job = run_job(
        """
        import sys
        from mpi4py import MPI
        print("out", MPI.COMM_WORLD.rank, sys.argv[1])
        print("err", MPI.COMM_WORLD.rank, file=sys.stderr)
        """,
        2,
        args=["x"],
    )
    assert job.returncode == 0, job.report()
    assert job.stdout == {0: "out 0 x\n", 1: "out 1 x\n"}
    assert job.stderr == {0: "err 0\n", 1: "err 1\n"}
    assert not job.timed_out


def test_a_job_that_hangs_is_killed_at_its_deadline():
    job = run_job("import time; print('here', flush=True); time.sleep(600)", 2, timeout=4)
    assert job.timed_out
    assert job.returncode != 0
    assert job.seconds < 60
