"""A communicator whose ranks sleep while they wait, because MPI's own waits take the processor from ranks that work.

A test often has more ranks than cores. If waiting ranks spin in MPI's blocking collectives, the ranks that they wait for may
get no processor time for minutes.
"""

import pickle
import time
from typing import Any

import numpy as np
from mpi4py import MPI

PAUSES_SECONDS = (0.0002, 0.005)  # the first pause and the longest; each pause is twice as long as the one before


class PatientComm(MPI.Intracomm):
    """The methods of a communicator that tests use, for objects that can be pickled."""

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks, in rank order."""
        mine = np.frombuffer(pickle.dumps(sendobj), np.uint8)
        sizes = np.empty(self.size, np.int64)
        _sleep_until_done(self.Iallgather(np.array([mine.size]), sizes))
        everyone = np.empty(sizes.sum(), np.uint8)
        _sleep_until_done(self.Iallgatherv(mine, [everyone, sizes]))
        return [pickle.loads(part.tobytes()) for part in np.split(everyone, np.cumsum(sizes)[:-1])]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The object of the rank `root`."""
        return self.allgather(obj if self.rank == root else None)[root]

    def Barrier(self) -> None:  # noqa: N802 - as mpi4py calls it
        """Returns when all ranks have called it."""
        _sleep_until_done(self.Ibarrier())

    barrier = Barrier


def _sleep_until_done(request: MPI.Request) -> None:
    pause, longest = PAUSES_SECONDS
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, longest)
