"""A rank that raises, exits, is killed or leaves: survivors end soon, with the first cause in their output."""

import re
from collections.abc import Sequence

import pytest
from support.job import JobResult, launcher_is_hydra, run_job
from support.limits import limit

SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import hvdlite as hvd

    ending, where = sys.argv[1], sys.argv[2]
    hvd.init()
    for step in range(3):
        hvd.allreduce(np.full(4, hvd.rank() + step), name="warmup")
    hvd.barrier()
    if hvd.rank() == 1:
        if where == "late":
            time.sleep(0.5)  # the others already wait
        if ending == "raise":
            raise ValueError("bad batch 17")
        if ending == "exit":
            sys.exit(3)
        if ending == "exit0":
            sys.exit(0)
        if ending == "_exit":
            os._exit(4)
        if ending == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    elif where == "early":
        time.sleep(0.3)  # computes while the other ends
    started = time.time()
    try:
        hvd.allreduce(np.ones(4), name="gradient")
    finally:
        print(f"waited {time.time() - started:.2f} s", flush=True)
"""

CAUSE = {
    "raise": r"rank 1 \(host \S+, pid \d+\) raised ValueError: bad batch 17",
    "exit": r"rank 1 \(host \S+, pid \d+\) has left",
    "exit0": r"rank 1 \(host \S+, pid \d+\) has left",
    "_exit": r"rank 1 \(host \S+, pid \d+\) ended without a word",
    "kill": r"rank 1 \(host \S+, pid \d+\) ended without a word",
}


def run_until_heard(script: str, n: int, survivors: Sequence[int], args: Sequence[str] = ()) -> JobResult:
    """Runs a job again, at most twice, if mpirun, which waits a quarter of a second, has ended survivors before they spoke."""
    for _ in range(3):
        result = run_job(script, n, args=args)
        if all("Horovod has been shut down" in result.stderr[rank] for rank in survivors):
            break
    return result


def check_survivors(result: JobResult, cause: str) -> None:
    assert not result.timed_out, result.report()
    assert result.returncode != 0, result.report()
    for rank in (0, 2):
        assert re.search(cause, result.stderr[rank]), result.report()
        assert "Horovod has been shut down" in result.stderr[rank], result.report()
        assert "last operations of this rank" in result.stderr[rank] or "has left" in cause, result.report()


@pytest.mark.parametrize("where", ["late", "early"])
@pytest.mark.parametrize("ending", ["raise", "exit", "exit0", "_exit", "kill"])
def test_survivors_name_the_cause_within_five_seconds(ending, where):
    if where == "early" and ending in ("_exit", "kill"):
        pytest.skip("mpirun ends the survivors 0.25 s after such a death, while they still compute")
    if ending in ("_exit", "kill") and launcher_is_hydra():
        pytest.skip("MPICH's mpirun ends the survivors at once")
    result = run_until_heard(SCRIPT, 3, (0, 2), args=[ending, where])
    check_survivors(result, CAUSE[ending])
    for rank in (0, 2):
        if where == "late" and ending == "raise":
            waiting = r"allreduce of 'gradient' .*: submitted \S+ s ago, announced, waiting for other ranks"
            assert re.search(waiting, result.stderr[rank]), result.report()
        waits = re.findall(r"waited ([\d.]+) s", result.stdout[rank])
        assert all(float(wait) < limit(5) for wait in waits), result.report()


def test_the_raising_rank_prints_its_own_traceback_and_operations():
    result = run_job(SCRIPT, 3, args=["raise", "late"])
    assert "ValueError: bad batch 17" in result.stderr[1]
    assert "allreduce of 'warmup' in process set 0, int64[4]" in result.stderr[1], result.report()


def test_a_failure_while_mpirun_of_one_rank_fails_is_only_its_own():
    result = run_job(SCRIPT.replace("hvd.rank() == 1", "hvd.rank() == 0"), 1, args=["raise", "late"])
    assert "ValueError: bad batch 17" in result.stderr[0]
    assert result.returncode != 0
    assert not result.timed_out


def test_an_exception_of_one_rank_reaches_a_survivor_that_only_computes():
    """It learns of it by the log, and by the error of its next operation."""
    if launcher_is_hydra():
        pytest.skip("MPICH's mpirun ends the survivor at once")
    result = run_until_heard(
        """
        import numpy as np
        import hvdlite as hvd
        from hvdlite.runtime import RUNTIME

        hvd.init()
        hvd.barrier()
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()  # the survivor has left hvdlite's
        if hvd.rank() == 0:
            raise RuntimeError("disk full")
        while not RUNTIME.engine.failure_cause:
            pass
        try:
            hvd.allreduce(np.ones(1), name="late")
        except hvd.HorovodInternalError as error:
            print("survivor:", error, flush=True)
        """,
        2,
        survivors=[1],
    )
    assert "raised RuntimeError: disk full" in result.stderr[1], result.report()
    assert re.search("survivor: rank 0 .*disk full", result.stdout[1]), result.report()


def test_whoever_waits_long_in_init_says_what_for():
    result = run_job(
        """
        import time
        from mpi4py import MPI
        import hvdlite as hvd
        from hvdlite import peers

        peers._WARN_AFTER = 0.3
        if MPI.COMM_WORLD.rank == 1:
            time.sleep(1.5)
        hvd.init()
        """,
        2,
    )
    assert result.returncode == 0, result.report()
    assert re.search(r"init\(\) has waited 0.3\d* s for other processes", result.stderr[0]), result.report()
    assert "has waited" not in result.stderr[1], result.report()


def test_a_normal_end_is_silent_even_if_ranks_end_at_different_times():
    result = run_job(
        """
        import time
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        hvd.allreduce(np.ones(1), name="x")
        if hvd.rank() == 0:
            time.sleep(1)  # evaluates alone
        """,
        3,
    )
    assert result.returncode == 0, result.report()
    assert all(text == "" for text in result.stderr.values()), result.report()
