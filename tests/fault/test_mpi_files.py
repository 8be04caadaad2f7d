"""The files of Open MPI in /dev/shm: their names can be those of another job's files, and some are never removed."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.job import job_environment, launcher_has_ulfm, run_job

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="only Open MPI names its files so from version 5 on")

BEFORE_INIT = """
    import os
    from pathlib import Path
    del os.environ["OMPI_MCA_btl_sm_backing_directory"]  # the test harness sets it
    import hvdlite as hvd
    from hvdlite import config, mpi_files

    def mapped():
        return {line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "sm_segment" in line}

    ours = mpi_files.file_of_rank(*config.open_mpi_place())
"""


def test_hvdlite_knows_the_names_of_the_files():
    job = run_job(
        BEFORE_INIT + "    taken = ours.exists()\n    hvd.init(); assert taken or str(ours) in mapped(), (ours, mapped())\n", 2
    )
    assert job.returncode == 0, job.report()


def test_the_file_of_another_job_is_left_alone():
    """Each rank finds a file with the name of its own. MPI works in another folder, which does not outlive the job."""
    job = run_job(
        BEFORE_INIT
        + """
    ours.write_bytes(b"another job's messages")
    try:
        hvd.init()
        assert ours.read_bytes() == b"another job's messages"
    finally:
        ours.unlink()
    assert "OMPI_MCA_btl_sm_backing_directory" not in os.environ
    from mpi4py import MPI
    everyone = [place for place, _ in MPI.COMM_WORLD.allgather((str(ours), hvd.rank()))]
    assert len(mapped()) == 2 and not mapped() & set(everyone), (mapped(), everyone)
    print(*{str(Path(file).parent) for file in mapped()})
    """,
        2,
    )
    assert job.returncode == 0, job.report()
    folders = {Path(folder) for text in job.stdout.values() for folder in text.split()}
    assert len(folders) == 2, job.report()
    assert all(folder.name.startswith("hvdlite-mpi-") and not folder.exists() for folder in folders), folders


def test_a_process_without_launcher_leaves_no_file():
    """A forked child that ends does not remove the file of its parent."""
    program = """
import os, sys
from pathlib import Path
import hvdlite as hvd
hvd.init()
[file] = {line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "sm_segment" in line}
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert Path(file).exists()
print(file)
"""
    done = subprocess.run([sys.executable, "-c", program], env=job_environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.split()[-1]).parent
    assert folder.name.startswith("hvdlite-mpi-"), done.stdout
    assert not folder.exists()
