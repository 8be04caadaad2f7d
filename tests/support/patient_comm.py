"""A communicator whose ranks sleep while they wait: MPI's own waits take the processor from ranks that are still at work.

Ranks of a test are often more than the cores. Where each spins in MPI's blocking collectives, those that the others wait for
may get no time for minutes.
"""

import pickle
import time
from typing import Any

import numpy as np
from mpi4py import MPI

PAUSES_SECONDS = (0.0002, 0.005)  # the first, and the longest: each is twice the one before


class PatientComm(MPI.Intracomm):
    """What tests use of a communicator, for objects that can be pickled."""

    def allgather(self, sendobj: Any) -> list[Any]:
        """Every rank's object, in rank order."""
        mine = np.frombuffer(pickle.dumps(sendobj), np.uint8)
        sizes = np.empty(self.size, np.int64)
        _sleep_until_done(self.Iallgather(np.array([mine.size]), sizes))
        everyone = np.empty(sizes.sum(), np.uint8)
        _sleep_until_done(self.Iallgatherv(mine, [everyone, sizes]))
        return [pickle.loads(part.tobytes()) for part in np.split(everyone, np.cumsum(sizes)[:-1])]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object."""
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
