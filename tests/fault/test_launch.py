"""Jobs started the wrong way, and survivors of a failure that end on their own."""

import json
import os
import subprocess
import sys

import pytest
from support.job import job_environment, launcher_is_hydra, run_job

TIMEOUT = 180.0


@pytest.mark.parametrize("variable", ["PMI_SIZE", "HOROVOD_SIZE"])
def test_a_process_that_is_alone_against_its_launchers_word_refuses_to_start(variable):
    done = subprocess.run(
        [sys.executable, "-c", "import hvdlite; hvdlite.init()"],
        env={**job_environment(), variable: "4"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 1
    for said in (f"{variable}=4", "MPI says that this process is alone", "mpirun on PATH", "mpi4py/MPI"):
        assert said in done.stderr


def test_without_mpirun_there_is_one_rank():
    program = "import hvdlite as hvd; hvd.init(); print(hvd.rank(), hvd.size(), hvd.allreduce(3.0))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=job_environment(), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.stdout, done.stderr) == ("0 1 3.0\n", "")


def test_a_bad_knob_ends_the_whole_job_and_says_where():
    job = run_job(
        """
        import os
        if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
            os.environ["HOROVOD_CYCLE_TIME"] = "soon"
        import hvdlite
        hvdlite.init()
        """,
        3,
        timeout=TIMEOUT,
    )
    assert job.returncode != 0
    assert not job.timed_out
    assert any("on rank 1: HOROVOD_CYCLE_TIME='soon'" in text for text in job.stderr.values()), job.report()


def test_an_exception_before_init_does_not_leave_the_others_waiting():
    job = run_job(
        """
        import hvdlite
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            hvdlite.init(comm="nonsense")
        hvdlite.init()
        """,
        2,
        timeout=TIMEOUT,
    )
    assert job.returncode != 0
    assert not job.timed_out
    assert "comm='nonsense'" in job.stderr[1]


@pytest.mark.parametrize(
    ("error", "in_flight", "shown"), [("ValueError", 0, 0), ("ValueError", 1, 1), ("errors.HvdliteError", 0, 3)]
)
def test_a_rank_that_raises_shows_what_it_has_in_flight_or_the_last_three_for_an_error_of_ours(
    error, in_flight, shown, tmp_path
):
    job = run_job(
        f"""
        import numpy as np
        import hvdlite as hvd
        from hvdlite import errors

        hvd.init()
        for step in range(5):
            hvd.allreduce(np.ones(2), name="done")
        if hvd.rank() == 1:
            if {in_flight}:
                handle = hvd.allreduce_async(np.ones(2), name="open")
            raise {error}("the data is bad")
        hvd.barrier()
        """,
        2,
        env={"HVDLITE_FLIGHT_RECORDER_FOLDER": str(tmp_path)},
    )
    record, _, error = job.stderr[1].partition("Traceback")
    assert error.endswith("Error: the data is bad\n"), job.report()
    assert ("last operations of this rank:\n" in record) == (shown > 0)
    assert record.count("  #") == shown
    assert record.count("allreduce of 'open'") == in_flight
    assert record.count("'done'") == shown - in_flight
    files = [file for file in tmp_path.iterdir() if "rank1" in file.name]
    assert len(files) == (shown > 0)
    for file in files:
        assert f"all recorded operations: {file}\n" in record
        assert file.read_text().count("allreduce of 'done'") == 5
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_survivor_that_catches_the_error_ends_when_it_wants_to():
    job = run_job(
        """
        import sys, time
        import numpy as np
        import hvdlite as hvd
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            raise ValueError("the data is bad")
        try:
            hvd.allreduce(np.ones(100), name="x")
        except hvd.HorovodInternalError as error:
            print("survived:", error, flush=True)
        """,
        3,
        timeout=TIMEOUT,
    )
    assert job.returncode != 0 or launcher_is_hydra()  # which forgets the failure of a rank that is not the first to end
    assert not job.timed_out
    for rank in (0, 2):
        assert "the data is bad" in job.stdout[rank], job.report()
        assert "rank 1" in job.stdout[rank]


BENCH = ["collectives", "--cases", "allreduce", "--sizes", "1K", "--cache", "warm", "--seconds", "1"]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core both bindings are the same")
def test_the_benchmark_starts_its_own_ranks_with_either_binding(tmp_path):
    output = tmp_path / "run.jsonl"
    words = [*BENCH, "-n", "2", "--bind", "both", "--peers", "hvdlite,mpi4py", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "hvdlite.bench", *words],
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 1 KiB warm |") == 4  # times and ratios, twice
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["bind"], record["ranks"]) for record in records if record["record"] == "run"] == [("core", 2), ("none", 2)]
    for bind in ("core", "none"):
        found = {record["peer"]: record for record in records if record["record"] == "measurement" and record["bind"] == bind}
        assert found.keys() == {"hvdlite", "mpi4py", "memcpy", "rewrite"}
        assert all(record["median"] > 0 for record in found.values())


def test_the_benchmark_without_torch():
    job = run_job(
        """
        import sys
        sys.modules["torch"] = None  # cannot be imported
        from hvdlite.bench.__main__ import main
        sys.exit(main())
        """,
        2,
        timeout=TIMEOUT,
        args=BENCH,
    )
    assert job.returncode == 0, job.report()
    assert "Not measured: gloo (torch is not installed (pip install torch))." in job.stdout[0]
    header = next(line for line in job.stdout[0].splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in header.split("|")[2:-1]] == ["hvdlite", "hvdlite-out", "mpi4py", "memcpy", "rewrite"]
    assert job.stdout[1] == ""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("autotune", '["--seconds", "1", "--output", sys.argv[1]]'),
        ("link_tuning", '["--parameters", "10", "--step-time", "1"]'),
    ],
)
def test_a_knob_that_is_wrong_on_one_rank_ends_a_tuning_with_its_name(tmp_path, module, words):
    program = f"""
import os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.environ["HVDLITE_SPIN_US"] = "bad"
from hvdlite import {module}
sys.exit({module}.main({words}))
"""
    job = run_job(program, 2, args=[str(tmp_path / "tuning.json")], fresh=True)
    assert not job.timed_out, job.report()
    assert job.returncode != 0, job.report()
    assert "hvdlite tune: hvdlite could not be initialized: on rank 1: HVDLITE_SPIN_US='bad'" in job.stderr[0], job.report()
    assert "Traceback" not in job.stderr[0], job.report()
