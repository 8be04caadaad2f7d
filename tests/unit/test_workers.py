"""Several pytests share a run: both kinds of tests go at the same time, and what must stay together does."""

import re
from types import SimpleNamespace

from support.parallel import TESTS, company_of
from support.small_suite import run_files
from support.workers import in_order_of_the_queue

__all__ = ["run_files"]

MEET = """
import time
from pathlib import Path
HERE, THERE = (Path(__file__).parents[1] / name for name in ("{here}", "{there}"))
def meet():
    HERE.touch()
    end = time.monotonic() + 100
    while not THERE.exists():
        assert time.monotonic() < end, "nobody came"
        time.sleep(0.02)
"""
PASSES = "def test_it():\n    pass\n"


def test_a_job_and_the_tests_of_one_process_run_at_the_same_time(run_files):
    job = "WATCHDOG = 120.0\n" + MEET.format(here="job", there="process") + "def test_met():\n    meet()\n"
    process = MEET.format(here="process", there="job") + "def test_met():\n    meet()\n"
    code, text = run_files({"job": job}, "-vv", unit={"process": process}, workers=2)
    assert code == 0, text
    assert re.search(r"\[gw0\].*PASSED tests/parallel/test_job.py::ranks=2", text), text
    assert re.search(r"\[gw1\].*PASSED tests/unit/test_process.py::test_met", text), text


def test_without_workers_the_order_is_that_of_the_files(run_files):
    code, text = run_files({"job": PASSES}, "-vv", unit={"a": PASSES})
    assert code == 0, text
    assert text.index("test_job.py::ranks=2") < text.index("test_a.py::test_it")


def test_failures_and_skips_are_shown_and_progress_and_processor_time_at_the_end(run_files):
    jobs = {
        "bad": "def test_bad():\n    assert RANK == 0, 'this is why'\n",
        "good": PASSES,
        "missing": "pytest.skip('no framework here', allow_module_level=True)",
    }
    code, text = run_files(jobs, unit={"a": PASSES}, workers=2)
    assert code == 1
    assert "1 failed, 2 passed, 1 skipped" in text
    assert "this is why" in text
    assert "no framework here" in text
    assert text.index(" tests/parallel/test_bad.py::ranks=2 (call)") < text.index("this is why")
    assert float(re.search(r"processor time: (\d+) s", text)[1]) >= 1


def test_the_files_of_a_job_stay_together():
    def company(name: str, ranks: int = 2) -> str:
        return company_of(f"tests/{name}::ranks={ranks}", TESTS.parent)

    assert company("adapters/torch/test_ops.py") == company("adapters/torch/test_state.py")
    assert company("adapters/torch/test_ops.py") != company("adapters/torch/test_ops.py", 3)
    assert company("adapters/tensorflow/test_tf_ops.py") != company("adapters/tensorflow/test_tf_bench.py"), "a job of its own"
    assert company("adapters/keras/test_keras_torch.py") != company("adapters/keras/test_keras_jax.py"), "other variables"
    assert company_of("tests/unit/test_a.py::test_b[x::y]", TESTS.parent) == "tests/unit/test_a.py"


def test_jobs_come_first_and_tests_that_wait_are_spread_over_the_others():
    names = [f"{folder}/test_{letter}.py" for folder in ("fault", "parallel", "unit") for letter in "abcd"]
    items = [SimpleNamespace(path=TESTS / name, number=number) for name in names for number in range(2)]
    queue = in_order_of_the_queue(items)
    assert [item.number for item in queue] == [0, 1] * 12
    folders = [item.path.parent.name for item in queue[::2]]
    assert folders == ["parallel"] * 4 + ["fault", "unit"] * 4
