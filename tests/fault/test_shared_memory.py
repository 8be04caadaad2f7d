"""What the ranks of a host share: where it lies, what happens where there is too little of it, that nothing is left behind."""

import subprocess
from pathlib import Path

import pytest
from support.job import find_mpirun, run_job
from support.shared_memory import NO_PROC, SMALL_SHM, needs_mount, nothing_left_behind

# Sums a few sizes, then says where this rank's window is mapped.
SUM_AND_TELL = """
import os
from pathlib import Path
import numpy as np
import hvdlite as hvd

hvd.init()
size, rank = hvd.size(), hvd.rank()
for count in (1, 1000, 300_007):
    value = np.arange(count, dtype=np.float64) * (rank + 1)
    total = hvd.allreduce(value, name=f"a{count}", op=hvd.Sum)
    assert np.array_equal(total, np.arange(count) * (size * (size + 1) / 2.0))
found = [line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "hvdlite-window" in line]
kind = "none" if not found else "memfd" if found[0].startswith("/memfd:") else "shm"
print("window", kind, len(found), flush=True)
"""

# Takes the place of MPI's own.
LONE = """
#include <mpi.h>
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* out) {
  int rank;
  (void)type, (void)info;
  MPI_Comm_rank(comm, &rank);
  return MPI_Comm_split(comm, rank, key, out);
}
"""

CRASH = """
import os, signal
import numpy as np
import hvdlite as hvd

hvd.init()
try:
    hvd.allreduce(np.ones(100_000), name="x")
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(100_000), name="x")
except hvd.PeerLostError:
    os._exit(3)
"""


def windows(result) -> list[str]:
    assert result.returncode == 0, result.report()
    return [line.removeprefix("window ") for text in result.stdout.values() for line in text.splitlines()]


def warnings(result) -> list[str]:
    return [line for text in result.stderr.values() for line in text.splitlines()]


@pytest.mark.parametrize(("knob", "window"), [("auto", "memfd 1"), ("memfd", "memfd 1"), ("shm", "shm 1"), ("off", "none 0")])
def test_the_ranks_of_a_host_share_a_window(knob, window):
    with nothing_left_behind():
        result = run_job(SUM_AND_TELL, 3, env={"HVDLITE_SHARED_MEMORY": knob})
    assert windows(result) == [window] * 3, result.report()
    assert warnings(result) == [], result.report()


def test_ranks_that_mpi_takes_for_lone_ones_share_a_window(tmp_path):
    """As Open MPI does under srun, where Slurm's PMIx is much older than its own."""
    compiler = Path(find_mpirun()).with_name("mpicc")
    if not compiler.exists():
        pytest.skip("no mpicc beside mpirun (Debian: apt install libopenmpi-dev)")
    (tmp_path / "lone.c").write_text(LONE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "lone.so", tmp_path / "lone.c"], check=True)
    preload = f"import ctypes\nctypes.CDLL({str(tmp_path / 'lone.so')!r}, ctypes.RTLD_GLOBAL)"
    tell = (
        "from mpi4py import MPI\nassert MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).size == 1\nassert hvd.local_size() == 3"
    )
    result = run_job(f"{preload}\n{SUM_AND_TELL}\n{tell}\nassert hvd.local_rank() == hvd.rank() and hvd.cross_size() == 1", 3)
    assert windows(result) == ["memfd 1"] * 3, result.report()
    assert warnings(result) == [], result.report()


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
    with nothing_left_behind():
        result = run_job(CRASH, 3, env={"HVDLITE_SHARED_MEMORY": knob}, fresh=knob == "shm")
    assert result.returncode != 0, result.report()
    assert not result.timed_out, result.report()
