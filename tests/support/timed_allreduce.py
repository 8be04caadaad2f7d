"""What an allreduce costs on emulated hosts: its time, beside MPI's own in the same run, and the bytes each host sends."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.hosts import EmulatedHosts

PROGRAM = Path(__file__).with_name("timed_allreduce_program.py")


@dataclass(frozen=True)
class Timing:
    """One size of buffer.

    Attributes:
        bytes: of the buffer, float32.
        hvdlite, mpi: seconds of hvdlite.allreduce and of mpi4py's Allreduce, of the slowest rank, one for each repetition; the
            two are interleaved.
        sent: bytes, headers included, that each host sent for one of hvdlite's.
    """

    bytes: int
    hvdlite: list[float]
    mpi: list[float]
    sent: list[int]


def timed_allreduce(
    hosts: EmulatedHosts,
    ranks: int | Sequence[int],
    sizes: Sequence[int],
    repeats: int = 7,
    env: Mapping[str, str] | None = None,
    timeout: float = 180.0,
) -> list[Timing]:
    """Times allreduces of these many bytes; results are checked."""
    job = hosts.run(ranks, PROGRAM, env, [str(repeats), *map(str, sizes)], timeout)
    assert job.returncode == 0, job.report()
    return [Timing(**json.loads(line)) for line in job.stdout[0].splitlines()]
