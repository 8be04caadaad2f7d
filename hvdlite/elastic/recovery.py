"""Continues without lost ranks, and with spares: the ranks leave their job and enter a new one.

Each job has an engine of its own, and the engine of a failed job is not used again. The living processes agree on their new
ranks (`hvdlite.pool`), and `hvdlite.init` makes a new engine on these ranks. If more ranks are lost meanwhile, the living
processes do this again.

An elastic function is one that `hvdlite.elastic.run` calls, or ``batches()`` of a ``Job``. All ranks end it together, by the
barrier in `Call.end`. So while a rank is still in an elastic function, every other rank is in this function too, or waits in
`Call.end`, or has just come out of `Call.end` and may wait in the exit handler. All these ranks take part in the recovery.
"""

import logging
import time
import traceback
from typing import Any, NamedTuple

from hvdlite import basics, startup
from hvdlite.config import launcher_spares_others
from hvdlite.errors import HvdliteError, PeerLostError, SystemFailure, UnsupportedError
from hvdlite.failures import RAISED, SILENT
from hvdlite.objects import broadcast_object
from hvdlite.ops import barrier
from hvdlite.pool import ProcessPool, Role
from hvdlite.runtime import RUNTIME
from hvdlite.shrink import shrink_at_exit, shrink_in_thread

_LOOK_EVERY = 0.1  # seconds between two looks for a spare, while fewer ranks are left than HVDLITE_ELASTIC_MIN_RANKS


class Passed(Exception):
    """All ranks had ended the function before a rank was lost."""


def why_not(loss: BaseException | None) -> str:
    """The reason why the job cannot continue after the error `loss`; "" if the job can continue."""
    if not isinstance(loss, PeerLostError):
        return (
            "hvdlite continues without ranks that were lost, and with spares, but neither with other hosts nor without a rank "
            "that has left on its own"
        )
    if RAISED in str(loss):
        return "the program of that rank has raised an exception, which would come again on other ranks"
    if SILENT in str(loss):
        return "a host that is silent may still be at work, and MPI can do without a process only if the process has ended"
    if not launcher_spares_others():
        return (
            "this job's MPI does not go on without a process: start it with `hvdlite run --elastic`, or by Open MPI "
            "5's mpirun with the options in docs/elastic.md"
        )
    limit = RUNTIME.config.elastic_reset_limit
    if limit and RUNTIME.recoveries >= limit:
        return f"the job has changed its ranks {RUNTIME.recoveries} times, and HVDLITE_ELASTIC_RESET_LIMIT={limit}"
    return ""


_passed = 0  # the number of elastic functions that, as this process knows, all ranks have ended
_passed_by_others = 0  # the number that the other ranks had ended when this process, a spare, joined their job


class _RecoveryReport(NamedTuple):
    """The report of a process to the others when they regroup.

    Attributes:
        passed: the number of elastic functions that, as the process knows, all ranks have ended.
        recoveries: `Runtime.recoveries` of the process. A former spare takes over the number of the ranks.
        point: the number of the process's newest point (`hvdlite.elastic.steps`); None: the process was a
            spare and has no state yet.
    """

    passed: int
    recoveries: int
    point: float | None


def spare_has_news() -> bool:
    """On rank 0: is a called spare (`hvdlite.pool.Role`) ready, or lost? On other ranks: False. Sends nothing."""
    return awaits_spare() and basics.rank() == 0 and _pool().has_news_of_spare()


def awaits_spare() -> bool:
    """Is there a called spare that is not a rank yet? The same on all ranks."""
    return RUNTIME.pool is not None and RUNTIME.pool.has(Role.CALLED)


def _pool() -> ProcessPool:
    assert RUNTIME.pool is not None
    return RUNTIME.pool


class Call:
    """One call of an elastic function. All ranks call the same functions in the same order.

    In a spare, the constructor waits until the spare is a rank.

    Attributes:
        joined: if this process was a spare, the result of `recover`: the points of all ranks.

    Raises:
        Passed: this process was a spare, and the ranks had ended this function before it joined their job.
        Whatever `recover` raises.
    """

    def __init__(self) -> None:
        self._number = _passed
        self.joined: list[float | None] = []
        if launcher_spares_others():
            RUNTIME.at_loss = _help_at_exit
        if RUNTIME.spare is not None:
            reports = RUNTIME.spare.wait_until(Role.RANK)
            RUNTIME.spare = None
            self.joined = self._points_of(_enter_next(None, None, reports))
        elif _passed < _passed_by_others:
            self._pass()
            raise Passed
        elif RUNTIME.pool is None or RUNTIME.pool.ranks is not RUNTIME.communicator:
            RUNTIME.pool = ProcessPool(RUNTIME.communicator, RUNTIME.communicator.size)

    def end(self) -> None:
        """Waits for the other ranks. When `end` returns, all ranks have called `end`."""
        barrier()
        self._pass()

    def recover(self, loss: PeerLostError, point: float | None = 0) -> list[float | None]:
        """Leaves the failed job, and enters a new job of the living ranks. Collective over the living ranks.

        If fewer ranks remain than HVDLITE_ELASTIC_MIN_RANKS, it waits for spares.

        Args:
            loss: the error with which the job has failed.
            point: the number of this rank's newest point; 0 if the caller counts no points. None: this rank has no state yet.

        Returns:
            The `point` of each rank, by their new numbers.

        Raises:
            Passed: all ranks have ended this function.
            UnsupportedError: fewer ranks remain than HVDLITE_ELASTIC_MIN_RANKS, and no spare comes.
            HvdliteError: the new job could not be made.
        """
        points = self._points_of(_enter_next(loss, point))
        until = time.monotonic() + RUNTIME.config.elastic_timeout
        while len(points) < RUNTIME.config.elastic_min_ranks:
            try:
                self._wait_for_spare(until, loss)
                points = self.admit(point)
            except PeerLostError as error:
                loss = error
                if why_not(loss):
                    raise
                points = self._points_of(_enter_next(loss, point))
        return points

    def spare_is_ready(self) -> bool:
        """Is it time to `admit`? The same on all ranks. Collective if a spare has been called; otherwise it sends nothing."""
        return awaits_spare() and bool(broadcast_object(spare_has_news(), name="hvdlite.elastic.spare"))

    def admit(self, point: float | None = 0) -> list[float | None]:
        """Leaves the job, and enters one that has the ready spares, too. Collective. Returns and raises as `recover`."""
        return self._points_of(_enter_next(None, point))

    def _wait_for_spare(self, until: float, loss: PeerLostError) -> None:
        least, ranks, timeout = RUNTIME.config.elastic_min_ranks, basics.size(), RUNTIME.config.elastic_timeout
        text = f"ranks left: {ranks}, and HVDLITE_ELASTIC_MIN_RANKS={least} asks for more"
        if not awaits_spare():
            raise UnsupportedError(f"{text} ({loss})")
        if basics.rank() == 0:
            logging.getLogger("hvdlite").warning("%s: they wait for a spare", text)
        while True:
            news, late = broadcast_object((spare_has_news(), time.monotonic() > until), name="hvdlite.elastic.spare")
            if news:
                return
            if late:
                raise UnsupportedError(f"{text}; no spare was ready in HVDLITE_ELASTIC_TIMEOUT={timeout:g} s ({loss})")
            time.sleep(_LOOK_EVERY)

    def _points_of(self, reports: list[_RecoveryReport]) -> list[float | None]:
        global _passed_by_others
        _passed_by_others = max(each.passed for each in reports)
        if _passed_by_others > self._number:
            self._pass()
            raise Passed
        return [each.point for each in reports]

    def _pass(self) -> None:
        global _passed
        _passed = self._number + 1


def _help_at_exit(loss: HvdliteError) -> bool:
    """Runs in the exit handler: makes a new job with ranks that are still in their function. False: the job cannot continue."""
    if not isinstance(loss, PeerLostError) or why_not(loss):
        return False
    try:
        _enter_next(loss, 0)
    except HvdliteError as error:
        logging.getLogger("hvdlite").error("at the end of the program: %s", error)
        return False
    RUNTIME.stop()
    return True


def _shrink(comm: Any) -> Any:
    # Open MPI 5.0 spoils messages of MPIX_Comm_shrink that a second thread receives: `era_cb_fn` in its file
    # coll_ftagree_earlyreturning.c writes pointers over the received data. Then all processes crash, or wait for ever. So
    # the engine does not call MPI meanwhile (`quiet`). Only the thread that sends heartbeats goes on, because other hosts rely
    # on the heartbeats; this thread calls MPI seldom and shortly.
    with RUNTIME.quiet():
        return (shrink_at_exit if RUNTIME.exiting else shrink_in_thread)(comm, startup.patience_of(RUNTIME.config))


def _enter_next(loss: PeerLostError | None, point: float | None, reports: list[Any] | None = None) -> list[_RecoveryReport]:
    """Makes a job of the living ranks. If ranks are lost meanwhile, it tries again.

    Args:
        loss: the error of the failed job; None if only spares are added.
        point: this rank's `_RecoveryReport.point`.
        reports: in a former spare the ranks' reports, which it has got when it regrouped with the ranks; in a rank None.

    Returns:
        The reports of all ranks.

    Raises:
        PeerLostError: `loss`, if no process has ended.
        HvdliteError: the new job could not be made.
    """
    from mpi4py import MPI

    pool, dynamic = _pool(), RUNTIME.config.dynamic_process_sets
    while True:
        if reports is None:
            ranks = pool.ranks.size
            reports = pool.regroup(Role.RANK, (_passed, RUNTIME.recoveries, point), _shrink)
            if loss is not None and not pool.lost:
                raise loss  # no process has ended, so the next job would have the same processes; perhaps a host is silent
            if loss is not None and pool.ranks.rank == 0:
                logging.getLogger("hvdlite").warning("%d of %d ranks go on after this: %s", ranks - pool.lost, ranks, loss)
        basics.shutdown()
        RUNTIME.forget_failed_jobs()
        everyone = [_RecoveryReport(*report) if report else _RecoveryReport(0, 0, None) for report in reports]
        RUNTIME.recoveries = max(each.recoveries for each in everyone) + 1
        try:
            basics.init(pool.ranks, "dynamic" if dynamic else None)
        except PeerLostError as error:
            loss = error
        except (MPI.Exception, SystemFailure) as error:
            pool.comm.Revoke()  # others may be in a collective of MPI, which would wait for this process
            loss = PeerLostError(f"a rank was lost while a new job was made: {error}")
        else:
            if loss is not None:
                traceback.clear_frames(loss.__traceback__)  # their handles refer to the error and to the engine
            RUNTIME.free_failed_engines()
            RUNTIME.joins += None in reports
            return everyone
        reports = None
