"""MPI's agreement on the processes that live (MPIX_Comm_shrink of ULFM), with a wait that a time limit or a signal can end."""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from hvdlite.errors import OperationTimeoutError, SystemFailure

# The seconds after which a rank logs that it waits for others; and the seconds after which a wait handles signals.
_WARN_AFTER, _SLICE = 10.0, 0.1
# The number of probes after which MPI knows which processes are lost. MPI learns of losses only while it makes progress. A call
# that asks for the lost processes makes no progress, but a probe does. Open MPI reads messages about losses only in every
# eighth pass of its progress loop.
_PROBES = 8


def shrink_in_thread(comm: Any, patience: float) -> Any:
    """The communicator of the living processes, in their order. Collective over them.

    MPI's wait cannot be interrupted. So a second thread waits in MPI, and the calling thread handles signals.

    Args:
        comm: the communicator before the loss.
        patience: the limit to the wait in seconds; 0: no limit.

    Raises:
        OperationTimeoutError: another living process has not called `shrink_in_thread` in time.
        SystemFailure: MPIX_Comm_shrink failed.
    """
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(comm.Shrink()), name="hvdlite-shrink", daemon=True)
    thread.start()
    for wait in _waits(patience):
        thread.join(wait)
        if not thread.is_alive():
            break
    if not made:
        raise SystemFailure("MPI could not agree on the processes that live (MPIX_Comm_shrink failed)")
    return made[0]


def shrink_at_exit(comm: Any, patience: float) -> Any:
    """As `shrink_in_thread`, for exit handlers, in which Python starts no thread. First waits until MPI knows of a loss.

    If the other processes do not call `shrink_at_exit` in time after that, this process ends with exit code 1. They may be on a
    host that this process cannot reach, which MPI does not notice. (MPIX_Comm_ishrink, which could be watched, fails in Open
    MPI 5.0.)
    """
    from mpi4py import MPI

    from hvdlite._engine import Deadline

    for wait in _waits(patience):
        for _ in range(_PROBES):
            MPI.COMM_SELF.Iprobe()
        if comm.Get_failed().size:
            break
        time.sleep(wait)
    if patience <= 0:
        return comm.Shrink()
    text = (
        f"at the end of the program: a rank was lost, and this one has waited {patience:g} s for the others to agree on that "
        "(HVDLITE_STALL_SHUTDOWN_TIME_SECONDS). One of them is stopped, or its host cannot be reached"
    )
    deadline = Deadline(patience, comm.rank, comm.size, text)
    try:
        return comm.Shrink()
    finally:
        deadline.cancel()


def _waits(patience: float) -> Iterator[float]:
    """Short waits, until `patience` seconds are over; logs a line from time to time.

    Raises:
        OperationTimeoutError: the time is over.
    """
    began, warn_at = time.monotonic(), _WARN_AFTER
    while True:
        yield _SLICE
        waited = time.monotonic() - began
        text = (
            f"a rank was lost, and this one has waited {waited:.3g} s for the others to notice it. They compute, or a process "
            "has ended with an exit code other than 0, which MPI does not report"
        )
        if waited > warn_at:
            warn_at *= 2
            logging.getLogger("hvdlite").warning(text)
        if 0 < patience < waited:
            raise OperationTimeoutError(f"{text} (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS={patience:g})")
