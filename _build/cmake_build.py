"""Replaces setuptools' build_ext by CMake and Ninja."""

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import mpi_choice
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent.parent


class CMakeBuild(build_ext):
    """Configures, builds and installs into the wheel's folder; a build in place (editable, develop) into the source tree."""

    def run(self) -> None:
        try:
            choice = mpi_choice.decide()
            shims = mpi_choice.shims(choice)
        except mpi_choice.BuildError as error:
            raise SystemExit(f"hvdlite: {error}") from None
        for note in choice.notes:
            print(f"hvdlite: MPI: {note}", file=sys.stderr)
        # An editable build keeps its objects, so that the next build is incremental.
        folder = ROOT / "build" / "dev" if self.editable_mode else Path(self.build_temp).resolve()
        self._configure(folder, shims)
        self._cmake("--build", str(folder), "--parallel", _jobs())
        self._install(folder, Path(self.build_lib).resolve())

    def get_outputs(self) -> list[str]:
        return [str(path) for path in sorted(Path(self.build_lib, "hvdlite").glob("*.so"))]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return {}
        return {output: str(ROOT / "hvdlite" / Path(output).name) for output in self.get_outputs()}

    def _configure(self, folder: Path, shims: list[mpi_choice.Shim]) -> None:
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            raise SystemExit(
                f"hvdlite: the headers of {sys.executable} are missing (Python.h); install them (Debian: python3-dev)."
            )
        arguments = [
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={_tool('ninja', 'BIN_DIR')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DHVDLITE_MPI_SHIMS={';'.join(shim.cmake_entry() for shim in shims)}",
            f"-DHVDLITE_SANITIZE={os.environ.get('HVDLITE_SANITIZE', '')}",
            f"-DHVDLITE_TRACE={os.environ.get('HVDLITE_TRACE', 'OFF')}",
            f"-DHVDLITE_NVCC={os.environ.get('HVDLITE_NVCC', '')}",
            f"-DHVDLITE_BUILD_FAKES={'ON' if self._for_tests() else 'OFF'}",
        ]
        folder.mkdir(parents=True, exist_ok=True)
        # Another environment's cache may name programs that no longer exist. CMake's --fresh would also remove the objects.
        stamp, text = folder / "hvdlite-arguments.txt", "\n".join(arguments)
        if not stamp.exists() or stamp.read_text() != text:
            (folder / "CMakeCache.txt").unlink(missing_ok=True)
            for found in (folder / "CMakeFiles").glob("[0-9]*"):
                shutil.rmtree(found)
        stamp.unlink(missing_ok=True)
        self._cmake("-S", str(ROOT), "-B", str(folder), *arguments)
        stamp.write_text(text)

    def _for_tests(self) -> bool:
        """Is this a build for tests, in the source tree or with sanitizers? A wheel needs no code of tests/native."""
        return bool(self.editable_mode or self.inplace or os.environ.get("HVDLITE_SANITIZE"))

    def _install(self, folder: Path, prefix: Path) -> None:
        target = prefix / "hvdlite"
        for stale in target.glob("*.so"):  # a shim of an earlier build must not get into this wheel
            stale.unlink()
        self._cmake("--install", str(folder), "--prefix", str(prefix))
        if self.inplace:
            _publish(target, ROOT / "hvdlite")

    def _cmake(self, *arguments: str) -> None:
        subprocess.run([_tool("cmake", "CMAKE_BIN_DIR"), *arguments], check=True)


def _publish(source: Path, target: Path) -> None:
    """Copies the libraries into new files, so that a process that runs from the source tree keeps the files it has mapped."""
    fresh = {path.name for path in source.glob("*.so")}
    for name in fresh:
        temporary = target / f".{name}.new"
        shutil.copy2(source / name, temporary)
        temporary.replace(target / name)
    for path in target.glob("*.so"):
        if path.name not in fresh:
            path.unlink()


def _tool(name: str, attribute: str) -> str:
    """The path of a program: from its PyPI wheel if that is installed (it need not be on PATH), otherwise the machine's."""
    try:
        path = os.path.join(getattr(importlib.import_module(name), attribute), name)
        if os.access(path, os.X_OK):
            return path
    except (ImportError, AttributeError):
        pass
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"hvdlite: {name} is needed to build (pip install {name}).")
    return found


def _jobs() -> str:
    return os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
