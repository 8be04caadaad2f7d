"""Turns a user's wishes into a command line: chooses the launcher, the number of ranks, and the hosts."""

import argparse
import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hvdlite.config import launcher_claim
from hvdlite.errors import InvalidArgumentError, SystemFailure
from hvdlite.launcher import mpirun as mpi
from hvdlite.launcher.command import LauncherCommand, Wishes, mpirun_line, names_binding, srun_line
from hvdlite.launcher.hosts import Host, parse_hosts, read_hostfile, total_slots
from hvdlite.launcher.slurm import Allocation, choose_plugin, read_allocation

LAUNCHERS = ("auto", "mpirun", "srun")


@dataclass(frozen=True)
class LaunchPlan:
    """The way in which a job will be started.

    Attributes:
        line: the launcher's command line.
        environ: the launcher's environment, which the ranks of this host get as well.
        size: the number of ranks.
        bind: is each rank bound to its share of the cores by the process that hvdlite starts beside it?
        remote: are there ranks on other hosts?
        notes: the decisions, each with its reason, as lines for the user.
    """

    line: LauncherCommand
    environ: Mapping[str, str]
    size: int
    bind: bool
    remote: bool
    notes: tuple[str, ...]


def add_flags(parser: argparse._ActionsContainer) -> None:
    """Adds the flags that choose the launcher, and say how it reaches other hosts."""
    add = parser.add_argument
    add("--launcher", choices=LAUNCHERS, default="auto", help="auto uses srun in an allocation of Slurm, and mpirun elsewhere")
    add("--mpirun", default="", metavar="PATH", help="the mpirun to start [that of the MPI that mpi4py loads]")
    add("--mpi-args", default="", metavar="WORDS", help="further arguments for mpirun or srun, in quotes")
    add("-p", "--ssh-port", type=positive, metavar="PORT", help="the port that ssh uses")
    add("-i", "--ssh-identity-file", default="", metavar="FILE", help="the file with the key that ssh uses")


def add_job_flags(parser: argparse._ActionsContainer) -> None:
    """Adds the flags of all commands that start the ranks of a job. They say how many ranks start, where and how."""
    add = parser.add_argument
    add(
        "-n",
        "-np",
        "--np",
        "--num-proc",
        dest="np",
        type=positive,
        metavar="N",
        help="the number of ranks [the number of slots of the hosts]",
    )
    add("-H", "--hosts", default="", metavar="HOSTS", help="the hosts: host:ranks,host:ranks [this host, or the allocation]")
    add(
        "-hostfile",
        "--hostfile",
        default="",
        metavar="FILE",
        help="a file that names the hosts: a line for each host, `a slots=2` or `a:2`",
    )
    add_flags(parser)
    add(
        "--bind",
        choices=("auto", "none"),
        default="auto",
        help="auto divides the cores of each host among its ranks if every rank gets at least two",
    )
    add("--oversubscribe", action="store_true", help="allows more ranks than the hosts have slots")
    add(
        "--network-interface",
        "--network-interfaces",
        dest="interfaces",
        default="",
        metavar="NAMES",
        help="the network interfaces to use",
    )
    add(
        "--tcp-streams",
        type=positive,
        metavar="N",
        help="the number of TCP connections between two ranks on different hosts (Open MPI) [1]",
    )
    add(
        "--tcp-buffer-bytes",
        type=positive,
        metavar="N",
        help="the size of each connection's send buffer and of its receive buffer (Open MPI) [the kernel chooses it]",
    )
    add("--dry-run", action="store_true", help="prints the command line and starts nothing")
    add("--verbose", action="store_true", help="prints the chosen launcher, the reason, and the command line")


def job_words(arguments: argparse.Namespace) -> list[str]:
    """The command-line arguments for those flags of `add_job_flags` whose values are not the defaults."""
    flags = argparse.ArgumentParser(add_help=False)
    add_job_flags(flags)
    words = []
    for flag in flags._actions:
        name, value = flag.option_strings[-1], getattr(arguments, flag.dest)
        if value != flag.default:
            words.append(name if value is True else f"{name}={value}")  # "=", because the value may begin with a dash
    return words


def positive(text: str) -> int:
    """The whole number above 0 that a flag has as its value.

    Raises:
        ArgumentTypeError: `text` is not such a number.
    """
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def seconds(text: str) -> float:
    """The number of seconds above 0 that a flag has as its value.

    Raises:
        ArgumentTypeError: `text` is not such a number.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def words_of(flag: str, text: str) -> tuple[str, ...]:
    """The arguments in a text that is quoted as in a shell.

    Raises:
        InvalidArgumentError: a quotation does not end. The error names the flag.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidArgumentError(f"{flag} {text}: {error} (quote the text as in a shell)") from None


def refuse_nested(what: str) -> None:
    """Raises InvalidArgumentError in a process that is itself a rank of a job, unless srun has started it."""
    claim = launcher_claim()
    if claim is not None and claim.size > 1 and not claim.variable.startswith("SLURM"):
        raise InvalidArgumentError(
            f"{what} starts ranks, but this process is itself one of {claim.size} ranks ({claim.variable}={claim.size}, set by "
            f"{claim.launcher}): call it from a process that no launcher has started"
        )


def allocated_hosts(environ: Mapping[str, str], allocation: Allocation | None) -> tuple[Host, ...]:
    """The hosts of the current allocation; empty without one."""
    if allocation is not None:
        return allocation.hosts
    nodes = environ.get("PBS_NODEFILE", "")
    return read_hostfile(nodes) if nodes and Path(nodes).exists() else ()


def make(
    wishes: Wishes,
    np: int | None,
    hosts: str = "",
    hostfile: str = "",
    launcher: str = "auto",
    mpirun: str = "",
    bind: str = "auto",
) -> LaunchPlan:
    """The plan for a job.

    Args:
        wishes: the user's wishes, without those that this function sets.
        np: the number of ranks; None for the number of slots of the hosts or of the allocation.
        hosts: the hosts in the form of ``-H``; empty for this host, or for the hosts of the allocation.
        hostfile: the path of a host file; empty for none.
        launcher: one of LAUNCHERS.
        mpirun: the path of the mpirun to start; empty for the mpirun of the MPI that mpi4py loads.
        bind: ``auto`` or ``none``, as for ``hvdlite run --bind``.

    Raises:
        InvalidArgumentError: the wishes contradict each other, or the chosen launcher cannot fulfil them.
        SystemFailure: no launcher fits the MPI that mpi4py loads.
    """
    if np is not None and (isinstance(np, bool) or not isinstance(np, int) or np < 1):
        raise InvalidArgumentError(f"the number of ranks (-n; np=) must be a whole number above 0, got {np!r}")
    if hosts and hostfile:
        raise InvalidArgumentError("-H and --hostfile both name the hosts: give only one of them")
    named = parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else ()
    allocation = read_allocation(wishes.environ)
    allocated = allocated_hosts(wishes.environ, allocation)
    size = np if np is not None else _default_size(named, allocated, allocation)
    wishes = replace(wishes, np=size, hosts=named, allocated=allocated, root=os.geteuid() == 0)
    notes: list[str] = []
    line = None
    own_binding = False
    if launcher == "srun" or (launcher == "auto" and allocation is not None and not mpirun):
        line = _by_srun(wishes, allocation, required=launcher == "srun", notes=notes)
    if line is None:
        program = mpi.find(mpirun)
        notes.append(f"{program.path} ({program.title}) starts the ranks: {program.reason}")
        line = mpirun_line(program, wishes)
        own_binding = bind == "auto" and not names_binding(wishes.mpi_args)
    return LaunchPlan(line, {**wishes.environ, **line.variables}, size, own_binding, wishes.remote, tuple(notes))


def _default_size(named: Sequence[Host], allocated: Sequence[Host], allocation: Allocation | None) -> int:
    if named:
        return total_slots(named)
    if allocation is not None and allocation.tasks:
        return allocation.tasks
    if allocated:
        return total_slots(allocated)
    raise InvalidArgumentError("give the number of ranks (-n; np=), or the hosts (-H, --hostfile; hosts=, hostfile=)")


def _by_srun(wishes: Wishes, allocation: Allocation | None, required: bool, notes: list[str]) -> LauncherCommand | None:
    """The command line for srun. If srun cannot start this MPI: raises if `required`, else adds a note and returns None."""
    if allocation is None:
        raise InvalidArgumentError(
            "--launcher srun: this process is in no allocation of Slurm (SLURM_JOB_ID is not set); use salloc or sbatch"
        )
    if srun := shutil.which("srun"):
        loaded, listing = mpi.ask_mpi4py(), _listing(srun)
        if plugin := choose_plugin(listing, loaded.family):
            notes.append(f"{srun} --mpi={plugin} starts the ranks: this is allocation {allocation.job} of Slurm")
            return srun_line(srun, plugin, wishes, len(allocation.hosts), allocation.inside_step)
        problem = f"srun has no plugin that starts {loaded.version} (srun --mpi=list prints: {' '.join(listing.split())})"
    else:
        problem = "there is no srun on PATH"
    if required:
        raise SystemFailure(f"--launcher srun: {problem}")
    notes.append(f"mpirun starts the ranks, and not srun, although this is allocation {allocation.job} of Slurm: {problem}")
    return None


def _listing(srun: str) -> str:
    try:
        done = subprocess.run([srun, "--mpi=list"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr
