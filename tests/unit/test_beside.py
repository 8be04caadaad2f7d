"""Parallel files beside the tests of one process: both run at the same time, and what comes of one is known to the other."""

import os

import pytest
from support.limits import eventually
from support.small_suite import run_files

__all__ = ["run_files"]

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="files run in turn on one processor")

MEET = """
import time
from pathlib import Path
HERE, THERE = (Path(__file__).parents[1] / name for name in ("{here}", "{there}"))
def meet():
    HERE.touch()
    end = time.monotonic() + 50
    while not THERE.exists():
        assert time.monotonic() < end, "nobody came"
        time.sleep(0.02)
"""
PASSES = "def test_it():\n    pass\n"


def test_a_job_and_the_tests_of_one_process_run_at_the_same_time(run_files):
    job = "WATCHDOG = 60.0\n" + MEET.format(here="job", there="process") + "def test_met():\n    meet()\n"
    process = MEET.format(here="process", there="job") + "def test_met():\n    meet()\n"
    code, text = run_files({"job": job}, "-vv", unit={"process": process})
    assert code == 0, text
    assert text.index("test_process.py::test_met PASSED") < text.index("test_job.py::ranks=2 PASSED")


def test_what_measures_comes_last_and_has_the_machine_for_itself(run_files):
    measures = """
        import pytest
        @pytest.mark.measures
        def test_alone():
            pass
        def test_other():
            pass
    """
    code, text = run_files({"job": PASSES}, "-vv", unit={"a": measures})
    assert code == 0, text
    places = [text.index(name) for name in ("test_a.py::test_other", "test_job.py::ranks=2", "test_a.py::test_alone")]
    assert places == sorted(places)


def test_in_turn_the_order_is_that_of_the_files(run_files):
    code, text = run_files({"job": PASSES}, "-vv", "--in-turn", unit={"a": PASSES})
    assert code == 0, text
    assert text.index("test_job.py::ranks=2") < text.index("test_a.py::test_it")


def test_failures_skips_and_times_are_those_of_the_job(run_files):
    jobs = {
        "bad": "def test_bad():\n    time.sleep(1.5)\n    assert RANK == 0, 'this is why'\n",
        "good": PASSES,
        "missing": "pytest.skip('no framework here', allow_module_level=True)",
    }
    code, text = run_files(jobs, "-vv", "--durations=1", "-k", "bad or good or missing or process", unit={"process": PASSES})
    assert code == 1, text
    assert "1 failed, 2 passed, 1 skipped" in text
    assert "=== rank 1 of 2, failed: test_bad (call)" in text
    assert "this is why" in text
    assert "no framework here" in text
    slowest = next(line for line in text.splitlines() if " call " in line)
    assert "test_bad.py" in slowest
    assert float(slowest.split("s ")[0]) > 1.5


def test_where_pytest_stops_early_the_job_ends(run_files, tmp_path):
    says_and_stays = """
        from pathlib import Path
        def test_stays():
            (Path(__file__).parents[1] / "job").write_text(str(os.getpid()))
            time.sleep(600)
    """
    process = MEET.format(here="process", there="job") + "def test_fails():\n    meet()\n    assert False\n"
    code, text = run_files({"job": says_and_stays}, "-x", unit={"process": process})
    assert code == 1
    assert "1 failed" in text
    pid = int((tmp_path / "tests" / "job").read_text())
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_second_pytest_that_dies_is_a_failure(run_files):
    kills = """
        import os, signal
        from pathlib import Path
        def test_kills():
            children = [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
            assert len(children) == 1
            os.kill(children[0], signal.SIGKILL)
    """
    code, text = run_files({"job": "WATCHDOG = 60.0\ndef test_stays():\n    time.sleep(10)\n"}, unit={"kills": kills})
    assert code == 1, text
    assert "the second pytest ended with -9" in text
    assert "1 failed, 1 passed" in text
