"""The support for parallel tests itself: what it reports when ranks fail, crash, hang or disagree."""

import textwrap

import pytest
from support.job import launcher_is_hydra, run_job
from support.small_suite import run, run_files

__all__ = ["run", "run_files"]


def test_success_is_one_item_per_number_of_ranks(run):
    code, text = run("RANKS = (1, 3)\ndef test_a():\n    assert RANK < 3\n", "-vv")
    assert code == 0, text
    assert "test_it.py::ranks=1 PASSED" in text
    assert "test_it.py::ranks=3 PASSED" in text
    code, text = run("RANKS = (1, 3)\ndef test_a():\n    pass\n", "-vv", "--ranks", "3")
    assert "1 passed" in text, text


def test_tests_of_a_module_beside_the_file_are_known_by_name(run, tmp_path):
    (tmp_path / "tests" / "parallel" / "shared.py").write_text("def test_shared():\n    assert True\n")
    code, text = run("from shared import *\n", "-k", "test_shared")
    assert (code, "1 passed" in text) == (0, True), text
    code, text = run("from shared import *\n", "-k", "test_other")
    assert "deselected" in text, text


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


@pytest.mark.slow
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
        WATCHDOG = 5.0
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


def test_a_crash_comes_first_with_its_stacks_and_without_frames_of_pytest(run):
    """The other rank is killed. The stack in native code is Open MPI's; other MPIs print none."""
    code, text = run("""
        import ctypes
        def test_a():
            if RANK == 1:
                ctypes.string_at(8)
            time.sleep(600)
    """)
    assert code == 1
    report = text[text.index("=== rank 1 of 2, ended early") : text.index("=== rank 0 of 2, ended early")]
    assert "Fatal Python error: Segmentation fault" in report
    assert 'test_it.py", line' in report
    assert "_pytest/" not in report
    assert launcher_is_hydra() or "Process received signal" in report, text


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
        ([], ["ranks=2 PASSED", "ranks=2, slow FAILED"], 1),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (["-m", "not slow"], ["ranks=2 PASSED"], 0),
                (["-m", "slow"], ["ranks=2, slow FAILED"], 1),
                (["-k", "test_slow"], ["ranks=2, slow FAILED"], 1),
                (["-k", "test_both", "-m", "not slow"], ["ranks=2 PASSED"], 0),
            )
        ),
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


@pytest.mark.slow
def test_random_numbers_that_nobody_seeds_differ_between_ranks(run):
    pytest.importorskip("torch")
    code, text = run("""
        import numpy, random, torch
        def test_a():
            drawn = [random.random(), numpy.random.random(), float(torch.rand(1))]
            first, second = MPI.COMM_WORLD.allgather(drawn)
            assert not set(first) & set(second)
    """)
    assert code == 0, text


def test_more_ranks_and_tests_that_a_file_declares_slow_are_slow(run):
    declared = 'RANKS = (2,)\nMORE_RANKS = (3,)\nSLOW = ("test_slow",)\n'
    tests = "def test_fast():\n    assert RANK < 0, 'fast ran'\ndef test_slow():\n    assert RANK < 0, 'slow ran'\n"
    code, text = run(declared + tests, "-vv", "-m", "not slow")
    assert code == 1
    assert "1 failed, 3 deselected" in text
    assert "fast ran" in text
    assert "slow ran" not in text
    code, text = run(declared + tests, "-vv", "-m", "slow")
    assert [f"::ranks={name} FAILED" in text for name in ("2, slow", "3", "3, slow")] == [True] * 3, text
    assert "slow ran" in text


# --- files that share a job ---------------------------------------------------------------------------------------------

SAYS_WHERE = """
from pathlib import Path
def test_where():
    if RANK == 0:
        log = Path(__file__).with_name("log")
        log.write_text(log.read_text() + f"{Path(__file__).stem} {os.getpid()} {os.environ.get('WORD')}\\n")
"""


@pytest.fixture
def log(tmp_path):
    """Reads what files with SAYS_WHERE wrote: the process and the variable by file."""
    file = tmp_path / "tests" / "parallel" / "log"

    def read():
        lines = [line.split() for line in file.read_text().splitlines()]
        assert len({name for name, _, _ in lines}) == len(lines), f"a file ran twice: {lines}"
        return {name.removeprefix("test_"): (pid, word) for name, pid, word in lines}

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    return read


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_files_share_a_job_with_their_like(run_files, log, workers):
    declared = {
        "a": "",
        "alone": "ALONE = True",
        "b": "",
        "hot": "ENVIRONMENT = {'WORD': 'hot'}",
        "three": "RANKS = (3,)",
        "warm": "ENVIRONMENT = {'WORD': 'hot'}",
        "z": "DEADLINE = 900.0",
    }
    code, text = run_files({name: line + SAYS_WHERE for name, line in declared.items()}, "-vv", workers=workers)
    assert code == 0, text
    assert "7 passed" in text
    pids = {name: pid for name, (pid, _) in log().items()}
    assert pids["a"] == pids["b"] == pids["z"]
    assert pids["hot"] == pids["warm"]
    assert len(set(pids.values())) == 4
    assert {name for name, (_, word) in log().items() if word == "hot"} == {"hot", "warm"}
    # Those that share a job are shown one after another.
    assert [name for name in declared if text.index(f"test_{name}.py") < text.index("test_alone.py")] == ["a", "b", "z"]


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("assert RANK == 0, 'this is why'", "this is why"),
        ("os._exit(7) if RANK == 1 else time.sleep(600)", "=== rank 1 of 2, ended early"),
        pytest.param("time.sleep(600)\nWATCHDOG = 5.0", "Timeout (0:00:05)!", marks=pytest.mark.slow),
    ],
    ids=["fails", "dies", "hangs"],
)
def test_a_failure_is_its_own_files_only(run_files, log, test, said):
    bad = f"def test_bad():\n    {test}\n"
    code, text = run_files({"a": SAYS_WHERE, "b": bad, "c": SAYS_WHERE, "d": SAYS_WHERE}, "-vv")
    assert code == 1
    assert "test_b.py::ranks=2 FAILED" in text
    assert "1 failed, 3 passed" in text
    assert said in text
    where = log()
    assert where["a"] != where["c"]
    assert where["c"] == where["d"]


def test_a_file_that_cannot_be_imported_is_not_in_the_way(run_files, log):
    texts = {
        "a": SAYS_WHERE,
        "b": "import no_such_module",
        "c": SAYS_WHERE,
        "d": "pytest.skip('not here', allow_module_level=True)",
    }
    code, text = run_files(texts, "-vv")
    assert code == 1
    assert "test_b.py::ranks=2 FAILED" in text
    assert "no_such_module" in text
    assert "not here" in text
    assert "1 failed, 2 passed, 1 skipped" in text
    assert set(log()) == {"a", "c"}


def test_after_a_first_failure_nothing_is_started(run_files, log):
    code, text = run_files({"a": "def test_a():\n    assert False\n", "b": SAYS_WHERE}, "-x")
    assert code == 1, text
    assert log() == {}


def test_an_expression_selects_files_of_a_job(run_files, log):
    code, text = run_files({"a": SAYS_WHERE, "b": "def test_b():\n    pass\n", "c": SAYS_WHERE}, "-k", "test_where")
    assert code == 0, text
    assert "2 passed, 1 deselected" in text
    assert len(set(log().values())) == 1


@pytest.mark.slow
def test_what_a_file_leaves_behind_is_its_failure(run_files):
    leaves = """
        def test_a():
            os.environ["HVDLITE_LEFT"] = "1"
            os.chdir("/")
    """
    code, text = run_files({"a": leaves, "b": "def test_b():\n    pass\n"}, "-vv")
    assert code == 1
    assert "test_a.py (end) failed:\nit leaves behind: the knobs in the environment was [" in text
    assert "; the working directory was '" in text
    assert "test_b.py::ranks=2 PASSED" in text


@pytest.mark.slow
def test_a_broken_engine_needs_a_job_of_its_own(run_files):
    breaks = """
        def test_breaks(hvd):
            import hvdlite
            hvdlite.runtime.RUNTIME.engine.publish_failure("broken on purpose")
    """
    code, text = run_files({"a": breaks, "b": "ALONE = True\n" + textwrap.dedent(breaks)}, "-vv")
    assert code == 1
    assert "it leaves behind: a broken engine (" in text
    assert "test_b.py::ranks=2 PASSED" in text


@pytest.mark.slow
def test_each_file_begins_with_a_new_engine(run_files):
    first = """
        import numpy as np
        import hvdlite
        def test_unequal_numbers_of_unnamed_operations():
            hvdlite.init()
            hvdlite.add_process_set([0])
            if RANK == 0:
                hvdlite.poll(hvdlite.allreduce_async(np.ones(1)))
    """
    second = """
        import numpy as np
        def test_it_is_new(hvd):
            assert hvd.runtime.RUNTIME.engine.process_set_ids() == [0]
            assert hvd.allreduce(np.ones(1) * RANK, op=hvd.Sum) == 1
    """
    code, text = run_files({"a": first, "b": second})
    assert code == 0, text


# --- jobs ----------------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_a_job_that_hangs_is_killed_at_its_deadline():
    job = run_job("import time; print('here', flush=True); time.sleep(600)", 2, timeout=4)
    assert job.timed_out
    assert job.returncode != 0
