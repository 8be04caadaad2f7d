"""Ranks that do not come, in real jobs side by side: what is said of them, and that processes that are stopped are told apart.

Who is named when, what excuses do, and that nothing is said where it is switched off is shown in virtual time (tests/sim).
Here each step waits for the one before it: what a rank waits for is read in what the other has written.
"""

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.job import JobResult, run_job

HEAD = """
    import os, signal, subprocess, sys, threading, time
    import numpy as np
    import hvdlite as hvd
    from mpi4py import MPI

    FOLDER = os.path.dirname(os.path.abspath(__file__))

    hvd.init()
    PIDS = hvd.allgather_object(os.getpid())
    MPI.COMM_WORLD.Barrier()  # if a rank comes to its first operation a second later than the others, that is a stall
    hvd.allreduce(np.full(4, hvd.rank()), name="warmup")

    def until_written(word, rank, stream):
        file = f"{FOLDER}/rank{rank}.{stream}"
        while word not in open(file).read():
            time.sleep(0.02)

    def report(call):
        try:
            call()
            print("done", flush=True)
        except hvd.HorovodInternalError as error:
            print(f"{type(error).__name__}: {error}", flush=True)

    def until_the_other_has_reported():
        until_written("gave up", 1 - hvd.rank(), "stdout")

    def let_this_thread_come_first():
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, {min(os.sched_getaffinity(thread))})
            if thread != os.getpid():
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def stop_until_the_other_has_reported():
        loop = f"until grep -q 'gave up' {FOLDER}/rank0.stdout; do sleep 0.1; done; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", loop])
        os.kill(os.getpid(), signal.SIGSTOP)
"""
LIMITS = {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"}

JOBS = {
    # A slow rank is warned of once and comes in the end.
    "slow": (
        """
        def evaluate_everything():
            until_written("stall: ", 0, "stderr")

        if hvd.rank() == 1:
            evaluate_everything()
        report(lambda: hvd.grouped_allreduce([np.ones(3)] * 200, name="gradients"))
        until_written("stall: ended after", 0, "stderr")
        """,
        {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_LOG_LEVEL": "info"},
    ),
    # One that does not is given up; it learns why.
    "late": (
        """
        def never_ending():
            until_written("gave up", 0, "stdout")

        if hvd.rank() == 1:
            never_ending()
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        until_the_other_has_reported()
        """,
        {name.replace("HVDLITE", "HOROVOD"): value for name, value in LIMITS.items()},
    ),
    # As it goes on, its caller comes first: before the thread that would tell it.
    "stopped": (
        """
        if hvd.rank() == 1:
            let_this_thread_come_first()
            stop_until_the_other_has_reported()
        else:
            while open(f"/proc/{PIDS[1]}/stat").read().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.02)
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        until_the_other_has_reported()
        """,
        LIMITS,
    ),
    # Stopped in the middle of an operation that all have agreed on, or, if it ends before the stop, of one after it.
    "middle": (
        """
        from hvdlite.runtime import RUNTIME

        large = [np.ones(1 << 22) for _ in range(4)]
        hvd.barrier()  # on a busy machine a rank may take a second to make them

        def stop_in_the_middle():
            while "moving data" not in RUNTIME.engine.flight_record():
                pass
            stop_until_the_other_has_reported()

        def go_on():
            while True:
                handles = [hvd.allreduce_async(array, name=f"large{i}") for i, array in enumerate(large)]
                for handle in handles:
                    hvd.synchronize(handle)

        if hvd.rank() == 1:
            threading.Thread(target=stop_in_the_middle).start()
        report(go_on)
        until_the_other_has_reported()
        """,
        LIMITS,
    ),
}


@pytest.fixture(scope="module")
def results() -> dict[str, JobResult]:
    """All jobs at once: they mostly sleep. Their processes are stopped, so they are fresh ones."""

    def run(item):
        name, (body, env) = item
        return name, run_job(textwrap.dedent(HEAD) + textwrap.dedent(body), 2, env=env, timeout=240, fresh=True)

    with ThreadPoolExecutor(len(JOBS)) as pool:
        return dict(pool.map(run, JOBS.items()))


def stalls(result: JobResult, operation: str) -> list[str]:
    lines = [line for text in result.stderr.values() for line in text.splitlines()]
    return [line for line in lines if "stall: " in line and operation in line]


WAITED = r"waited \d+(\.\d)? s for rank 1 \(host \S+, pid \d+\), which "


def test_a_slow_rank_is_named_with_its_line_and_its_coming_is_told(results):
    result = results["slow"]
    assert result.returncode == 0, result.report()
    warning, news = stalls(result, "gradients")
    assert re.search(r"WARN \[control rank 0/2\] stall: .* and 197 more operations have " + WAITED, warning)
    assert re.search(r", which has not submitted them: its main thread is at ", warning)
    assert re.search(r"script\.py:\d+ <module> > \S*script\.py:\d+ evaluate_everything > ", warning)
    assert re.search(r"INFO .* stall: ended after \d+(\.\d)? s: ", news), result.report()
    assert all("done" in result.stdout[rank] for rank in (0, 1))


GAVE_UP = r"PeerLostError: rank 0 \(host \S+, pid \d+\) gave up after 3\.0 s \(HVDLITE_STALL_SHUTDOWN_TIME_SECONDS\): "
OF_GRADIENT = r"allreduce of '\S*gradient' in process set 0.* (has|have) " + WAITED
OF_LARGE = r"allreduce of '\S*large\d+' in process set 0.* (has|have) " + WAITED


def causes(result: JobResult) -> list[str]:
    return [line for rank in (0, 1) for line in result.stdout[rank].splitlines() if "gave up" in line]


@pytest.mark.parametrize(
    ("job", "operation", "missing"),
    [
        (
            "late",
            "gradient",
            OF_GRADIENT + r"has not submitted it: .* never_ending",
        ),
        ("stopped", "gradient", OF_GRADIENT + r"does not answer: it is stopped"),
        ("middle", "large", OF_LARGE + r"does not answer: it is stopped"),
    ],
    ids=["late", "stopped", "middle"],
)
def test_a_rank_that_does_not_come_is_given_up_and_learns_why(results, job, operation, missing):
    result = results[job]
    assert not result.timed_out, result.report()
    warnings = stalls(result, operation)
    assert len(warnings) == 1, result.report()
    assert re.search("stall: " + missing + ".*all ranks give up after 3.0 s", warnings[0]), result.report()
    texts = causes(result)
    assert len(texts) == 2, result.report()
    assert texts[0] == texts[1]
    assert re.match(GAVE_UP + missing, texts[0]), result.report()
    assert "last operations of this rank" in result.stderr[0]
