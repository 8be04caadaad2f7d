"""The ranks of a benchmark, and a common start for them that no peer takes part in.

Everything here is collective over all ranks of the job unless it says otherwise.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdlite import startup
from hvdlite.config import launcher_claim

__all__ = ["Gate", "World", "cores_per_rank"]

_LINE = 8  # words in a cache line, so that no two ranks write to one
_LEAD_NS = 20_000  # from the decision to the start: every rank has seen it by then


class World:
    """The job: a communicator of its own, the shared start, and the ranks' exchanges outside of the timings.

    Attributes:
        rank, size: of this process in the job.
        cores: how many cores this rank has for itself.
        crowded: somewhere ranks share a core, and take turns.
        bind: ``core`` if each rank may run on one core only, else ``none``.
        hosts: on how many hosts the ranks run.
        gate: their common start.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        startup.check_launch(MPI, launcher_claim())
        self._mpi = MPI
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        affinities = local.allgather(sorted(os.sched_getaffinity(0)))
        self.cores = cores_per_rank(affinities, local.rank)
        self.crowded = any(self.everyone(len(set().union(*affinities)) < len(affinities)))
        self.hosts = self.everyone(local.rank).count(0)
        local.Free()
        bound = self.everyone(all(len(cores) == 1 for cores in affinities))
        self.bind = "core" if all(bound) else "none"
        self.gate = Gate(self.comm, self.hosts == 1)

    def close(self) -> None:
        """Frees the communicator and the shared memory."""
        self.gate.close()
        self.comm.Free()

    def everyone(self, value: Any) -> list[Any]:
        """All ranks' values, in rank order."""
        values: list[Any] = self.comm.allgather(value)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's value; that of the others does not matter."""
        return self.comm.bcast(value)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.comm.Barrier()

    def slowest(self, times: Sequence[float]) -> NDArray[np.float64]:
        """Place by place the largest number of any rank."""
        mine = np.array(times, dtype=np.float64)
        largest = np.empty_like(mine)
        self.comm.Allreduce(mine, largest, op=self._mpi.MAX)
        return largest

    def sum(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sum of all ranks' arrays."""
        total = np.empty_like(array)
        self.comm.Allreduce(array, total)
        return total

    def all_agree(self, problem: str | None) -> str | None:
        """None if no rank has a problem, or else the problems with the ranks that have them."""
        found = [(rank, text) for rank, text in enumerate(self.everyone(problem)) if text]
        if not found:
            return None
        if len(found) == self.size and len({text for _, text in found}) == 1:
            return str(found[0][1])
        return "; ".join(f"rank {rank}: {text}" for rank, text in found)


def cores_per_rank(affinities: Sequence[Sequence[int]], rank: int) -> int:
    """The cores that one rank of a host has for itself.

    Args:
        affinities: the cores each rank of the host may run on.
        rank: among them.
    """
    together = len(set().union(*affinities))
    return min(len(affinities[rank]), max(1, together // len(affinities)))


class Gate:
    """Starts all ranks at one moment.

    On one host: a page of shared memory. Each rank writes the number of the start it has reached; when all have, rank 0
    writes the time of the start, a little ahead, and every rank spins until then. The clock is the host's, so the ranks
    start within a fraction of a microsecond, and no message of any peer has been sent. Each word has one writer and says
    everything by itself, so no order among the words is needed.

    On several hosts, which have no common clock: MPI's barrier.
    """

    def __init__(self, comm: Any, one_host: bool) -> None:
        self._comm = comm
        self._rank: int = comm.rank
        self._size: int = comm.size
        self._starts = 0
        self._last = 0
        self._page = _shared_page(comm, (self._size + 1) * _LINE * 8) if one_host else None
        self._words = memoryview(self._page if self._page is not None else b"").cast("B").cast("q")

    def wait(self) -> int:
        """Returns on all ranks at once; the time in nanoseconds, of ``time.perf_counter_ns``."""
        if self._page is None:
            self._comm.Barrier()
            return time.perf_counter_ns()
        words, start_word = self._words, self._size * _LINE
        self._starts += 1
        words[self._rank * _LINE] = self._starts
        if self._rank == 0:
            for rank in range(1, self._size):
                while words[rank * _LINE] < self._starts:
                    os.sched_yield()
            words[start_word] = time.perf_counter_ns() + _LEAD_NS
        while words[start_word] == self._last:
            os.sched_yield()
        self._last = words[start_word]
        while (now := time.perf_counter_ns()) < self._last:
            pass
        return now

    def close(self) -> None:
        """Frees the page."""
        self._words.release()
        if self._page is not None:
            self._page.close()


def _shared_page(comm: Any, nbytes: int) -> mmap.mmap:
    """Zeros that all ranks of a host share: a file that has no name any more when this returns."""
    file = tempfile.NamedTemporaryFile(prefix="hvdlite-bench-") if comm.rank == 0 else None  # noqa: SIM115
    if file is not None:
        file.truncate(nbytes)
    with open(comm.bcast(file.name if file is not None else None), "r+b") as shared:
        page = mmap.mmap(shared.fileno(), nbytes)
    comm.Barrier()
    if file is not None:
        file.close()
    return page
