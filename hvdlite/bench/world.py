"""The ranks of a benchmark, and their common start, which on one host needs no messages of any library.

All functions and methods are collective over the ranks of the job unless their description says otherwise.
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

_LINE = 8  # the words in a cache line; each rank writes to a line of its own
_LEAD_NS = 20_000  # nanoseconds from the decision to the start, in which every rank sees the decision


class World:
    """The ranks of the job, with a communicator of their own for messages outside of the timed calls.

    Attributes:
        rank, size: this process's rank, and the number of ranks.
        cores: the number of cores that this rank has for itself.
        crowded: do ranks share a core on any host?
        bind: ``core`` if each rank may run on one core only, otherwise ``none``.
        hosts: the number of hosts.
        gate: the ranks' common start.
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
        """The values of all ranks, in rank order."""
        values: list[Any] = self.comm.allgather(value)
        return values

    def from_first(self, value: Any) -> Any:
        """The value of rank 0. The values of the other ranks are ignored."""
        return self.comm.bcast(value)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.comm.Barrier()

    def slowest(self, times: Sequence[float]) -> NDArray[np.float64]:
        """For each place in `times`, the largest time of all ranks. All ranks pass the same number of times."""
        mine = np.array(times, dtype=np.float64)
        largest = np.empty_like(mine)
        self.comm.Allreduce(mine, largest, op=self._mpi.MAX)
        return largest

    def sum(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sum of all ranks' arrays, which have one shape."""
        total = np.empty_like(array)
        self.comm.Allreduce(array, total)
        return total

    def all_agree(self, problem: str | None) -> str | None:
        """None if no rank has a problem; one text if all ranks have the same problem; otherwise each problem with its rank."""
        found = [(rank, text) for rank, text in enumerate(self.everyone(problem)) if text]
        if not found:
            return None
        if len(found) == self.size and len({text for _, text in found}) == 1:
            return str(found[0][1])
        return "; ".join(f"rank {rank}: {text}" for rank, text in found)


def cores_per_rank(affinities: Sequence[Sequence[int]], rank: int) -> int:
    """The number of cores that one rank of a host has for itself. This function is not collective.

    Args:
        affinities: for each rank of the host, the cores that it may run on.
        rank: the place of the rank in `affinities`.
    """
    together = len(set().union(*affinities))
    return min(len(affinities[rank]), max(1, together // len(affinities)))


class Gate:
    """Starts all ranks at one moment.

    On one host the ranks share a page of memory. Starts are numbered, and each rank writes the number of the start that it has
    reached into a word of this page. When all ranks have reached the start, rank 0 writes a time in the near future, and every
    rank spins until this time. All ranks read the host's clock, so they start within a fraction of a microsecond, and no
    library sends a message. Each word has one writer, and the meaning of a word depends on no other word, so no order among
    writes is needed.

    Several hosts have no common clock, so their ranks start after MPI's barrier.
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
        """Returns on all ranks at the same moment. The result is this moment, in nanoseconds of ``time.perf_counter_ns``."""
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
    """A page of zeros that all ranks of a host share. The page is in a file, which this function deletes before it returns."""
    file = tempfile.NamedTemporaryFile(prefix="hvdlite-bench-") if comm.rank == 0 else None  # noqa: SIM115
    if file is not None:
        file.truncate(nbytes)
    with open(comm.bcast(file.name if file is not None else None), "r+b") as shared:
        page = mmap.mmap(shared.fileno(), nbytes)
    comm.Barrier()
    if file is not None:
        file.close()
    return page
