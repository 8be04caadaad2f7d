"""A rank that raises, exits, is killed or leaves: survivors end, with the first cause in their output."""

import os
import re

import pytest
from support.job import JobResult, launcher_is_hydra, run_job, survivors_stay
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
    return run_job(script, n, args=args, env=ENVIRONMENT, mpirun_args=survivors_stay(), fresh=fresh)


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
            job.WARN_AFTER = 0.3
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


def test_whoever_waits_long_inside_of_mpis_start_says_so_too(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = run_job(
        """
        import os, sys
        import hvdlite as hvd
        from hvdlite import config, job

        if config.rank_and_size_by_mpi()[0] == 0:
            job.WARN_AFTER = 0.3
            os.dup2(os.open(sys.argv[1], os.O_RDWR), 2)  # both ways, so that it need not wait for the reader
        else:
            print(next(line for line in open(sys.argv[1]) if "has waited" in line))
        hvd.init()
        """,
        2,
        args=[str(pipe)],
    )
    assert result.returncode == 0, result.report()
    assert "init() has waited 0.3 s for other processes of the job: all must call it" in result.stdout[1], result.report()


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


INIT = """
    import os, signal, sys
    import numpy as np
    from mpi4py import MPI
    import hvdlite as hvd
    from hvdlite import job, startup

    def interrupted(owner, name):
        own = getattr(owner, name)

        def once(*arguments):
            setattr(owner, name, own)
            os.kill(os.getpid(), signal.SIGINT)
            return own(*arguments)

        setattr(owner, name, once)

    world = MPI.COMM_WORLD
    if world.rank == 0:
        interrupted(*{"before all have called it": (job.Job, "meet"), "later": (startup, "agree")}[sys.argv[1]])
        try:
            hvd.init()
        except KeyboardInterrupt:
            print("interrupted", hvd.is_initialized(), flush=True)
    if sys.argv[1] != "later":
        world.send(None, 1) if world.rank == 0 else world.recv()
    try:
        hvd.init()
        print(hvd.allreduce(np.ones(1), op=hvd.Sum, name="x"), flush=True)
    except hvd.HorovodInternalError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("moment", ["before all have called it", "later"])
def test_another_init_after_an_interrupted_one_goes_on_or_tells_the_others(moment):
    result = run_job(INIT, 2, args=[moment])
    assert result.stdout[0].startswith("interrupted False\n"), result.report()
    if moment == "later":
        assert re.search(r"^rank 0 (\(.*\) )?was interrupted in init\(\)", result.stdout[1]), result.report()
        assert "an earlier init() was interrupted when all ranks had called it" in result.stdout[0], result.report()
    else:
        assert result.stdout[0].endswith("[2.]\n"), result.report()
        assert result.stdout[1] == "[2.]\n", result.report()


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
