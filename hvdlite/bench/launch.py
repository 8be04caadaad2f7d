"""Starts the ranks of the benchmark under mpirun, if no launcher has started ranks."""

import os
import subprocess
import sys
from collections.abc import Sequence

from hvdlite.errors import SystemFailure
from hvdlite.launcher import mpirun
from hvdlite.launcher.command import Wishes, mpirun_line

BINDINGS = ("core", "none")


def mpirun_command(program: mpirun.Mpirun, ranks: int, bind: str) -> tuple[str, ...]:
    """The command line up to the program of the ranks.

    Args:
        program: the mpirun.
        ranks: the number of ranks; it may be larger than the number of cores.
        bind: one of `BINDINGS`: ``core`` binds each rank to a core, ``none`` lets all ranks use all cores.
    """
    if program.family == "openmpi":
        binding = ("--bind-to", "core:overload-allowed" if bind == "core" else "none")
    else:
        binding = ("-bind-to", bind)
    wishes = Wishes(ranks, root=os.geteuid() == 0, oversubscribe=True, mpi_args=binding)
    return mpirun_line(program, wishes).words


def start(ranks: int, bind: str, arguments: Sequence[str]) -> None:
    """Runs ``python -m hvdlite.bench *arguments`` on `ranks` ranks, and waits for their end. For `bind` see `mpirun_command`.

    Raises:
        SystemFailure: the ranks failed, or there is no mpirun for the MPI that mpi4py loads.
    """
    command = mpirun_command(mpirun.find(), ranks, bind)
    status = subprocess.run([*command, sys.executable, "-m", "hvdlite.bench", *arguments], check=False).returncode
    if status != 0:
        raise SystemFailure(f"the ranks ended with status {status}; their output is above")
