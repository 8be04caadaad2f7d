"""The state of hvdlite in this process: the `Runtime`, which owns the engine between `init` and `shutdown`."""

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
from hvdlite.errors import ErrorCode, HvdliteError, NotInitializedError, SystemFailure, install
from hvdlite.topology import Topology

if TYPE_CHECKING:
    from hvdlite._engine import Engine

__all__ = ["RUNTIME", "Runtime"]

# After these an operation's memory is free again; after any other failure the transport may still write to it.
_HARMLESS = (ErrorCode.INVALID_ARGUMENT, ErrorCode.MISMATCH, ErrorCode.UNSUPPORTED, ErrorCode.TIMEOUT)
# Seconds in which the peers of a rank that raised can print what they know: some launchers end a job at its first death.
_LAST_WORDS = 0.2
# Seconds by which a rank that ends because of another lets that one go first.
_AFTER_CULPRIT = 0.4


class Runtime:
    """The state of hvdlite in this process; `RUNTIME` is the only instance."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.topology: Topology | None = None
        self.config: Config = knobs.from_environment({})
        self.communicator: Any = None
        self._lock = threading.RLock()
        self._pid = 0  # of the process that initialised
        self.forked = False  # a child of the process that initialised: there is no engine here
        self._armed = False
        self._failed = False
        self._parked: deque[tuple[Engine, list[int], object]] = deque()
        self._kept: list[object] = []

    # --- beginning and end ------------------------------------------------------------------------------------------

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Lets one thread at a time initialise, and none in a forked child.

        Raises:
            NotInitializedError: this is a forked child.
        """
        with self._lock:
            if self.forked:
                raise self._refusal()
            yield

    def start(self, comm: Any, dynamic: bool) -> None:
        """Initialises MPI where needed and makes the engine; `hvdlite.init` says what may go wrong. Collective."""
        engine_class = _load_engine_class()
        mpi = startup.load_mpi(may_finalize=lambda: not self._failed)
        self._guard_exit(alone=mpi.COMM_WORLD.size == 1)
        startup.check_launch(mpi, knobs.launcher_claim())
        chosen = startup.choose_communicator(mpi, comm)
        config, shim, problem = self._prepare(dynamic)
        startup.agree(chosen, config, problem)
        logger = startup.configure_logging(config, chosen.rank, chosen.size)
        for line in (*config.notes, *config.warnings) if chosen.rank == 0 else config.warnings:
            logger.warning(line)
        self.engine = engine_class.create_mpi(shim, mpi._addressof(chosen), knobs.to_native(config))
        self.engine.make_current()
        self.topology = Topology(*self.engine.topology)
        self.config = config
        self.communicator = chosen

    def _prepare(self, dynamic: bool) -> tuple[Config, str, HvdliteError | None]:
        """The knobs, the path of the shim for the loaded MPI, and what is wrong with this rank."""
        config = knobs.from_environment({})
        try:
            from hvdlite._native import shim_path

            config = knobs.from_environment()
            if dynamic:
                config = config.replace(dynamic_process_sets=True)
            return config, shim_path(), None
        except HvdliteError as error:
            return config, "", error
        except (ImportError, OSError) as error:
            return config, "", SystemFailure(f"{error}")

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
        """Leaves the job; what peers still wait for from this rank fails. Harmless where there is no engine."""
        with self._lock:
            engine, self.engine = self.engine, None
            if engine is None:
                return
            self.topology = None
            self.communicator = None
            parked = list(self._parked)
            self._parked.clear()
            if engine.failure_cause:
                # The transport may still use the memory, and MPI_Finalize may wait for the dead.
                self._kept.append((engine, parked))
                self._failed = True
            else:
                self._armed = False
            engine.shutdown()

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self.stop()

    def _forget(self) -> None:
        """In a forked child: there is no engine any more; the topology stays readable."""
        self.forked = self.forked or self.engine is not None
        self.engine = None
        self._lock = threading.RLock()
        self._parked.clear()

    # --- what failures.Announcer asks for ---------------------------------------------------------------------------

    def is_armed(self) -> bool:
        """Would peers wait for this process if it ended now?"""
        return self._armed and os.getpid() == self._pid

    def record(self) -> str:
        """The last operations of this process. A rank that ends because of another has printed them already."""
        engine = self.engine
        return "" if engine is None or engine.failure_cause else engine.flight_record()

    def announce(self, cause: str) -> None:
        """Tells the peers why this process ends.

        A rank that ends because of another lets that one go first, so that the launcher names the right one.
        """
        engine = self.engine
        if engine is None:
            return
        if engine.failure_cause:
            time.sleep(_AFTER_CULPRIT)
            return
        engine.publish_failure(cause)
        time.sleep(_LAST_WORDS)

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
        if self.forked:
            return NotInitializedError(
                f"process {os.getpid()} was forked from process {self._pid}, in which hvdlite is initialized. A forked "
                "child has no engine: it may ask for rank and size, but collectives, init and shutdown belong to the "
                "parent. Start workers that need hvdlite with mpirun."
            )
        return NotInitializedError()

    def park(self, engine: "Engine", numbers: Sequence[int], memory: object) -> None:
        """Keeps memory alive until these operations have ended; called when a Handle is dropped early."""
        if not self.forked:
            self._parked.append((engine, list(numbers), memory))

    def keep_after(self, error: HvdliteError, memory: object) -> None:
        """Keeps memory for good if the transport may still touch it after this failure."""
        if error.code not in _HARMLESS:
            self._kept.append(memory)

    def keep_unfinished(self, memory: object, number: int, code: int) -> None:
        """Keeps the memory of a blocking operation that was left: in flight under its number, or failed with a code."""
        if number and self.engine is not None:
            self.park(self.engine, [number], memory)
        elif code not in _HARMLESS:
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
            if not all(map(engine.poll, numbers)):
                self._parked.append((engine, numbers, memory))
                continue
            _, errors = engine.wait_many(numbers)
            for error in errors.values():
                self.keep_after(error, memory)


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
