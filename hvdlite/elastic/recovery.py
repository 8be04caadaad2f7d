"""Goes on without the ranks that were lost: the others leave the job that has failed, and enter a new one.

Each roster has an engine of its own. The old engine ends with the first cause of the failure, and nothing of it is used again.
MPI agrees on the processes that live and keeps their order (ULFM's MPIX_Comm_shrink), and `hvdlite.init` makes everything anew
on them. If more ranks are lost meanwhile, this is done again.

Elastic functions end together (`Call.end`). So a rank that is still in its function can rely on the others: they are in it
too, or they wait at its end, or all have ended it and some wait in the exit handler. All of them come to the recovery.
"""

import logging
import threading
import time
from typing import Any

from hvdlite import basics, startup
from hvdlite.config import launcher_spares_others
from hvdlite.errors import HvdliteError, OperationTimeoutError, PeerLostError, SystemFailure, UnsupportedError
from hvdlite.failures import RAISED
from hvdlite.objects import allgather_object
from hvdlite.ops import barrier
from hvdlite.runtime import RUNTIME

__all__ = ["Call", "Passed", "why_not"]

# Seconds for which ranks wait for each other before a rank logs it; and the time between two looks at signals meanwhile.
_WARN_AFTER, _SLICE = 10.0, 0.1


class Passed(Exception):
    """All ranks had ended the function before a rank was lost."""


def why_not(loss: BaseException | None) -> str:
    """The reason why the job cannot go on after this error; "" if it can."""
    if not isinstance(loss, PeerLostError):
        return "hvdlite replaces ranks that were lost, and neither adds ranks nor gives up a rank that has left in good order"
    if RAISED in str(loss):
        return "the program of that rank has raised an exception, which would come again on other ranks"
    if not launcher_spares_others():
        return (
            "this job's MPI does not go on without a process: start it with `hvdlite run --elastic`, or with `mpirun --with-ft "
            "ulfm` of Open MPI 5 or newer"
        )
    limit = RUNTIME.config.elastic_reset_limit
    if limit and RUNTIME.recoveries >= limit:
        return f"the job has lost ranks {limit + 1} times, and HVDLITE_ELASTIC_RESET_LIMIT={limit}"
    return ""


_passed = 0  # the elastic functions of which this process knows that all ranks have ended them
_comm: Any = None  # of the newest job of an elastic function


class Call:
    """One call of an elastic function. All ranks call the same functions in the same order."""

    def __init__(self) -> None:
        global _comm
        self._number = _passed
        _comm = RUNTIME.communicator
        if launcher_spares_others():
            RUNTIME.at_loss = _help_at_exit

    def end(self) -> None:
        """Waits for the other ranks. A rank that passes this knows that all have come here."""
        barrier()
        self._pass()

    def recover(self, loss: PeerLostError, step: int = 0) -> list[int]:
        """Leaves the job that has failed with this error, and enters that of the ranks that live. Collective over these.

        Args:
            loss: the error.
            step: the number of steps that this rank has applied, for those who count them.

        Returns:
            The steps of all ranks, by their new numbers.

        Raises:
            Passed: all ranks have ended this function.
            UnsupportedError: fewer ranks are left than HVDLITE_ELASTIC_MIN_RANKS.
            HvdliteError: the new job could not be made.
        """
        reports = _enter_next(loss, step)
        if any(passed > self._number for passed, _ in reports):
            self._pass()
            raise Passed
        least = RUNTIME.config.elastic_min_ranks
        if len(reports) < least:
            raise UnsupportedError(
                f"{len(reports)} ranks are left, and HVDLITE_ELASTIC_MIN_RANKS={least} asks for more ({loss})"
            )
        return [step for _, step in reports]

    def _pass(self) -> None:
        global _passed
        _passed = self._number + 1


def _help_at_exit(loss: HvdliteError) -> bool:
    """In the exit handler: helps ranks that have not passed the end of their function yet. False: the job cannot go on."""
    if not isinstance(loss, PeerLostError) or why_not(loss):
        return False
    _enter_next(loss, 0)
    RUNTIME.stop()
    return True


def _enter_next(loss: PeerLostError, step: int) -> list[tuple[int, int]]:
    """Makes a job of the ranks that live, as often as it takes. Returns the functions passed and the step of each rank."""
    global _comm
    from mpi4py import MPI

    dynamic = RUNTIME.config.dynamic_process_sets
    while True:
        survivors = _shrink(_comm)
        if survivors.size == _comm.size:
            raise loss  # no process has ended: a host is silent, say, and would be in the next job as well
        if survivors.rank == 0:
            logging.getLogger("hvdlite").warning("%d of %d ranks go on after this: %s", survivors.size, _comm.size, loss)
        _comm = survivors
        basics.shutdown()
        RUNTIME.forget_failed_jobs()
        RUNTIME.recoveries += 1
        try:
            basics.init(survivors, "dynamic" if dynamic else None)
            return allgather_object((_passed, step), name="hvdlite.elastic.report")
        except PeerLostError as error:
            loss = error
        except (MPI.Exception, SystemFailure) as error:
            survivors.Revoke()  # others may be in a collective of MPI, which would wait for this process
            loss = PeerLostError(f"a rank was lost while a new job was made: {error}")


def _shrink(comm: Any) -> Any:
    """The communicator of the processes that live, in their order. All of them must come.

    MPI does not learn of a process that has ended itself with another exit code than 0, and its wait cannot be interrupted.
    """
    if RUNTIME.exiting:  # Python starts no thread any more
        return comm.Shrink()
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(comm.Shrink()), name="hvdlite-shrink", daemon=True)
    thread.start()
    began, warn_at = time.monotonic(), _WARN_AFTER
    patience = startup.patience_of(RUNTIME.config)
    while thread.is_alive():
        thread.join(_SLICE)
        waited = time.monotonic() - began
        text = (
            f"a rank was lost, and this one has waited {waited:.3g} s for the others to notice it. They compute, or a process "
            "has ended itself with another exit code than 0, of which MPI does not tell"
        )
        if waited > warn_at:
            warn_at *= 2
            logging.getLogger("hvdlite").warning(text)
        if 0 < patience < waited:
            raise OperationTimeoutError(f"{text} (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS={patience:g})")
    if not made:
        raise SystemFailure("MPI could not agree on the processes that live (MPIX_Comm_shrink failed)")
    return made[0]
