"""Chooses the folder of the files that Open MPI 5 makes for messages within a host.

In MPI_Init each rank of Open MPI makes a file ``/dev/shm/sm_segment.HOST.USER.JOB.RANK`` for the messages that the other ranks
of its host send it. There are two faults:

- Only 16 bits of JOB tell jobs apart; they are a hash of the job's name. So of 65,536 pairs of jobs that a user runs on a host
  at the same time, one pair has the same JOB. Open MPI does not notice this: both jobs use the same files, read each other's
  messages, and crash or hang.
- A process that no launcher has started never removes its file, which takes 72 KiB of memory.
"""

import os
from pathlib import Path

from hvdlite import config as knobs
from hvdlite.own_folder import folder_until_exit

_MEMORY = "/dev/shm"


def file_of_rank(job: str, host: str, node_rank: int) -> Path:
    """The file that Open MPI 5 makes for a rank, if no parameter names another folder.

    Args:
        job: the job's name, such as ``prterun-node7-4711@1``.
        host: the name of the rank's host.
        node_rank: the rank's number among the ranks of its host.
    """
    return Path(_MEMORY, f"sm_segment.{host}.{os.geteuid()}.{_job_number(job):x}.{node_rank}")


def _job_number(job: str) -> int:
    """The number of a job: 16 bits of a hash of its name up to ``@``, and 16 bits of the number after that.

    Source: ``opal_pmix_convert_jobid`` of Open MPI 5. The hash is Bob Jenkins's "one at a time".
    """
    name, _, number = job.rpartition("@") if "@" in job else (job, "", "")
    value = 0
    for byte in name.encode():
        value = (value + byte) * 0x401 & 0xFFFFFFFF  # the hash adds itself, shifted by 10 bits
        value ^= value >> 6
    value = value * 9 & 0xFFFFFFFF
    value ^= value >> 11
    value = value * 0x8001 & 0xFFFFFFFF
    return ((value >> 16 ^ value) & 0xFFFF) << 16 | (int(number) & 0xFFFF if number.isdigit() else 0)


def own_folder(library: str) -> str | None:
    """A new private folder for Open MPI's file, if another job has this rank's file, or if no launcher has started this
    process; otherwise None. The folder is removed when this process exits, after MPI is finalised.

    Args:
        library: the name of the MPI library, from ``MPI_Get_library_version``.
    """
    place = knobs.open_mpi_place()
    wanted = file_of_rank(*place).exists() if place is not None else knobs.launcher_claim() is None
    if "Open MPI" not in library or knobs.has_open_mpi_folder() or not wanted:
        return None
    try:
        return folder_until_exit("hvdlite-mpi-", _MEMORY)
    except OSError:  # this process may not write to /dev/shm, so Open MPI makes no file there
        return None
