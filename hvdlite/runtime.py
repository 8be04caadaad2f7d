"""The state of hvdlite in this process: the `Runtime`, which owns the engine between `init` and `shutdown`.

Over 400 lines, because all state of a process is in one object.
"""

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdlite import _native, failures, gpu, startup, watchdog
from hvdlite import config as knobs
from hvdlite.config import Config
from hvdlite.errors import HvdliteError, NotInitializedError, SystemFailure
from hvdlite.job import LOST, Job
from hvdlite.pool import ProcessPool, Role, Spare
from hvdlite.steps import Steps
from hvdlite.timeline.files import file_of_rank
from hvdlite.topology import Topology
from hvdlite.torchrun import join_job

if TYPE_CHECKING:
    from hvdlite._engine import Engine

# Most launchers kill the job at its first failure. So a rank that raised waits for this number of seconds before it ends, in
# which its peers print what they know.
_LAST_WORDS = 0.2
# The seconds for which `shutdown` waits at most until the watchdog's thread has ended, after the engine's shutdown.
_WATCHDOG_ENDS = 1.0
# How many ended operations a rank prints if an error of hvdlite ends the rank and no operation is in flight.
_ENDED_SHOWN = 3
# The seconds that a rank waits before it ends because another rank has failed, so that the other rank ends first.
_AFTER_CULPRIT = 0.4


class Runtime:
    """The state of hvdlite in this process; `RUNTIME` is the only instance."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.topology: Topology | None = None
        self.places: list[tuple[str, int]] = []  # host and process id of each rank
        self.config: Config = knobs.from_environment({})
        self.communicator: Any = None
        self._lock = threading.RLock()
        self._pid = 0  # of the process that initialised
        self.exiting = False  # do Python's exit handlers run? Then no thread can be started
        self.forked = False  # is this a forked child of the process that initialised? Then there is no engine
        self._armed = self._failed = self._ended = False
        self._job: Job | None = None
        self._other_jobs: list[Job] = []  # earlier jobs with other sets of processes, in order
        self._joining = False  # may other processes wait in init() for this one?
        self._watchdog: threading.Thread | None = None
        self._exemptions: list[float] = []  # the ends of all stall_limit statements that were entered, in any thread
        self._kept: list[Engine] = []  # engines of failed jobs
        self.pool: ProcessPool | None = None  # only in an elastic job
        self.spare: Spare | None = None  # only while this process is a spare
        self.recoveries = 0  # how often the job has gone on with other ranks; the same on all ranks
        # How often spares have become ranks. After the first time, no rank makes the checks at the start of training: ranks and
        # former spares start at different times, and elastic training gives all of them the same state.
        self.joins = 0
        # A function that elastic training sets. If a rank is lost while the exit handler waits, the handler calls the function,
        # which returns: has the job continued without that rank?
        self.at_loss: Callable[[HvdliteError], bool] | None = None
        self.steps = Steps()
        # Functions of doors. Each waits until what the door has started in this process has ended. All are called before this
        # process leaves the job or waits in `join`, and before a process set is removed.
        self.before_leaving: list[Callable[[], None]] = []
        self.at_stop: list[Callable[[], None]] = []  # the next stop() calls them while there still is an engine
        self.after_join: list[Callable[[Any, int], None]] = []  # called with the set and the last rank when all have joined

    # --- beginning and end ------------------------------------------------------------------------------------------

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A with statement in which one thread at a time initialises hvdlite.

        Raises:
            NotInitializedError: this is a forked child.
        """
        with self._lock:
            if self.forked:
                raise self._refusal()
            yield

    def start(self, comm: Any, dynamic: bool) -> None:
        """Initialises MPI if needed, and makes the engine. `hvdlite.init` lists the errors. Collective.

        In a spare of an elastic job, `start` makes no engine, and returns when the ranks call the spare (`hvdlite.pool`).
        """
        _native.load_native()
        config, problem = startup.own_knobs()
        config = config.replace(dynamic_process_sets=dynamic or config.dynamic_process_sets)
        join_job(startup.patience_of(config))
        startup.claim_rank()
        mpi = startup.load_mpi(self._may_finalize, config)
        self._guard_exit(alone=mpi.COMM_WORLD.size == 1)
        startup.check_launch(mpi, knobs.launcher_claim())
        chosen = startup.choose_communicator(mpi, comm)
        if config.elastic_spares and self.pool is None:
            self.pool, comm = startup.make_pool(chosen, config), None
        if self.pool is not None and comm is None and (self.recoveries or config.elastic_spares):
            chosen = self.pool.ranks
        if self.pool is not None and chosen == mpi.COMM_NULL:
            return self._wait_as_spare(self.pool, config)
        shim = _native.shim_path()
        if chosen.size > 1:
            _native.load_native().speak_at_sigterm(chosen.rank, chosen.size)
        try:
            takes = self.pool is not None and self.pool.take_ranks(chosen)
            self._join(mpi, chosen, takes, self._meet(mpi, chosen, takes, shim), shim, config, problem)
        except HvdliteError as error:
            self._joining = False  # all processes have met, or some never will
            self._failed = self._failed or isinstance(error, LOST)
            raise
        self._joining = False

    def _meet(self, mpi: Any, chosen: Any, takes: bool, shim: str) -> Job:
        if self._joining and (met := self._met_job()):
            self._failed = True
            met.tell("was interrupted in init(), and has called it again")
            raise SystemFailure("an earlier init() was interrupted when all ranks had called it: end this process")
        if self._job is None or not self._job.waits_for(chosen):
            self._other_jobs, self._job, self._joining = self._jobs(), None, True
            self._job = Job(_native.load_native(), shim, mpi, chosen, takes, self.stop)
        self._job.meet()
        # At its end this process waits for its jobs, in the order in which the jobs began. Of several jobs with the same
        # processes it waits only for the last one. All processes of a job must wait in the same order, even if only some of
        # them were in other jobs meanwhile.
        for job in filter(self._job.has_ranks_of, self._other_jobs[:]):
            job.close()
            self._other_jobs.remove(job)
        return self._job

    def _wait_as_spare(self, pool: ProcessPool, config: Config) -> None:
        self.config, self.at_loss = config, lambda _: False
        startup.configure_logging(config, pool.comm.rank, pool.comm.size)
        self.spare = Spare(pool)
        self.spare.wait_until(Role.CALLED)
        self.topology = self.spare.topology

    def _join(self, mpi: Any, chosen: Any, takes: bool, job: Job, shim: str, config: Config, problem: Any) -> None:
        job.set_limits(startup.patience_of(config), config.peer_timeout)
        everyone = startup.agree(job, config, problem)
        timelines = [values["timeline"] for values in everyone]
        rank = chosen.rank if timelines.count(config.timeline) > 1 else 0  # a path of its own needs no rank in the name
        timeline = file_of_rank(config.timeline, rank, self.recoveries) if config.timeline else None
        if any(timelines):  # now, because a rank that ends init() with an error later would leave the others waiting
            startup.agree(job, config, startup.refusal_of(timeline) if timeline else None)
        self.places = job.allgather((socket.gethostname(), os.getpid()))
        logger = startup.configure_logging(config, chosen.rank, chosen.size)
        for line in (*config.notes, *config.warnings) if chosen.rank == 0 else config.warnings:
            logger.warning(line)
        if config.tuning_file or config.autotune:
            from hvdlite import autotune

            config = autotune.at_init(chosen, config, logger)
        self.config, self.communicator = config, chosen  # before the engine, for stop()
        self.steps = Steps(self.steps.job + 1, self.steps.watchers)
        resolved = gpu.resolve(config).replace(flight_recorder_folder=startup.folder_of_records(config))
        self.engine = _native.load_native().Engine.create_mpi(shim, mpi._addressof(chosen), knobs.to_native(resolved), takes)
        self.engine.make_current()
        self.topology = Topology(*self.engine.topology)
        if chosen.size > 1 and not self.exiting:
            self._watchdog = watchdog.start(self.engine)
        if timeline:
            self.start_timeline(timeline, config.timeline_mark_cycles)

    def _guard_exit(self, alone: bool) -> None:
        """Installs the handlers for uncaught exceptions, forks and the end of the process."""
        if not self._pid:
            os.register_at_fork(after_in_child=self._forget)
            failures.install_excepthook(self)
            # Registered after startup.load_mpi's handler, so it runs before MPI is finalised.
            atexit.register(self._at_exit)
        self._pid = os.getpid()
        self._armed = not alone

    def _jobs(self) -> list[Job]:
        return self._other_jobs + ([] if self._job is None else [self._job])

    def _met_job(self) -> Job | None:
        """The job, if its processes know each other."""
        return self._job if self._job is not None and self._job.met else None

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A with statement in which the engine does not call MPI. It begins when all agreed operations have ended."""
        engine = self.engine
        if engine is not None:
            engine.pause()
        try:
            yield
        finally:
            if engine is not None:
                engine.resume()

    def forget_failed_jobs(self) -> None:
        """Lets this process enter a new job after ranks of earlier jobs were lost. After that, MPI is never finalised."""
        for each in self._jobs():
            each.close()
        self._job, self._other_jobs, self._failed = None, [], False

    def free_failed_engines(self) -> None:
        """Frees the engines of failed jobs. Call it when all living processes have left those jobs, because the processes of a
        job share memory.

        Even then an engine keeps the memory of transfers that MPI has not ended.
        """
        self._kept.clear()

    def stop(self) -> None:
        """Leaves the job. Operations of peers that still need this rank fail. Does nothing if there is no engine."""
        with self._lock, ExitStack() as steps:  # calls all steps, the last one first, even if one raises, such as Ctrl-C
            steps.callback(self._stop_engine)
            for end in (*reversed(self.at_stop), *(() if self.engine is None else self.before_leaving)):
                steps.callback(end)

    def _stop_engine(self) -> None:
        self.at_stop.clear()
        engine, self.engine = self.engine, None
        if engine is None:
            return
        if self.communicator.size > 1:
            _native.load_native().speak_at_sigterm(self.communicator.rank, self.communicator.size, has_shut_down=True)
        self.topology, self.communicator, self._ended = None, None, True
        if engine.failure_cause:
            # Other ranks may still use the engine's memory, and MPI_Finalize may wait for dead ranks.
            self._kept.append(engine)
            self._failed = True
        else:
            self._armed = False
        engine.shutdown()
        if self._watchdog is not None:
            self._watchdog.join(_WATCHDOG_ENDS)
            self._watchdog = None

    def _may_finalize(self, ours: bool) -> bool:
        """May MPI be finalised at exit? Waits for the other processes, as MPI_Finalize would, but notices if one of them fails.

        Args:
            ours: will the caller finalise MPI? If not, mpi4py will; so if MPI must not be finalised, this process ends here.
        """
        job = self._met_job()
        if job is not None and not self._failed:
            try:
                if self._joining:
                    job.tell("has left during init(): its program ended")
                    self._failed = True
                else:
                    self._farewell()
            except LOST as error:
                self._failed = True
                logging.getLogger("hvdlite").error(f"at the end of the program: {error}")
        if self.spare is not None:
            self.spare.end()
        elif self.pool is not None:
            self.pool.dismiss_spares()
        if self._failed and job is not None:
            time.sleep(_AFTER_CULPRIT)
            job.kill_stopped()
        for each in self._jobs():
            each.close()
        if not ours and (self._failed or self.at_loss):
            failures.end_process(1 if self._failed else 0)
        # With `at_loss` MPI is not finalised. Otherwise this process could end while another process waits in MPI_Finalize for
        # a process that is lost later.
        return not self._failed and self.at_loss is None

    def _farewell(self) -> None:
        while True:
            try:
                for each in self._jobs():
                    each.farewell()
                return
            except LOST as error:
                if self.at_loss is None or not self.at_loss(error):
                    raise

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self.exiting = True
            self.stop()

    def _forget(self) -> None:
        """Runs in a forked child, which has no engine. The child can still read the topology."""
        self.forked = self.forked or self.engine is not None
        startup.give_claim_back()
        self.engine = None
        self._lock = threading.RLock()
        self.at_stop.clear()

    # --- what hvdlite.failures asks for -----------------------------------------------------------------------------

    def is_armed(self) -> bool:
        """Would peers wait for this process if it ended now?"""
        return self._armed and os.getpid() == self._pid

    def record(self, error: BaseException) -> str:
        """The unfinished operations of this process. If there are none and the error is hvdlite's, the last three that ended.

        Empty for a rank that ends because another rank failed: it has printed its operations already.
        """
        engine = self.engine
        if engine is None or engine.failure_cause:
            return ""
        return engine.flight_record(_ENDED_SHOWN if isinstance(error, HvdliteError) else 0)

    def announce(self, cause: str) -> None:
        """Tells the peers why this process ends.

        The process waits until the peers with an engine have answered, at most HVDLITE_FAILURE_LINGER. A rank that ends because
        another rank failed tells nothing. It only waits for a moment, so that the other rank ends first, and the launcher names
        that other rank. In a spare this method kills the process.
        """
        engine, job = self.engine, self._met_job()
        if self.spare is not None:
            self.spare.end()
        if (engine is not None and engine.failure_cause) or (job is not None and job.lost):
            time.sleep(_AFTER_CULPRIT)
            if job is not None:
                job.kill_stopped()
            return
        if engine is not None:
            cause += _after(engine.flight_record())
        if job is not None:
            job.tell(cause)  # for peers without an engine
        if engine is not None:
            engine.publish_failure(cause)
        if not knobs.launcher_spares_others():
            time.sleep(_LAST_WORDS)

    def start_timeline(self, file: Path, mark_cycles: bool) -> None:
        """Traces this rank's operations into this file; `hvdlite.start_timeline` says more."""
        self.require().start_timeline(str(file), self.config.timeline_max_bytes, mark_cycles)
        if not self.exiting:
            from hvdlite import sampling  # not above: few programs need it

            sampling.start(file, self.config.timeline_max_bytes, self.require_topology().rank)

    @contextmanager
    def stall_limit(self, seconds: float) -> Iterator[None]:
        """Exempts this rank from stall checks for `seconds`; see `hvdlite.stall_limit`."""
        engine = self.require()
        until = time.monotonic() + seconds
        self._exemptions.append(until)
        try:
            self._exempt(engine)
            yield
        finally:
            self._exemptions.remove(until)
            if self.engine is engine:
                self._exempt(engine)

    def _exempt(self, engine: "Engine") -> None:
        engine.exempt_from_stalls(max(0.0, max(self._exemptions, default=0.0) - time.monotonic()))

    # --- for operations ---------------------------------------------------------------------------------------------

    def require(self) -> "Engine":
        """The engine.

        Raises:
            NotInitializedError: this process has no engine. The text says why.
        """
        engine = self.engine
        if engine is None:
            raise self._refusal()
        return engine

    def wait_for_doors(self) -> None:
        """Waits until what the doors have started in this process has ended (`before_leaving`)."""
        for wait in self.before_leaving:
            wait()

    def require_topology(self) -> Topology:
        """The topology. Forked children can read it too, because workers of data loaders ask for rank and size.

        Raises:
            NotInitializedError: hvdlite has not been initialised.
        """
        if self.topology is None:
            raise self._refusal()
        return self.topology

    def _refusal(self) -> NotInitializedError:
        if self.forked:
            return NotInitializedError(
                f"process {os.getpid()} was forked from process {self._pid}, in which hvdlite is initialized. A forked "
                "child has no engine: it may ask for rank and size, but collectives, init and shutdown belong to the "
                "parent. Start workers that need hvdlite with mpirun."
            )
        if self.spare is not None:
            return NotInitializedError(
                "this process is a spare of an elastic job, and no rank yet: it may ask for rank and size, but its program "
                "must call no collective before its elastic function (hvdlite.elastic.run, or batches() of an elastic.Job)"
            )
        if self._ended:
            return NotInitializedError(
                "hvdlite was shut down in this process: call this earlier, or call hvdlite.init() first."
            )
        return NotInitializedError()


def _after(record: str) -> str:
    """The last operation of a flight record, in parentheses, for the text of a failure's cause."""
    last = record.rstrip().rpartition("\n")[2].strip()
    return f" (after {last.partition(': submitted ')[0].partition(' ')[2]})" if last else ""


RUNTIME = Runtime()
