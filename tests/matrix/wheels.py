"""The wheel that a cell installs: that of `make wheel` (_build/make_wheel.py), built again when what goes into it changed."""

import hashlib
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_build"))

from make_wheel import (
    BUILD_SECONDS,
    INSTALL_SECONDS,
    ROOT,
    Unavailable,
    build_wheel,
    call,
    find_python,
    make_environment,
)

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

BUILD = ROOT / "build" / "matrix"
SOURCES = ("hvdlite", "csrc", "_build", "setup.py", "pyproject.toml", "CMakeLists.txt")


def find_wheel(version: str, builds: str = "") -> Path:
    """hvdlite's wheel for a version of Python, built if need be; `builds` names the wrapper of the only MPI it is for.

    Raises:
        Unavailable: no such Python, or what building takes cannot be installed.
        RuntimeError: the build failed.
    """
    fingerprint = _fingerprint()
    folder = BUILD / "wheels" / "-".join([fingerprint, version, *([builds] if builds else [])])
    if not list(folder.glob("*.whl")):
        build_wheel(version, folder, builds)
        if _fingerprint() != fingerprint:
            shutil.rmtree(folder)
            raise RuntimeError("the sources changed while the wheel was built")
    return next(folder.glob("*.whl"))


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix not in (".so", ".pyc"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
