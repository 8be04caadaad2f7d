"""Ranks that do not come: what the others say of them and when they give up, in real jobs that wait side by side."""

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.job import JobResult, run_job

HEAD = """
    import os, signal, subprocess, sys, threading, time
    import numpy as np
    import hvdlite as hvd

    hvd.init()
    hvd.allreduce(np.full(4, hvd.rank()), name="warmup")

    def report(call):
        try:
            call()
            print("done", flush=True)
        except hvd.HorovodInternalError as error:
            print(f"{type(error).__name__}: {error}", flush=True)

    def let_this_thread_come_first():
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, {min(os.sched_getaffinity(thread))})
            if thread != os.getpid():
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def go_on_in(seconds):
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])

    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)
"""

JOBS = {
    # A slow rank is warned of once and comes in the end.
    "slow": (
        """
        def evaluate_everything():
            time.sleep(4)

        if hvd.rank() == 1:
            evaluate_everything()
        report(lambda: hvd.grouped_allreduce([np.ones(3)] * 200, name="gradients"))
        time.sleep(1)  # in which its end is noticed
        """,
        {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_LOG_LEVEL": "info"},
    ),
    # One that does not is given up; it learns why.
    "late": (
        """
        def never_ending():
            time.sleep(9)

        if hvd.rank() == 1:
            never_ending()
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        time.sleep(9)  # the others are to be heard
        """,
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"},
    ),
    # As it goes on, its caller comes first: before the thread that would tell it.
    "stopped": (
        """
        if hvd.rank() == 1:
            let_this_thread_come_first()
            go_on_in(12)
            stop()
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        time.sleep(12)
        """,
        {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"},
    ),
    # Stopped in the middle of an operation that all have agreed on, or, if it ends before the stop, of one after it.
    "middle": (
        """
        from hvdlite.runtime import RUNTIME

        large = [np.ones(1 << 22) for _ in range(4)]

        def stop_in_the_middle():
            while "moving data" not in RUNTIME.engine.flight_record():
                pass
            stop()

        def go_on():
            for _ in range(1000):
                handles = [hvd.allreduce_async(array, name=f"large{i}") for i, array in enumerate(large)]
                for handle in handles:
                    hvd.synchronize(handle)

        if hvd.rank() == 1:
            go_on_in(12)
            threading.Thread(target=stop_in_the_middle).start()
        report(go_on)
        time.sleep(12)
        """,
        {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"},
    ),
    "excused": (
        """
        if hvd.rank() == 1:
            with hvd.stall_limit(seconds=100):
                time.sleep(5)
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        """,
        {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"},
    ),
    "disabled": (
        """
        if hvd.rank() == 1:
            time.sleep(4)
        report(lambda: hvd.allreduce(np.ones(3), name="gradient"))
        """,
        {
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HVDLITE_STALL_CHECK_TIME_SECONDS": "1",
            "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2",
        },
    ),
}


@pytest.fixture(scope="module")
def results() -> dict[str, JobResult]:
    """All jobs at once: they mostly sleep."""

    def run(item):
        name, (body, env) = item
        return name, run_job(textwrap.dedent(HEAD) + textwrap.dedent(body), 2, env=env, timeout=120)

    with ThreadPoolExecutor(len(JOBS)) as pool:
        return dict(pool.map(run, JOBS.items()))


def stalls(result: JobResult) -> list[str]:
    return [line for text in result.stderr.values() for line in text.splitlines() if "stall: " in line]


def test_a_slow_rank_is_named_with_its_line_and_its_coming_is_told(results):
    result = results["slow"]
    assert result.returncode == 0, result.report()
    warning, news = stalls(result)
    assert re.search(r"WARN \[control rank 0/2\] stall: .* and 197 more operations have waited 1\.\d s", warning)
    assert re.search(r"for rank 1 \(host \S+, pid \d+\), which has not submitted them: its main thread is at ", warning)
    assert re.search(r"script\.py:\d+ <module> > \S*script\.py:\d+ evaluate_everything;", warning)
    assert re.search(r"INFO .* stall: went on after [34]\.\d s: ", news), result.report()
    assert all("done" in result.stdout[rank] for rank in (0, 1))


GAVE_UP = r"PeerLostError: rank 0 \(host \S+, pid \d+\) gave up after 3\.0 s \(HVDLITE_STALL_SHUTDOWN_TIME_SECONDS\): "
MISSING = r".* (has|have) waited \d+(\.\d)? s for rank 1 \(host \S+, pid \d+\), which "


def causes(result: JobResult) -> list[str]:
    return [line for rank in (0, 1) for line in result.stdout[rank].splitlines() if "gave up" in line]


@pytest.mark.parametrize(
    ("job", "missing"),
    [
        ("late", r"allreduce of '\S*gradient' in process set 0" + MISSING + r"has not submitted it: .* never_ending"),
        ("stopped", r"allreduce of '\S*gradient' in process set 0" + MISSING + r"does not answer: it is stopped"),
        ("middle", r"allreduce of '\S*large\d+' in process set 0" + MISSING + r"does not answer: it is stopped"),
    ],
)
def test_a_rank_that_does_not_come_is_given_up_and_learns_why(results, job, missing):
    result = results[job]
    warnings = stalls(result)
    assert len(warnings) == 1, result.report()
    assert re.search("stall: " + missing + ".*all ranks give up after 3.0 s", warnings[0]), result.report()
    texts = causes(result)
    assert len(texts) == 2, result.report()
    assert texts[0] == texts[1]
    assert re.match(GAVE_UP + missing, texts[0]), result.report()
    assert "last operations of this rank" in result.stderr[0]


@pytest.mark.parametrize("job", ["excused", "disabled"])
def test_nothing_is_said_of_an_excused_rank_or_where_it_is_switched_off(results, job):
    result = results[job]
    assert result.returncode == 0, result.report()
    assert stalls(result) == []
    assert all("done" in result.stdout[rank] for rank in (0, 1))
