"""Ranks forked from warm interpreters: they see what fresh processes see, and live and die as those do."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import warm
from support.job import CHILD, Job, job_environment, launcher_is_hydra, run_job
from support.limits import eventually

pytestmark = pytest.mark.skipif(launcher_is_hydra(), reason="MPICH's ranks are never forked from warm interpreters")

STATE = """
    import gc, json, os, pathlib, random, resource, signal, sys, threading
    status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    opened = {}
    for each in os.listdir("/proc/self/fd"):
        try:
            opened[each] = os.path.basename(os.readlink(f"/proc/self/fd/{each}").split(":")[0])
        except FileNotFoundError:  # that of the listing
            continue
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    variables.pop("HVDTEST_JOB")
    print(json.dumps({
        "arguments": sys.argv, "path": sys.path, "file": os.path.basename(__file__), "name": __name__,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "variables": variables, "names of MPI's": sorted(set(os.environ) - set(variables) - {"HVDTEST_JOB"}),
        "folder": os.getcwd(), "affinity": sorted(os.sched_getaffinity(0)), "umask": os.umask(0), "nice": os.nice(0),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "leads its group": os.getpgrp() == os.getpid(),
        # Signals 32 and 33 are the C library's own: whether they are ignored depends on what began the tests, and on whether
        # the library has needed them in one of the parents.
        "signals": {name: int(status[name], 16) & ~(3 << 31) for name in ("SigBlk", "SigIgn", "SigCgt")},
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "descriptors": {name: where for name, where in sorted(opened.items())},
        "threads": threading.active_count(), "main thread": threading.current_thread() is threading.main_thread(),
        "its id": threading.main_thread().native_id == os.getpid(),
        "flags": str(sys.flags).replace(f"hash_randomization={sys.flags.hash_randomization}", ""),
        "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
        "is root of imports": "support" in sys.modules,
    }))
"""


def test_a_warm_rank_sees_what_a_fresh_one_sees(tmp_path):
    limited = {"mpirun_args": ["--bind-to", "core"], "args": ["an argument"], "env": {"HVDLITE_LOG_LEVEL": "warning"}}
    before = os.umask(0o027)
    try:
        fresh, again, forked = (run_job(STATE, 2, fresh=fresh, **limited) for fresh in (True, True, False))
    finally:
        os.umask(before)
    for rank in (0, 1):
        states = [json.loads(job.stdout[rank]) for job in (fresh, again, forked)]
        for state in states:
            state["arguments"][0] = Path(state["arguments"][0]).name
            state["path"][0] = "the script's" if "hvdlite-job-" in state["path"][0] else state["path"][0]
        assert states[0] == states[1], "two fresh processes differ"
        assert states[2] == states[0]


def test_each_rank_draws_random_numbers_of_its_own():
    job = run_job(
        """
        import random, numpy, torch
        print(random.random(), numpy.random.random(), float(torch.rand(1)), [hash(text) for text in ("a", "b")])
        """,
        2,
    )
    drawn = [job.stdout[rank].split() for rank in (0, 1)]
    assert all(len(each) == 5 for each in drawn), job.report()
    assert not set(drawn[0]) & set(drawn[1]), "numbers or hashes that both ranks have"


def test_a_missing_broadcast_shows_in_a_forked_rank():
    job = run_job(
        """
        import numpy as np, torch
        import hvdlite.torch as hvd
        hvd.init()
        layer = torch.nn.Linear(3, 2)
        mean = hvd.allreduce(layer.weight.detach(), op=hvd.Average)
        print(bool(torch.allclose(mean, layer.weight)))
        hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
        mean = hvd.allreduce(layer.weight.detach(), op=hvd.Average)
        print(bool(torch.allclose(mean, layer.weight)))
        """,
        2,
    )
    for rank in (0, 1):
        assert job.stdout[rank].split() == ["False", "True"], job.report()


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "warm"])
def test_ends_are_those_of_the_process(fresh):
    """Its code, what atexit, finalizers and C write, and a traceback without a frame of ours at its end."""
    job = run_job(
        """
        import atexit, ctypes, os, weakref

        class Kept:
            def __del__(self, write=os.write):
                write(1, b"deleted\\n")

        kept = Kept()
        finalizer = weakref.finalize(Kept, print, "finalized", flush=True)
        atexit.register(print, "at exit", flush=True)
        library = ctypes.CDLL(None)
        library.fdopen.restype = ctypes.c_void_p
        library.fputs(b"buffered by C\\n", ctypes.c_void_p(library.fdopen(os.dup(1), b"w")))
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        print("rank", rank, flush=True)
        if rank == 1:
            raise SystemExit(7)
        """,
        2,
        fresh=fresh,
    )
    assert job.returncode == 7, job.report()
    for rank in (0, 1):
        said = [f"rank {rank}", "at exit", "finalized", "deleted", "buffered by C"]
        assert job.stdout[rank].splitlines() == said, job.report()
    job = run_job("def named():\n    raise ValueError('the reason')\nnamed()\n", 1, fresh=fresh)
    assert job.returncode == 1, job.report()
    assert job.stderr[0].endswith("in named\n    raise ValueError('the reason')\nValueError: the reason\n"), job.report()


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "warm"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_signal_that_ends_a_rank_is_the_stubs_end(fresh, number):
    job = run_job(f"import os\nos.kill(os.getpid(), {int(number)})\n", 1, fresh=fresh)
    assert job.returncode == 128 + number, job.report()


WAITS = """
    import os, pathlib, signal, sys
    signal.signal(signal.SIGUSR1, lambda number, frame: (print("was told", flush=True), os._exit(0)))
    pathlib.Path(sys.argv[1]).touch()
    while True:
        signal.pause()
"""


@contextmanager
def waiting(folder: Path) -> Iterator[tuple[Job, int, dict[str, list[int]]]]:
    """A warm rank that waits: its job, its process id, and those of its parents by their part."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(WAITS))
    job = Job([str(program), str(folder / "begun")], 1, folder, frameworks=set())
    begun = [folder / "begun", folder / "rank0.pid"]  # written by the rank and its stub, in either order
    try:
        assert job.wait(60, until=lambda: all(file.exists() for file in begun)), job.result().report()
        rank = int(begun[1].read_text())
        running = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in job.running()}
        parts = {
            "stub": [
                pid for pid, words in running.items() if words[0] == sys.executable and str(CHILD) in words and pid != rank
            ],
            "mpirun": [pid for pid, words in running.items() if Path(words[0]).name in ("mpirun", "prterun", "prted")],
            "zygote": [int(Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[1])],
        }
        yield job, rank, parts
    finally:
        job.end()


def test_a_signal_to_what_mpirun_knows_reaches_the_rank(tmp_path):
    with waiting(tmp_path) as (job, _, parts):
        (stub,) = parts["stub"]
        os.kill(stub, signal.SIGUSR1)
        assert job.wait(60)
        assert (job.result().stdout[0], job.result().returncode) == ("was told\n", 0), job.result().report()


@pytest.mark.parametrize("victim", ["stub", "mpirun", "zygote"])
def test_a_rank_does_not_outlive(victim, tmp_path, monkeypatch):
    (tmp_path / "owner").write_text(str(os.getpid()))
    monkeypatch.setenv(warm.NURSERY, str(tmp_path))  # the zygote that dies is this test's
    with waiting(tmp_path) as (job, rank, parts):
        assert rank in job.running()
        assert parts[victim]
        for pid in parts[victim]:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: rank not in job.running()), f"rank {rank} lives on: {job.result().report()}"


def test_zygotes_end_with_the_pytest_that_was_first(tmp_path):
    program = textwrap.dedent(f"""
        import argparse, os, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from support import warm
        from support.job import job_environment
        warm.open_nursery(argparse.Namespace(add_cleanup=lambda function: None))
        print(*warm.zygotes([], job_environment()))
        os._exit(0)
    """)
    variables = {name: value for name, value in os.environ.items() if name != warm.NURSERY}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=120, check=True
    )
    sockets = done.stdout.split()
    assert len(sockets) == len(warm.HASH_SEEDS)
    assert eventually(lambda: not _with_words(sockets)), _with_words(sockets)


def _with_words(words: list[str]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            found += [int(entry.name)] * bool(set(words) & set(command))
    return found


def test_what_cannot_be_imported_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "ALWAYS", ("no_such_module",))
    with pytest.raises(RuntimeError, match=r"(?s)did not start:.*No module named 'no_such_module'"):
        warm.zygotes([], job_environment())


def test_ranks_are_fresh_where_imports_leave_threads(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (tmp_path / "owner").write_text(str(os.getpid()))
    monkeypatch.setenv(warm.NURSERY, str(tmp_path))
    monkeypatch.setattr(warm, "ALWAYS", ("threaded",))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        job = run_job("import sys\nprint('threaded' in sys.modules)\n", 1)
        assert (job.stdout[0], job.returncode) == ("False\n", 0), job.report()
    (reason,) = warm.refusals()
    assert reason.startswith("importing threaded leaves 2 threads ("), reason


def test_a_framework_that_is_not_installed_is_not_imported(monkeypatch):
    monkeypatch.setattr(warm, "FRAMEWORKS", (*warm.FRAMEWORKS, "no_such_framework"))
    assert warm.zygotes(["no_such_framework"], job_environment()) == warm.zygotes([], job_environment())


def test_variables_that_act_at_import_have_zygotes_of_their_own():
    usual = job_environment()
    assert warm.zygotes([], {**usual, "HVDLITE_CYCLE_TIME": "3"}) == warm.zygotes([], {**usual, "HVDTEST_RESULTS": "there"})
    assert warm.zygotes([], {**usual, "TF2_BEHAVIOR": "1"}) == warm.zygotes([], usual), "TensorFlow sets it itself"
    assert warm.zygotes([], {**usual, "KERAS_BACKEND": "torch"}) == warm.zygotes([], usual), "its ranks import Keras themselves"
    assert not set(warm.zygotes([], {**usual, "LC_ALL": "C.UTF-8"})) & set(warm.zygotes([], usual))
