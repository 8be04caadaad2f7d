"""Runs a program written for Horovod on two ranks: mpirun -n 2 python -m hvdlite.horovod script.py."""

from pathlib import Path

from support.job import JobResult, run_python

SCRIPTS = Path(__file__).with_name("scripts")
TIMEOUT = 240.0


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> JobResult:
    job = run_python(["-m", "hvdlite.horovod", *arguments], 2, TIMEOUT, folder, env)
    for file in folder.glob("rank*.std*"):  # the next job of the test has its own
        file.unlink()
    return job
