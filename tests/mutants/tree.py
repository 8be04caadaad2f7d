"""The copy of the project that mutants are built and tested in, below build/mutants: the user's own files are never touched.

Files are written only where their content changes, so that the build does no more than it must. It is the ordinary one
(setup.py build_ext --inplace), with ccache if there is one, which also makes the way back from a mutant short.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ROOT", "Tree", "files_of_commit", "files_of_working_tree"]

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 3600.0
LINES_OF_A_FAILURE = 12
# What is compiled or says how.
NATIVE = ("csrc/", "tests/native/", "_build/", "CMakeLists.txt", "setup.py", "hvdlite/_version.py")

Files = dict[str, tuple[bytes, int]]  # content and mode, by path


def files_of_working_tree() -> Files:
    """The user's files as they are, those that git does not know yet included, without what it ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    paths = {name: ROOT / name for name in names if name}
    return {name: (path.read_bytes(), path.stat().st_mode & 0o777) for name, path in paths.items() if path.is_file()}


def files_of_commit(revision: str) -> Files:
    """The files of a commit."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=True).stdout
    files: Files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name] = (content.read(), member.mode & 0o777)
    return files


def digest_of(files: Mapping[str, tuple[bytes, int]]) -> str:
    """Of all contents."""
    hasher = hashlib.sha256()
    for name in sorted(files):
        hasher.update(f"{name}\0{len(files[name][0])}\0".encode() + files[name][0])
    return hasher.hexdigest()[:12]


class Tree:
    """The copy. One process at a time may use it.

    Attributes:
        root: where it is.
        digest: of its files, without any mutant.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        self.digest = digest_of(files)
        self._files = files
        self._built = root.with_name(f"{root.name}.built")  # what native files the libraries are of
        listed = root.with_name(f"{root.name}.files")
        for gone in set(listed.read_text().splitlines() if listed.exists() else ()) - set(files):
            (root / gone).unlink(missing_ok=True)
        root.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(sorted(files)))
        for name in files:
            self._write(name, files[name][0])

    def _write(self, name: str, content: bytes) -> None:
        path = self.root / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(self._files[name][1])

    @property
    def contents(self) -> dict[str, bytes]:
        """The files without any mutant."""
        return {name: content for name, (content, _) in self._files.items()}

    def change(self, name: str, content: bytes) -> None:
        """Puts a mutant in."""
        self._write(name, content)

    def restore(self, name: str) -> None:
        """Takes it out again; the libraries follow at the next `build`."""
        self._write(name, self._files[name][0])

    def build(self) -> str:
        """Builds native code that has changed. "" if that went well, or else the compiler's last lines."""
        native = {name: ((self.root / name).read_bytes(), 0) for name in self._files if name.startswith(NATIVE)}
        digest = digest_of(native)
        if self._built.exists() and self._built.read_text() == digest:
            return ""
        self._built.unlink(missing_ok=True)
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        command += ["--build-temp", "build/dev", "--build-lib", "build/dev/stage"]
        built = subprocess.run(
            command,
            cwd=self.root,
            env=self._build_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if built.returncode != 0:
            lines = built.stdout.splitlines()
            errors = [line for line in lines if "error" in line.lower()]
            return "\n".join((errors or lines)[:LINES_OF_A_FAILURE]) or f"setup.py ended with {built.returncode}"
        self._built.write_text(digest)
        return ""

    def _build_environment(self) -> dict[str, str]:
        # No test runs the GPU kernels' machine code, which takes longer than all else.
        environment = {"HVDLITE_NVCC": "off", **os.environ}
        if shutil.which("ccache"):
            environment.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
            # Objects of any checkout are found again here.
            environment |= {"CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1"}
        return environment
