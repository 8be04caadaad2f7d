"""Watches the processes of the job while no engine does: in `init`, and at the end of the program.

csrc/job does the work. This module adds what needs Python: it pickles objects, handles Ctrl-C during waits, and finalises MPI.
"""

import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

from hvdlite.errors import OperationTimeoutError, PeerLostError

# After these errors MPI cannot be finalised any more: a process of the job is lost or does not answer.
LOST = (PeerLostError, OperationTimeoutError)
# The seconds of one wait in native code; Python handles signals after each such wait.
_SLICE = 0.1
# After this many seconds of waiting in init(), a process logs what it waits for.
WARN_AFTER = 60.0
WHAT_FOR = "for other processes of the job: all must call it, and all hosts must reach each other"


class Job:
    """The processes of a communicator. The thread of `init` and the thread of the exit handlers use it, never at the same time.

    The constructor is collective.

    Args:
        native: the module ``hvdlite._engine``.
        shim: the path of the shim for the loaded MPI.
        MPI: the module ``mpi4py.MPI``.
        comm: the communicator of the job.
        takes_comm: does the job send on `comm` itself, not on a duplicate? Then only this job and its engine may send on it.
        leave: a function that shuts the engine down. It is called when MPI ends, before the job closes, because the program may
            finalise MPI while there is an engine.

    Attributes:
        lost: has a process failed while this one waited in a method of this class?
        met: has `meet` returned? Only then the other methods may be called.

    Raises:
        PeerLostError: (from each method that waits) a process failed during the wait.
        OperationTimeoutError: (from each method that waits) a process has not answered within the limits of `set_limits`.
    """

    def __init__(
        self,
        native: Any,
        shim: str,
        MPI: Any,  # noqa: N803 - its own name
        comm: Any,
        takes_comm: bool,
        leave: Callable[[], None],
    ) -> None:
        self.lost = self.met = False
        self._mpi, self._group = MPI, comm.group  # kept here because the program may free the communicator
        self._comm = comm
        self._native = native.Job(shim, MPI._addressof(comm), takes_comm)

        def end(*_: Any) -> None:
            leave()
            self.close()

        # MPI deletes the attributes of this communicator before it ends.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=end), self)

    def meet(self) -> None:
        """Waits until all processes of the communicator have a job. If Ctrl-C ends the wait, another call continues it."""
        self._wait(bounded=True)
        self.met = True

    def waits_for(self, comm: Any) -> bool:
        """Did Ctrl-C end a call of `meet` of this job, and is `comm` the job's communicator?"""
        return not self.met and not self.lost and bool(self._comm == comm)

    def has_ranks_of(self, other: "Job") -> bool:
        """Has the other job the same processes, in the same order?"""
        return bool(self._mpi.Group.Compare(self._group, other._group) == self._mpi.IDENT)

    def set_limits(self, patience: float, silence: float) -> None:
        """Limits the waits from now on, in seconds; 0 means no limit.

        Args:
            patience: the limit to a wait for a process that is stopped or silent, and to each `allgather`.
            silence: the limit to the time without a message from another host.
        """
        self._native.set_limits(patience, silence)

    def allgather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank. `value` is any object that pickle can handle. Collective."""
        self._native.gather(pickle.dumps(value), bounded=True)
        self._wait(bounded=True)
        return [pickle.loads(each) for each in self._native.values(self._group.size)]

    def farewell(self) -> None:
        """Waits until all processes have called `farewell`. The wait has no limit, and takes almost no processor time."""
        self._native.gather(b"", bounded=False)
        self._wait(bounded=False)

    def tell(self, cause: str) -> None:
        """Tells the other processes why this process fails. One that waits learns it at once, any other when it next waits.

        Args:
            cause: a text such as ``raised ValueError: bad batch 17``.
        """
        self._native.tell(cause)

    def kill_stopped(self) -> None:
        """Kills the stopped processes of this host, because the job is over and its launcher may wait for them."""
        self._native.kill_stopped()

    def close(self) -> None:
        """Stops watching. Call it before MPI is finalised."""
        self._native.close()

    def _wait(self, bounded: bool) -> None:
        began, warned = time.monotonic(), False
        try:
            while not self._native.wait(_SLICE):
                waited = time.monotonic() - began
                if bounded and not warned and waited > WARN_AFTER:
                    warned = True
                    logging.getLogger("hvdlite").warning("init() has waited %.3g s %s", waited, WHAT_FOR)
        except LOST:
            self.lost = True
            raise
