"""The processes of the job while there is no engine to watch them: in `init`, and at the end of the program.

csrc/job does the work. This module adds the parts in Python: objects as bytes, Ctrl-C during waits, and the end of MPI.
"""

import logging
import pickle
import time
from typing import Any

from hvdlite.errors import OperationTimeoutError, PeerLostError

__all__ = ["LOST", "Job"]

# A process of the job is gone or does not answer, and MPI can no longer be finalised.
LOST = (PeerLostError, OperationTimeoutError)
# Seconds for which one wait runs before Python handles signals.
_SLICE = 0.1
# Seconds in init() after which a process logs what it waits for.
_WARN_AFTER = 60.0
_WHAT_FOR = "for other processes of the job: all must call it, and all hosts must reach each other"


class Job:
    """The processes of a communicator. Thread: those of `init` and of the exit handlers, never two at a time.

    Making one is collective.

    Args:
        native: the module ``hvdlite._engine``.
        shim: the path of the shim for the loaded MPI.
        MPI: the module ``mpi4py.MPI``.
        comm: the communicator of the job.
        takes_comm: are messages sent on it, instead of on a duplicate? Nothing else but an engine may send any.

    Attributes:
        lost: has one of them failed while this process waited here?

    Raises:
        PeerLostError: by every method that waits, if a process failed meanwhile.
        OperationTimeoutError: likewise, if patience is at its end.
    """

    def __init__(self, native: Any, shim: str, MPI: Any, comm: Any, takes_comm: bool) -> None:  # noqa: N803 - its own name
        self.lost = False
        self._mpi, self._group = MPI, comm.group  # the program may free the communicator
        self._native = native.Job(shim, MPI._addressof(comm), takes_comm)
        # MPI deletes the attributes of this communicator before it ends.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: self.close()), self)
        self._wait(bounded=True)

    def has_ranks_of(self, other: "Job") -> bool:
        """Are these the same processes, in the same order?"""
        return bool(self._mpi.Group.Compare(self._group, other._group) == self._mpi.IDENT)

    def set_limits(self, patience: float, silence: float) -> None:
        """Sets how long this process waits from now on, in seconds; 0: for ever.

        Args:
            patience: for processes that are stopped or silent, and for any in `allgather`.
            silence: for the next sign of life of another host.
        """
        self._native.set_limits(patience, silence)

    def allgather(self, value: Any) -> list[Any]:
        """The values of all, by rank. They are pickled."""
        self._native.gather(pickle.dumps(value), bounded=True)
        self._wait(bounded=True)
        return [pickle.loads(each) for each in self._native.values(self._group.size)]

    def farewell(self) -> None:
        """Waits until all processes have come here, without a limit, and with almost no processor time."""
        self._native.gather(b"", bounded=False)
        self._wait(bounded=False)

    def tell(self, cause: str) -> None:
        """Tells waiting processes why this one fails. Other processes read it later or never.

        Args:
            cause: such as ``raised ValueError: bad batch 17``.
        """
        self._native.tell(cause)

    def kill_stopped(self) -> None:
        """Kills stopped processes of this host: the job is over, but its launcher may wait for them."""
        self._native.kill_stopped()

    def close(self) -> None:
        """Stops watching. MPI must not have ended yet."""
        self._native.close()

    def _wait(self, bounded: bool) -> None:
        began, warned = time.monotonic(), False
        try:
            while not self._native.wait(_SLICE):
                waited = time.monotonic() - began
                if bounded and not warned and waited > _WARN_AFTER:
                    warned = True
                    logging.getLogger("hvdlite").warning("init() has waited %.3g s %s", waited, _WHAT_FOR)
        except LOST:
            self.lost = True
            raise
