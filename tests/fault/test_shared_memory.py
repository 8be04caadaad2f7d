"""What the ranks of a host share: where it lies, what happens where there is too little of it, that nothing is left behind."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.job import run_job

# Sums a few sizes, then says where this rank's window is mapped.
SUM_AND_TELL = """
import os
from pathlib import Path
import numpy as np
import hvdlite as hvd

hvd.init()
size, rank = hvd.size(), hvd.rank()
for count in (1, 1000, 1_000_003):
    value = np.arange(count, dtype=np.float64) * (rank + 1)
    total = hvd.allreduce(value, name=f"a{count}", op=hvd.Sum)
    assert np.array_equal(total, np.arange(count) * (size * (size + 1) / 2.0))
found = [line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "hvdlite-window" in line]
kind = "none" if not found else "memfd" if found[0].startswith("/memfd:") else "shm"
print("window", kind, len(found), flush=True)
"""

# Moves the job to a namespace with a /dev/shm of its own, of so many KiB, after MPI took what it needs of the old one.
SMALL_SHM = """
import ctypes, os
from mpi4py import MPI

NEWNS, FS, REC, PRIVATE = 0x20000, 0x200, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    assert result == 0, os.strerror(ctypes.get_errno())

if MPI.COMM_WORLD.rank == 0:
    check(libc.unshare(NEWNS))
    check(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=%dk"))
leader = MPI.COMM_WORLD.bcast(os.getpid())
if MPI.COMM_WORLD.rank > 0:
    check(libc.unshare(FS))
    check(libc.setns(os.open(f"/proc/{leader}/ns/mnt", os.O_RDONLY), NEWNS))
"""

# Rank 1 does not find what others have open: as if it ran in a container of its own.
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


def may_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif("not may_mount()", reason="takes the right to mount a file system in a private namespace")


def leftovers() -> list[Path]:
    """Files of jobs of ours in /dev/shm, after those that are just being made have had time to go."""
    deadline = time.monotonic() + 5
    while list(Path("/dev/shm").glob("hvdlite-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(Path("/dev/shm").glob("hvdlite-*"))


def windows(result) -> list[str]:
    assert result.returncode == 0, result.report()
    return [line.removeprefix("window ") for text in result.stdout.values() for line in text.splitlines()]


def warnings(result) -> list[str]:
    return [line for text in result.stderr.values() for line in text.splitlines()]


@pytest.mark.parametrize(("knob", "window"), [("auto", "memfd 1"), ("memfd", "memfd 1"), ("shm", "shm 1"), ("off", "none 0")])
def test_the_ranks_of_a_host_share_a_window(knob, window):
    result = run_job(SUM_AND_TELL, 3, env={"HVDLITE_SHARED_MEMORY": knob})
    assert windows(result) == [window] * 3, result.report()
    assert warnings(result) == [], result.report()
    assert leftovers() == []


def test_one_rank_needs_no_window():
    result = run_job(SUM_AND_TELL, 1)
    assert windows(result) == ["none 0"], result.report()
    assert warnings(result) == [], result.report()


@needs_mount
@pytest.mark.parametrize(
    ("knob", "kib", "window"),
    [("shm", 64 * 1024, "shm 1"), ("shm", 64, "none 0"), ("shm", 6000, "none 0"), ("auto", 64, "memfd 1")],
    ids=["room", "none", "room for one rank", "auto"],
)
def test_a_small_dev_shm(knob, kib, window):
    result = run_job(SMALL_SHM % kib + SUM_AND_TELL, 2, env={"HVDLITE_SHARED_MEMORY": knob})
    assert windows(result) == [window] * 2, result.report()
    said = warnings(result)
    if window != "none 0":
        assert said == [], result.report()
    else:
        assert len(said) == 1, result.report()
        for part in ("share no window (shm: ", "No space left on device", "MPI's messages", "--shm-size"):
            assert part in said[0], result.report()


@needs_mount
@pytest.mark.parametrize(("knob", "window"), [("auto", "shm 1"), ("memfd", "none 0")])
def test_a_rank_that_cannot_open_the_memfd(knob, window):
    result = run_job(NO_PROC + SUM_AND_TELL, 3, env={"HVDLITE_SHARED_MEMORY": knob})
    assert windows(result) == [window] * 3, result.report()
    said = warnings(result)
    if knob == "auto":
        assert said == [], result.report()
    else:
        assert len(said) == 1, result.report()
        assert "no shared memory between the ranks" in said[0], result.report()
        assert "memfd: opening /proc/" in said[0], result.report()


@pytest.mark.parametrize("knob", ["memfd", "shm"])
def test_a_crash_leaves_nothing_behind(knob):
    result = run_job(
        """
        import os, signal
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        hvd.allreduce(np.ones(100_000), name="x")
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(np.ones(100_000), name="x")
        except hvd.PeerLostError:
            os._exit(3)
        """,
        3,
        timeout=20,
        env={"HVDLITE_SHARED_MEMORY": knob},
    )
    assert result.returncode != 0, result.report()
    assert leftovers() == []
