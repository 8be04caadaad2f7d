"""Restricts the memory that ranks can share, in programs that support.job starts."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.limits import eventually

__all__ = ["NO_PROC", "SMALL_SHM", "needs_mount", "nothing_left_behind"]

# Moves each host's ranks into a namespace with its own small /dev/shm (the size is in KiB), after MPI has allocated its memory
# in the old one.
SMALL_SHM = """
import ctypes, os
from mpi4py import MPI

NEWNS, FS, REC, PRIVATE = 0x20000, 0x200, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    assert result == 0, os.strerror(ctypes.get_errno())

host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
if host.rank == 0:
    check(libc.unshare(NEWNS))
    check(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=%dk"))
leader = host.bcast(os.getpid())
if host.rank > 0:
    check(libc.unshare(FS))
    check(libc.setns(os.open(f"/proc/{leader}/ns/mnt", os.O_RDONLY), NEWNS))
"""

# Hides the open files of the other ranks from rank 1, as if rank 1 ran in a container of its own.
NO_PROC = """
import ctypes, os
from mpi4py import MPI

libc = ctypes.CDLL(None, use_errno=True)
if MPI.COMM_WORLD.rank == 1:
    assert libc.unshare(0x20000) == 0
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
leader = MPI.COMM_WORLD.bcast(os.getpid())
if MPI.COMM_WORLD.rank == 1:
    assert libc.mount(b"tmpfs", f"/proc/{leader}".encode(), b"tmpfs", 0, None) == 0
"""


def _may_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(
    not _may_mount(), reason="needs the right to mount in a private namespace (root; in a container with CAP_SYS_ADMIN)"
)


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fails if a file of hvdlite that appears in /dev/shm during the block stays there. Files of other jobs may come and go."""
    before = _files()
    yield
    left = _files() - before

    def gone() -> bool:
        left.intersection_update(_files())
        return not left

    assert eventually(gone), left


def _files() -> set[Path]:
    return set(Path("/dev/shm").glob("hvdlite-*"))
