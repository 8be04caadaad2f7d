"""The one mutable global of hvdlite: the `Runtime`, which owns the engine between `init` and `shutdown`."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hvdlite import config as knobs
from hvdlite import failures, startup
from hvdlite.config import Config
from hvdlite.errors import (
    ErrorCode,
    HvdliteError,
    InvalidArgumentError,
    NotInitializedError,
    install,
)
from hvdlite.requests import tensor_name
from hvdlite.topology import Topology

if TYPE_CHECKING:
    from hvdlite._engine import Engine
    from hvdlite.process_sets import ProcessSet

__all__ = [
    "RUNTIME",
    "Runtime",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
]

# After these an operation's memory is free again; after any other failure the transport may still write to it.
_HARMLESS = (ErrorCode.INVALID_ARGUMENT, ErrorCode.MISMATCH, ErrorCode.UNSUPPORTED, ErrorCode.TIMEOUT)
# Seconds by which a rank that ends because of another lets that one go first.
_AFTER_CULPRIT = 0.3


class Runtime:
    """The state of hvdlite in this process; `RUNTIME` is the only instance."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.topology: Topology | None = None
        self.config: Config = knobs.from_environment({})
        self.communicator: Any = None
        self._lock = threading.RLock()
        self._pid = 0  # of the process that initialised
        self._forked = False
        self._armed = False
        self._failed = False
        self._naming = threading.RLock()
        self._counters: dict[tuple[int, int], int] = {}
        self._joins = 0
        self._parked: deque[tuple[Engine, list[int], object]] = deque()
        self._kept: list[object] = []

    # --- beginning and end ------------------------------------------------------------------------------------------

    def start(self, comm: Any, dynamic: bool) -> None:
        """Initialises MPI where needed and makes the engine; `init` says what may go wrong. Collective over the job."""
        engine_class = _load_engine_class()
        mpi = startup.load_mpi(may_finalize=lambda: not self._failed)
        startup.check_launch(mpi, knobs.launcher_claim())
        chosen = startup.choose_communicator(mpi, comm)
        self._guard_exit(alone=mpi.COMM_WORLD.size == 1)
        config, shim, problem = self._prepare(dynamic)
        startup.agree(chosen, config, problem)
        logger = startup.configure_logging(config, chosen.rank, chosen.size)
        for line in config.notes if chosen.rank == 0 else ():
            logger.info(line)
        for line in config.warnings:
            logger.warning(line)
        self.engine = engine_class.create_mpi(shim, mpi._addressof(chosen), knobs.to_native(config))
        self.topology = Topology(*self.engine.topology)
        self.config = config
        self.communicator = chosen

    def _prepare(self, dynamic: bool) -> tuple[Config, str, str]:
        """The knobs, the path of the shim for the loaded MPI, and what is wrong with this rank ("" if nothing)."""
        config = knobs.from_environment({})
        try:
            from hvdlite._native import shim_path

            config = knobs.from_environment()
            if dynamic:
                config = config.replace(dynamic_process_sets=True)
            return config, shim_path(), ""
        except (HvdliteError, ImportError, OSError) as error:
            return config, "", f"{error}"

    def _guard_exit(self, alone: bool) -> None:
        """From here on an exception, a fork or the end of the process is noticed."""
        if not self._pid:
            os.register_at_fork(after_in_child=self._forget)
            failures.install_excepthook(self)
            # Registered after startup.load_mpi's, hence run before MPI is finalised.
            atexit.register(self._at_exit)
        self._pid = os.getpid()
        self._armed = not alone

    def stop(self) -> None:
        """Leaves the job; what peers still wait for from this rank fails. Harmless where nothing was started."""
        with self._lock:
            engine, self.engine = self.engine, None
            if engine is None:
                return
            self.topology = None
            self.communicator = None
            self._counters.clear()
            self._joins = 0
            parked = list(self._parked)
            self._parked.clear()
            try:
                engine.shutdown()
            finally:
                if engine.failure_cause:
                    # The transport may still use the memory, and MPI_Finalize may wait for the dead.
                    self._kept.append((engine, parked))
                    self._failed = True
                else:
                    self._armed = False

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self.stop()

    def _forget(self) -> None:
        """In a forked child: there is no engine any more; the topology stays readable."""
        self._forked = self._forked or self.engine is not None
        self.engine = None
        self._lock = threading.RLock()
        self._naming = threading.RLock()
        self._parked.clear()

    # --- what failures.Announcer asks for ---------------------------------------------------------------------------

    def is_armed(self) -> bool:
        """Would peers wait for this process if it ended now?"""
        return self._armed and os.getpid() == self._pid

    def announce(self, cause: str) -> str:
        """Tells the peers why this process ends, and returns the record of its last operations.

        A rank that ends because of another has printed cause and record already; it lets the other go first, so that
        the launcher names the right one.
        """
        engine = self.engine
        if engine is None:
            return ""
        if engine.failure_cause:
            time.sleep(_AFTER_CULPRIT)
            return ""
        engine.publish_failure(cause)
        return engine.flight_record()

    # --- for operations ---------------------------------------------------------------------------------------------

    def require(self) -> "Engine":
        """The engine.

        Raises:
            NotInitializedError: there is none in this process; says why.
        """
        engine = self.engine
        if engine is None:
            raise self._refusal()
        if self._parked:
            self.sweep()
        return engine

    def require_topology(self) -> Topology:
        """The topology; readable in forked children too (data loaders ask for rank and size).

        Raises:
            NotInitializedError: hvdlite has not been initialised.
        """
        if self.topology is None:
            raise self._refusal()
        return self.topology

    def _refusal(self) -> NotInitializedError:
        if self._forked:
            return NotInitializedError(
                f"process {os.getpid()} was forked from process {self._pid}, in which hvdlite is initialized. A forked "
                "child has no engine: it may ask for rank and size, but collectives, init and shutdown belong to the "
                "parent. Start workers that need hvdlite with mpirun."
            )
        return NotInitializedError()

    @contextmanager
    def unnamed(self, kind: int, process_set: int) -> Iterator[str]:
        """The name of an operation that the user did not name, from its number among those of its kind on its set.

        The number is used up when the block ends without an exception: ranks must agree on numbers, so a call that
        one rank refuses may not count.
        """
        with self._naming:
            key = (kind, process_set)
            number = self._counters.get(key, 0)
            life = f"{self._joins}." if self._joins and not process_set else ""
            yield tensor_name(kind, None, f"{life}{number}")
            self._counters[key] = number + 1

    def joined(self) -> None:
        """Counts unnamed operations of the global set anew, after a join: ranks have called them unequally often."""
        with self._naming:
            self._joins += 1
            self.forget_counters(0)

    def forget_counters(self, process_set: int) -> None:
        """Counts anew for a process set's id, which is reused once the set is removed."""
        with self._naming:
            for key in [key for key in self._counters if key[1] == process_set]:
                del self._counters[key]

    def park(self, engine: "Engine", numbers: Sequence[int], memory: object) -> None:
        """Keeps memory alive until these operations have ended; called when a Handle is dropped early."""
        if not self._forked:
            self._parked.append((engine, list(numbers), memory))

    def keep_after(self, error: HvdliteError, memory: object) -> None:
        """Keeps memory for good if the transport may still touch it after this failure."""
        if error.code not in _HARMLESS:
            self._kept.append(memory)

    def sweep(self) -> None:
        """Lets go of parked memory whose operations have ended."""
        for _ in range(len(self._parked)):
            try:
                engine, numbers, memory = self._parked.popleft()
            except IndexError:  # another thread sweeps too
                return
            if engine is not self.engine:
                continue  # its operations ended with it
            while numbers and engine.poll(numbers[-1]):
                try:
                    engine.wait(numbers.pop())
                except HvdliteError as error:
                    self.keep_after(error, memory)
            if numbers:
                self._parked.append((engine, numbers, memory))


def _load_engine_class() -> "type[Engine]":
    try:
        from hvdlite import _engine
    except ImportError as error:
        raise ImportError(
            f"hvdlite's native module cannot be loaded: {error}; install hvdlite with pip, or run `make develop` in a "
            "source tree"
        ) from error
    install(_engine.set_error_classes)
    return _engine.Engine


RUNTIME = Runtime()


# --- the public functions -------------------------------------------------------------------------------------------


def init(comm: Any = None, process_sets: "Sequence[ProcessSet] | str | None" = None) -> None:
    """Joins the job: every process of it calls this once before anything else. Collective over the communicator.

    Initialises MPI through mpi4py (thread level multiple) if nobody has. Calling it again does nothing but give the
    process sets their ids; after `shutdown` it starts anew.

    Args:
        comm: None for all processes that mpirun started, a list of ranks of MPI_COMM_WORLD (hvdlite's ranks then follow
            the order of the list), or an mpi4py communicator. Only members may call.
        process_sets: `ProcessSet` objects to register, the same on all ranks (one made from a communicator may differ:
            all of the ranks' sets are then registered); or ``"dynamic"`` to allow `add_process_set` later.

    Raises:
        InvalidArgumentError: a knob has a bad value or differs between ranks, this process is not a member of `comm`,
            or a process set is invalid or a duplicate.
        SystemFailure: MPI cannot be loaded, or the launcher and MPI disagree about the number of processes.
        NotInitializedError: this is a forked child of an initialised process.
        ImportError: the native module is missing.
    """
    from hvdlite import process_sets as sets

    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise InvalidArgumentError(f'init(process_sets={process_sets!r}): pass ProcessSet objects or "dynamic"')
    given = [] if process_sets is None or isinstance(process_sets, str) else process_sets
    listed = [entry if isinstance(entry, sets.ProcessSet) else sets.ProcessSet(entry) for entry in given]
    with RUNTIME._lock:
        if RUNTIME._forked:
            raise RUNTIME._refusal()
        if RUNTIME.engine is None:
            RUNTIME.start(comm, dynamic=process_sets == "dynamic")
            try:
                sets.register_initial(comm, listed)
            except InvalidArgumentError:  # the same on all ranks
                shutdown()
                raise
        else:
            sets.bind_existing(listed)


def shutdown() -> None:
    """Leaves the job. Operations that peers still expect from this rank fail there with a text that says so.

    Collective only in that all ranks are expected to do it; it runs at exit by itself. Does nothing where hvdlite is
    not initialised.
    """
    from hvdlite import process_sets as sets

    if not RUNTIME._forked:
        RUNTIME.stop()
        sets.forget_all()


def is_initialized() -> bool:
    """Has `init` succeeded (in this process, or in the parent that forked it) and `shutdown` not been called?"""
    return RUNTIME.topology is not None


def rank() -> int:
    """This process's number in the job, from 0 to `size` - 1.

    Raises:
        NotInitializedError: `init` has not been called. The same holds for the other functions about places.
    """
    return RUNTIME.require_topology().rank


def size() -> int:
    """The number of processes in the job."""
    return RUNTIME.require_topology().size


def local_rank() -> int:
    """This process's number among those on its node."""
    return RUNTIME.require_topology().local_rank


def local_size() -> int:
    """The number of processes on this node."""
    return RUNTIME.require_topology().local_size


def cross_rank() -> int:
    """This node's number among those that have a process of this local rank."""
    return RUNTIME.require_topology().cross_rank


def cross_size() -> int:
    """The number of nodes that have a process of this local rank."""
    return RUNTIME.require_topology().cross_size


def is_homogeneous() -> bool:
    """Has every node the same number of processes?"""
    return RUNTIME.require_topology().is_homogeneous


def mpi_threads_supported() -> bool:
    """May other threads of this process use MPI (mpi4py) at the same time as hvdlite?

    Raises:
        NotInitializedError: `init` has not been called.
    """
    RUNTIME.require_topology()
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def mpi_enabled() -> bool:
    """True: hvdlite always runs over MPI."""
    return True


def mpi_built() -> bool:
    """True: hvdlite always runs over MPI."""
    return True


def gloo_enabled() -> bool:
    """False: hvdlite does not use Gloo."""
    return False


def gloo_built() -> bool:
    """False: hvdlite does not use Gloo."""
    return False


def nccl_built() -> int:
    """0: this version of hvdlite does not use NCCL."""
    return 0


def ddl_built() -> bool:
    """False: hvdlite does not use IBM's DDL."""
    return False


def ccl_built() -> bool:
    """False: hvdlite does not use oneCCL."""
    return False


def cuda_built() -> bool:
    """False: this version of hvdlite handles tensors in host memory only."""
    return False


def rocm_built() -> bool:
    """False: this version of hvdlite handles tensors in host memory only."""
    return False
