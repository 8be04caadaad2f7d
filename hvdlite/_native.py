"""Loads the native module, and finds the shim: the small library through which the native module calls MPI.

Handles and constants differ between Open MPI and MPICH. So hvdlite has one shim for each MPI that it was built for
(``hvdlite_mpi_<family>.so``), and may open only the shim for the MPI that mpi4py has loaded.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdlite.errors import SystemFailure, install

if TYPE_CHECKING:
    from types import ModuleType

_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
_SONAMES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


@dataclass(frozen=True)
class LoadedMpi:
    """The MPI that mpi4py has loaded.

    Attributes:
        family: ``openmpi`` or ``mpich``; or ``mpiabi`` or ``unknown``, for which hvdlite has no shim.
        version: the name and the version number in the MPI library's description of itself.
        module: the file of mpi4py's module.
        libraries: the MPI libraries mapped into this process.
    """

    family: str
    version: str
    module: str
    libraries: tuple[str, ...] = ()


def shim_path() -> str:
    """The path of the shim for the MPI that mpi4py has loaded; loads mpi4py.

    Raises:
        SystemFailure: hvdlite was not built for that MPI. The text names the loaded MPI, its files, and the remedy.
    """
    return choose_shim(loaded_mpi(), built_shims(Path(__file__).parent))


def loaded_mpi() -> LoadedMpi:
    """The MPI that mpi4py has loaded; loads mpi4py if needed."""
    from mpi4py import MPI

    description = MPI.Get_library_version().strip("\0 \n")
    return LoadedMpi(
        family_of(MPI.__file__, description), short_version(description), MPI.__file__, loaded_libraries(mapped_files())
    )


def mapped_files(path: str | Path = "/proc/self/maps") -> str:
    """The text of /proc/self/maps; empty on systems without that file. Paths in the text need not be UTF-8."""
    maps = Path(path)
    return os.fsdecode(maps.read_bytes()) if maps.exists() else ""


def family_of(module: str, description: str) -> str:
    """The family of an MPI: from the file name of mpi4py's module, or, if that names no family, from MPI's description.

    >>> family_of("/site-packages/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", "MPICH Version: 5.0.2")
    'mpich'
    """
    named = re.match(r"MPI\.(openmpi|mpich|mpiabi)\.", Path(module).name)
    if named:
        return named[1]
    text = description.lower()
    if "open mpi" in text or "spectrum mpi" in text:
        return "openmpi"
    if any(name in text for name in ("mpich", "intel(r) mpi", "mvapich")):
        return "mpich"
    return "unknown"


def short_version(description: str) -> str:
    """The name and number in an MPI library's description of itself.

    >>> short_version("Open MPI v5.0.11, package: Open MPI, ident: 5.0.11")
    'Open MPI v5.0.11'
    """
    first = description.splitlines()[0] if description else "an MPI without a name"
    return " ".join(first.split(",")[0].split()).replace(" Version: ", " ")


def loaded_libraries(maps: str) -> tuple[str, ...]:
    """The MPI libraries among the files of a process, from the text of /proc/self/maps."""
    found = re.findall(r"^[^/\n]*(/.*/libmpi(?:ch|_abi)?\.so[.\d]*)$", maps, re.MULTILINE)
    return tuple(dict.fromkeys(found))


def built_shims(folder: Path) -> dict[str, str]:
    """The paths of the shims in a folder, by the family of MPI that each is for."""
    return {path.stem.removeprefix("hvdlite_mpi_"): str(path) for path in sorted(folder.glob("hvdlite_mpi_*.so"))}


def choose_shim(loaded: LoadedMpi, shims: Mapping[str, str]) -> str:
    """The path of the shim for the loaded MPI.

    Raises:
        SystemFailure: there is no shim for this MPI.
    """
    if loaded.family in shims:
        return shims[loaded.family]
    where = f"mpi4py's module {loaded.module}"
    if loaded.libraries:
        where += f", library {' and '.join(loaded.libraries)}"
    seen = f"mpi4py has loaded {loaded.version} ({where})"
    wanted = loaded.family if loaded.family in _NAMES else "openmpi"
    rebuild = (
        f"HVDLITE_MPI={wanted} pip install --force-reinstall --no-deps --no-cache-dir hvdlite "
        "(HVDLITE_MPI can also be the path of that MPI's mpicxx)"
    )
    if not shims:
        raise SystemFailure(f"this installation of hvdlite has no shim for any MPI; {seen}. Build hvdlite again: {rebuild}.")
    built = " and ".join(_NAMES.get(family, family) for family in shims)
    first = next(iter(shims))
    raise SystemFailure(
        f"hvdlite was built for {built}, but {seen}. Either let mpi4py load the MPI that hvdlite was built for, by "
        f"MPI4PY_MPIABI={first} with MPI4PY_LIBMPI=/path/to/{_SONAMES.get(first, 'libmpi.so')}, and start the job with that "
        f"MPI's mpirun; or build hvdlite for the loaded MPI: {rebuild}."
    )


def load_native() -> "ModuleType":
    """The native module, which raises this package's exceptions from now on.

    Raises:
        ImportError: the module is missing (the text of `hvdlite/_engine.py` names the remedy), or a library that it needs.
    """
    try:
        from hvdlite import _engine
    except ImportError as error:
        raise ImportError(f"hvdlite's native module cannot be loaded: {error}") from error
    install(_engine.set_error_classes)
    return _engine
