"""The start and the end of a job, and the ranks' numbers: the functions that Horovod calls basics."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from hvdlite import config as knobs
from hvdlite import gpu, requests
from hvdlite import process_sets as sets
from hvdlite._native import load_native
from hvdlite.config import child_environment
from hvdlite.errors import InvalidArgumentError, SystemFailure, UnsupportedError
from hvdlite.runtime import RUNTIME
from hvdlite.timeline.files import file_of_rank

__all__ = [
    "ccl_built",
    "child_environment",
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
    "stall_limit",
    "start_timeline",
    "stop_timeline",
]


_LONGEST_EXEMPTION = 1e9  # seconds


def init(comm: Any = None, process_sets: Sequence[sets.ProcessSet] | str | None = None) -> None:
    """Joins the job: each process of the job calls `init` before its first operation. Collective over the communicator.

    Initialises MPI through mpi4py (thread level multiple), unless MPI is initialised. If hvdlite is initialised already, `init`
    only gives the passed process sets their ids, or sets the knob ``dynamic_process_sets``. After `shutdown`, `init` joins a
    new job. A spare of an elastic job (the knob ``elastic_spares``) waits in `init` until a rank is lost. If no rank is lost,
    the spare ends with SystemExit. After an error hvdlite is not initialised, unless an earlier call has initialised hvdlite.

    Args:
        comm: None for all processes that the launcher started, a list of ranks of MPI_COMM_WORLD (hvdlite's ranks then follow
            the order of the list), or an mpi4py communicator. Only the members of `comm` may call `init`.
        process_sets: `ProcessSet` objects to register, the same on all ranks. (A set that was made from a communicator may
            differ between ranks; then hvdlite registers all these sets.) Or ``"dynamic"``, which sets the knob
            ``dynamic_process_sets``: with the knob ``horovod_rules``, `add_process_set` needs it.

    Raises:
        InvalidArgumentError: a knob has a bad value or differs between ranks, this process is not a member of `comm`,
            a process set is invalid or a duplicate, or a file that a knob names cannot be made.
        PeerLostError, OperationTimeoutError: another process of the job has failed, or does not answer.
        UnsupportedError: the knob elastic_spares is above 0, and this job's MPI cannot continue after the loss of a process.
        SystemFailure: MPI cannot be loaded; the launcher and MPI disagree about the number of processes; this process is a
            child of a rank and has inherited the rank's variables (see `child_environment`); or Ctrl-C has ended an earlier
            `init` after all ranks had called `init`.
        NotInitializedError: this is a forked child of an initialised process.
        ImportError: the native module is missing.
    """
    dynamic = isinstance(process_sets, str) and process_sets == "dynamic"
    if not dynamic and isinstance(process_sets, str | sets.ProcessSet):
        raise InvalidArgumentError(f'init(process_sets={process_sets!r}): pass a list of ProcessSet objects or "dynamic"')
    given = () if dynamic or process_sets is None else process_sets
    listed = [entry if isinstance(entry, sets.ProcessSet) else sets.ProcessSet(entry) for entry in given]
    with RUNTIME.starting():
        if RUNTIME.spare is not None:
            return
        if RUNTIME.engine is None:
            try:
                _join(comm, dynamic, listed)
            except BaseException:
                shutdown()
                raise
        else:
            if dynamic:
                RUNTIME.config = RUNTIME.config.replace(dynamic_process_sets=True)
            sets.bind_existing(listed)


def _join(comm: Any, dynamic: bool, listed: list[sets.ProcessSet]) -> None:
    RUNTIME.start(comm, dynamic)
    if RUNTIME.spare is not None:
        sets.bind_global(None)
        return
    _connect_handles()
    sets.register_initial(comm, listed)
    if RUNTIME.config.metrics_file and not RUNTIME.exiting:
        from hvdlite.metrics import PrometheusWriter  # not above: few programs need it

        PrometheusWriter(RUNTIME.config.metrics_file, RUNTIME.config.metrics_interval)
    if RUNTIME.config.live_view and not RUNTIME.exiting:
        from hvdlite import live_view

        live_view.start()


def _connect_handles() -> None:
    """Tells native code how to describe tensors, and of which class it must make handles."""
    from hvdlite.backends import plain_of  # not above: they import NumPy, which not every program needs
    from hvdlite.handles import native_type

    RUNTIME.require().connect(plain_of, native_type())


def shutdown() -> None:
    """Leaves the job. Operations of other ranks that need this rank fail with an error that says that this rank has left.

    Every rank should call `shutdown`; hvdlite also calls it when the program ends. Does nothing if hvdlite is not initialised.
    """
    if not RUNTIME.forked:
        try:
            RUNTIME.stop()
        finally:
            sets.forget_all()


def is_initialized() -> bool:
    """Is this process, or the parent that forked it, between a successful `init` and `shutdown`?"""
    return RUNTIME.topology is not None


def rank() -> int:
    """This process's number in the job, from 0 to `size` - 1.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().rank


def size() -> int:
    """The number of processes in the job.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().size


def local_rank() -> int:
    """This process's number among those on its host, from 0 to `local_size` - 1.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().local_rank


def local_size() -> int:
    """The number of processes on this host.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have a process with this process's local rank, from 0 to `cross_size` - 1.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().cross_rank


def cross_size() -> int:
    """The number of hosts that have a process with this process's local rank.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return RUNTIME.require_topology().cross_size


def is_homogeneous() -> bool:
    """Has every host the same number of processes?

    Raises:
        NotInitializedError: `init` has not been called.
    """
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
    """The version code of the NCCL that hvdlite would use, such as 22703 for 2.27.3; 0 without a GPU or without NCCL.

    The answer does not depend on how hvdlite was built: this function looks for a GPU and for NCCL, and loads the CUDA driver
    and NCCL. It does not check whether ranks share a GPU. May be called before `init`.

    Raises:
        InvalidArgumentError: a knob has a bad value.
        ImportError: the native module is missing.
    """
    if not cuda_built():
        return 0
    try:
        return int(load_native().nccl_version(gpu.resolve(_knobs()).nccl_library))
    except (UnsupportedError, SystemFailure):
        return 0


def ddl_built() -> bool:
    """False: hvdlite does not use IBM's DDL."""
    return False


def ccl_built() -> bool:
    """False: hvdlite does not use oneCCL."""
    return False


def cuda_built() -> bool:
    """Can this process use tensors in the memory of an NVIDIA GPU? True where there are a driver and a GPU.

    The answer does not depend on how hvdlite was built: this function starts the CUDA driver. Processes that are forked from
    this process afterwards cannot use CUDA. May be called before `init`.

    Raises:
        InvalidArgumentError: a knob has a bad value.
        ImportError: the native module is missing.
    """
    try:
        load_native().cuda_version(_knobs().cuda_library)
    except (UnsupportedError, SystemFailure):
        return False
    return True


def _knobs() -> knobs.Config:
    return knobs.from_environment() if RUNTIME.engine is None else RUNTIME.config


def rocm_built() -> bool:
    """False: hvdlite does not use AMD's GPUs."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Traces this rank's operations from now on, for Chrome's and Perfetto's viewers and ``hvdlite timeline``.

    Each rank that calls this function writes a file of its own. The knob ``timeline_max_bytes`` bounds the size of the file,
    which is valid JSON after each write. If a timeline is being written already, that timeline is completed first. The trace
    adds no communication. A thread also samples the Python stack of the main thread every 5 ms, into a file with ``.stacks``
    before its suffix. With these samples, the report of ``hvdlite timeline`` can say where the program of a late rank was.

    Args:
        file_path: the path of rank 0's file; rank 3 writes a file with ``.rank3`` before the suffix.
        mark_cycles: does the trace also mark each time at which the rank announces operations?

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError: the file cannot be made.
    """
    RUNTIME.start_timeline(file_of_rank(file_path, rank(), RUNTIME.recoveries), mark_cycles)


def stop_timeline() -> None:
    """Completes the file of `start_timeline`, or of the knob ``timeline``. Does nothing if no timeline is being written.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    RUNTIME.require().stop_timeline()
    from hvdlite import sampling  # not above: few programs need it

    sampling.stop()


def stall_limit(seconds: float) -> AbstractContextManager[None]:
    """A with statement during which other ranks wait for this rank without a warning, for example while this rank evaluates.

    For up to `seconds`, the other ranks neither log a stall warning about this rank nor fail because they wait for this rank.
    The limits for such waits (the knobs ``stall_check_time_seconds`` and ``stall_shutdown_time_seconds``) count from the end of
    the statement, or from the end of the `seconds` if that comes first. Statements may be nested: the latest end counts. Call
    `stall_limit` on the slow rank; the call sends nothing.

    Args:
        seconds: the time after which the exemption ends at the latest, in seconds from now; above 0.

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError: `seconds` is not a number above 0, or it is above 1e9.
    """
    if not (isinstance(seconds, int | float) and 0 < seconds <= _LONGEST_EXEMPTION):
        raise InvalidArgumentError(
            f"stall_limit({seconds!r}): seconds is a number above 0 and at most {_LONGEST_EXEMPTION:.0f} (some 30 years)"
        )
    RUNTIME.require()
    return RUNTIME.stall_limit(float(seconds))


class HorovodBasics:
    """The functions of this module as static methods, and the reduce operators, as in ``horovod.common.basics``."""

    Average, Sum, Adasum = requests.Average, requests.Sum, requests.Adasum
    Min, Max, Product = requests.Min, requests.Max, requests.Product

    _get_process_set_ids_and_ranks = staticmethod(sets.process_set_ids_and_ranks)

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """Accepts the path of Horovod's native library, and ignores it."""


for _name in __all__:
    setattr(HorovodBasics, _name, staticmethod(globals()[_name]))
