"""Starts the benchmark's own ranks under mpirun, where no launcher has done so."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["BINDINGS", "LaunchError", "find_mpirun", "mpirun_command", "start"]

BINDINGS = ("core", "none")


class LaunchError(Exception):
    """The ranks could not be started, or did not end well."""


def find_mpirun() -> str:
    """The mpirun beside this Python, or else the one on PATH.

    Raises:
        LaunchError: there is none.
    """
    found = shutil.which("mpirun", path=sys.prefix + "/bin") or shutil.which("mpirun")
    if found is None:
        raise LaunchError(f"no mpirun in {sys.prefix}/bin and none on PATH: start the ranks with your own launcher")
    return found


def mpirun_command(mpirun: str, version: str, ranks: int, bind: str, root: bool) -> list[str]:
    """The start of a command line.

    Args:
        mpirun: its path.
        version: what it says about itself.
        ranks: how many, also more than there are cores.
        bind: of `BINDINGS`; core binds each rank to one, none lets all run everywhere.
        root: does the superuser start it?
    """
    if "open-mpi" in version.lower() or "open mpi" in version.lower():
        binding = "core:overload-allowed" if bind == "core" else "none"
        return [mpirun, *(["--allow-run-as-root"] if root else []), "--oversubscribe", "--bind-to", binding, "-n", str(ranks)]
    return [mpirun, "-bind-to", bind, "-n", str(ranks)]  # MPICH's, and those made from it


def start(ranks: int, bind: str, arguments: Sequence[str]) -> None:
    """Runs ``python -m hvdlite.bench *arguments`` as so many ranks, and waits for their end.

    Raises:
        LaunchError: there is no mpirun, or it reports a failure.
    """
    mpirun = find_mpirun()
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    command = mpirun_command(mpirun, version, ranks, bind, os.geteuid() == 0)
    status = subprocess.run([*command, sys.executable, "-m", "hvdlite.bench", *arguments], check=False).returncode
    if status != 0:
        raise LaunchError(f"the ranks ended with status {status}; what they said is above")
