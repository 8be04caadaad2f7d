"""Processes that a rank starts: they have its launcher's variables, and are not the rank.

MPICH's launcher also gives its ranks an open socket, which programs have only where ``close_fds=False`` says so.
"""

from support.job import run_job


def test_a_program_that_a_rank_starts_is_refused_and_the_job_goes_on():
    job = run_job(
        """
        import subprocess, sys
        import numpy as np
        import hvdlite as hvd
        hvd.init()
        if hvd.rank() == 1:
            program = "import hvdlite; hvdlite.init(); print('is a rank', hvdlite.rank())"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, close_fds=False)
            print(done.returncode, done.stdout, done.stderr)
        print("sum", hvd.allreduce(np.ones(1) + hvd.rank(), op=hvd.Sum))
        """,
        2,
    )
    assert job.returncode == 0, job.report()
    said = job.stdout[1]
    assert said.startswith("1 "), job.report()
    assert "is a rank" not in said
    assert "hvdlite.errors.SystemFailure: this process (pid " in said
    assert "a rank that another process is already (pid " in said
    assert "env=hvdlite.child_environment()" in said
    assert said.endswith("sum [3.]\n")


def test_a_program_with_a_clean_environment_works_alone():
    job = run_job(
        """
        import subprocess, sys
        import hvdlite as hvd
        hvd.init()
        program = "import hvdlite; hvdlite.init(); print(hvdlite.rank(), hvdlite.size(), hvdlite.allreduce(2.0, name='x'))"
        done = subprocess.run([sys.executable, "-c", program], env=hvd.child_environment(), capture_output=True, text=True)
        print(done.stdout, done.stderr)
        print(hvd.allreduce(float(hvd.rank()), name="x", op=hvd.Sum))
        """,
        2,
    )
    assert job.returncode == 0, job.report()
    for rank in (0, 1):
        assert job.stdout[rank].split() == ["0", "1", "2.0", "1.0"], job.report()


def test_a_spawned_worker_that_imports_the_script_is_refused():
    """The script has no guard, so that the worker runs init() as well. Its process ends; the rank goes on."""
    job = run_job(
        """
        import multiprocessing, sys
        import hvdlite as hvd
        def work():
            print("works")
        hvd.init()
        worker = multiprocessing.get_context("spawn").Process(target=work)
        if multiprocessing.parent_process() is None:
            worker.start()
            worker.join()
            print("ended with", worker.exitcode)
            print(hvd.allreduce(float(hvd.rank()), name="x", op=hvd.Sum))
        """,
        2,
    )
    assert job.returncode == 0, job.report()
    for rank in (0, 1):
        assert job.stdout[rank].split() == ["ended", "with", "1", "1.0"], job.report()
        assert "under `if __name__ == '__main__':`" in job.stderr[rank], job.report()


def test_who_never_calls_init_owns_nothing():
    """A wrapper starts the script that is the rank, and starts one again after the first has ended without MPI."""
    job = run_job(
        """
        import subprocess, sys
        import hvdlite
        script = "import hvdlite as hvd; from hvdlite import startup; startup.claim_rank(); print('had it')"
        subprocess.run([sys.executable, "-c", script], check=True, close_fds=False)
        script = "import hvdlite as hvd; hvd.init(); print(hvd.rank(), hvd.size()); hvd.barrier()"
        subprocess.run([sys.executable, "-c", script], check=True, close_fds=False)
        """,
        2,
    )
    assert job.returncode == 0, job.report()
    assert [job.stdout[rank] for rank in (0, 1)] == ["had it\n0 2\n", "had it\n1 2\n"], job.report()


def test_a_forked_child_does_not_keep_the_claim():
    job = run_job(
        """
        import os
        import hvdlite as hvd
        from hvdlite import startup
        hvd.init()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, str(len(startup._claims)).encode())
            os._exit(0)
        print(os.read(reader, 10).decode(), len(startup._claims))
        """,
        2,
    )
    assert job.returncode == 0, job.report()
    assert job.stdout == {0: "0 2\n", 1: "0 2\n"}, job.report()
