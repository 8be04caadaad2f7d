"""A rank that raises, exits, is killed or leaves: survivors end, with the first cause in their output."""

import re

import pytest
from support.job import JobResult, launcher_is_hydra, run_job
from support.rest import ENVIRONMENT

SCRIPT = """
    import os, signal, sys
    import numpy as np
    import hvdlite as hvd
    from mpi4py import MPI
    from hvdlite.runtime import RUNTIME
    from support.limits import eventually, when_waiting

    def gone():
        # Rank 1 is lost, or has left by its own choice, which its engine does not take for a failure.
        if ending in ("exit", "exit0"):
            world.recv(source=1)
        else:
            assert eventually(lambda: RUNTIME.engine.failure_cause)

    def leave():
        stop()
        for rank in others:
            world.send(None, rank)

    ending, where = sys.argv[1], sys.argv[2]
    hvd.init()
    world, stop = MPI.COMM_WORLD, RUNTIME.stop
    others = [rank for rank in range(hvd.size()) if rank != 1]
    for step in range(3):
        hvd.allreduce(np.full(4, hvd.rank() + step), name="warmup")
    hvd.barrier()
    world.Barrier()
    if hvd.rank() == 1:
        if where == "late":
            for _ in others:
                world.recv()
        elif ending in ("exit", "exit0"):
            RUNTIME.stop = leave
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
    elif where == "late":
        when_waiting(lambda: world.send(None, 1))
    else:
        gone()
    hvd.allreduce(np.ones(4), name="gradient")
"""

CAUSE = {
    "raise": r"rank 1 \(host \S+, pid \d+\) raised ValueError: bad batch 17",
    "exit": r"rank 1 \(host \S+, pid \d+\) has left",
    "exit0": r"rank 1 \(host \S+, pid \d+\) has left",
    "_exit": r"rank 1 \(host \S+, pid \d+\) ended without telling the other ranks",
    "kill": r"rank 1 \(host \S+, pid \d+\) ended without telling the other ranks",
}


def run(script: str, n: int, *args: str, fresh: bool = False) -> JobResult:
    """Runs a job whose launcher does not end the survivors of a rank's end, as Open MPI's otherwise does after 0.25 s."""
    if launcher_is_hydra():
        pytest.skip("MPICH's mpirun ends the survivors at once")
    return run_job(script, n, args=args, env=ENVIRONMENT, mpirun_args=["--runtime-options", "recoverable"], fresh=fresh)


def check_survivors(result: JobResult, cause: str) -> None:
    assert not result.timed_out, result.report()
    assert result.returncode != 0, result.report()
    for rank in (0, 2):
        assert re.search(cause, result.stderr[rank]), result.report()
        assert "Horovod has been shut down" in result.stderr[rank], result.report()
        assert "last operations of this rank" in result.stderr[rank] or "has left" in cause, result.report()


@pytest.mark.parametrize("where", ["late", "early"])
@pytest.mark.parametrize("ending", ["raise", "exit", "exit0", "_exit", "kill"])
def test_survivors_name_the_cause(ending, where):
    result = run(SCRIPT, 3, ending, where, fresh=where == "late")
    check_survivors(result, CAUSE[ending])
    if where == "late" and ending == "raise":
        for rank in (0, 2):
            waiting = r"allreduce of 'gradient' .*: submitted \S+ s ago, announced, waiting for other ranks"
            assert re.search(waiting, result.stderr[rank]), result.report()


def test_a_failure_while_mpirun_of_one_rank_fails_is_only_its_own():
    script = SCRIPT.replace("hvd.rank() == 1", "hvd.rank() == 0").replace("rank != 1", "rank != 0")
    result = run_job(script, 1, args=["raise", "late"], env=ENVIRONMENT)
    assert "ValueError: bad batch 17" in result.stderr[0]
    assert result.returncode != 0
    assert not result.timed_out


def test_an_exception_of_one_rank_reaches_a_survivor_that_only_computes():
    """It learns of it by the log, and by the error of its next operation."""
    result = run(
        """
        import numpy as np
        import hvdlite as hvd
        from hvdlite.runtime import RUNTIME
        from support.limits import eventually

        hvd.init()
        hvd.barrier()
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()  # the survivor has left hvdlite's
        if hvd.rank() == 0:
            raise RuntimeError("disk full")
        assert eventually(lambda: RUNTIME.engine.failure_cause)
        try:
            hvd.allreduce(np.ones(1), name="late")
        except hvd.HorovodInternalError as error:
            print("survivor:", error, flush=True)
        """,
        2,
    )
    assert "raised RuntimeError: disk full" in result.stderr[1], result.report()
    assert re.search("survivor: rank 0 .*disk full", result.stdout[1]), result.report()


def test_whoever_waits_long_in_init_says_what_for():
    result = run_job(
        """
        import logging, sys
        from mpi4py import MPI
        import hvdlite as hvd
        from hvdlite import job

        class Tells(logging.Handler):
            def emit(self, record):
                print(record.getMessage(), file=sys.stderr, flush=True)
                MPI.COMM_WORLD.send(None, 1)

        if MPI.COMM_WORLD.rank == 0:
            job._WARN_AFTER = 0.3
            logging.getLogger("hvdlite").addHandler(Tells())
        else:
            MPI.COMM_WORLD.recv()
        hvd.init()
        """,
        2,
    )
    assert result.returncode == 0, result.report()
    assert re.search(r"init\(\) has waited [\d.]+ s for other processes", result.stderr[0]), result.report()
    assert "has waited" not in result.stderr[1], result.report()


def test_a_normal_end_is_silent_even_if_ranks_end_at_different_times():
    result = run_job(
        """
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd
        from hvdlite.runtime import RUNTIME

        def leave(stop=RUNTIME.stop):
            stop()
            MPI.COMM_WORLD.send(None, 0)

        hvd.init()
        hvd.allreduce(np.ones(1), name="x")
        if hvd.rank() == 0:  # evaluates alone
            for _ in range(2):
                MPI.COMM_WORLD.recv()
        else:
            RUNTIME.stop = leave
        """,
        3,
        fresh=True,
    )
    assert result.returncode == 0, result.report()
    assert all(text == "" for text in result.stderr.values()), result.report()


def test_a_program_may_finalise_mpi_before_it_shuts_hvdlite_down():
    result = run_job(
        """
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd

        hvd.init()
        hvd.allreduce(np.ones(1), name="x")
        MPI.Finalize()
        assert not hvd.is_initialized()
        """,
        2,
        fresh=True,
    )
    assert result.returncode == 0, result.report()
    assert all(text == "" for text in result.stderr.values()), result.report()
