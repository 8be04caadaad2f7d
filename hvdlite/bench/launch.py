"""Starts the benchmark's own ranks under mpirun, where no launcher has done so."""

import os
import subprocess
import sys
from collections.abc import Sequence

from hvdlite.launcher import mpirun

__all__ = ["BINDINGS", "LaunchError", "mpirun_command", "start"]

BINDINGS = ("core", "none")


class LaunchError(Exception):
    """The ranks could not be started, or did not end well."""


def mpirun_command(program: mpirun.Mpirun, ranks: int, bind: str, root: bool) -> list[str]:
    """The start of a command line.

    Args:
        program: what starts the ranks.
        ranks: how many, also more than there are cores.
        bind: of `BINDINGS`; core binds each rank to one, none lets all run everywhere.
        root: does the superuser start it?
    """
    if program.family == "openmpi":
        binding = "core:overload-allowed" if bind == "core" else "none"
        options = [*(["--allow-run-as-root"] if root else []), "--oversubscribe", "--bind-to", binding]
        return [program.path, *options, "-n", str(ranks)]
    return [program.path, "-bind-to", bind, "-n", str(ranks)]  # MPICH's, and those made from it


def start(ranks: int, bind: str, arguments: Sequence[str]) -> None:
    """Runs ``python -m hvdlite.bench *arguments`` on this many ranks, and waits for their end.

    Raises:
        LaunchError: they report a failure.
        SystemFailure: there is no mpirun for the MPI that mpi4py loads.
    """
    command = mpirun_command(mpirun.find(), ranks, bind, os.geteuid() == 0)
    status = subprocess.run([*command, sys.executable, "-m", "hvdlite.bench", *arguments], check=False).returncode
    if status != 0:
        raise LaunchError(f"the ranks ended with status {status}; what they said is above")
