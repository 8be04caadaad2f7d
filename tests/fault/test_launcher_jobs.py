"""hvdlite run and hvdlite.run with real ranks: output, failures, results."""

import os
import signal
import subprocess

import pytest
from support.job import find_mpirun, launcher_has_ulfm
from support.launched import OURS, TIMEOUT, command, environment, in_a_program

import hvdlite
from hvdlite.errors import PeerLostError


def run(tmp_path, program, *words, n=3, **changes):
    script = tmp_path / "program.py"
    script.write_text(program)
    return subprocess.run(
        command("-n", str(n), *words, "python", str(script)),
        env=environment(**{"TMPDIR": str(tmp_path), **changes}),  # a folder without the files of mpiruns that were killed
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


SUM = """
import sys, numpy, hvdlite as hvd
hvd.init()
print("sum", hvd.allreduce(numpy.ones(2) * hvd.rank(), op=hvd.Sum)[0], "of", hvd.size())
print("also", file=sys.stderr)
"""


def test_ranks_are_started_and_their_lines_are_tagged(tmp_path):
    done = run(tmp_path, SUM, "--output-filename", str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: sum 3.0 of 3" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}]<stderr>: also" for rank in range(3)]
    for rank in range(3):
        folder = tmp_path / "logs" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == "sum 3.0 of 3\n"
        assert (folder / "stderr").read_text() == "also\n"


def test_flags_reach_the_ranks(tmp_path):
    program = "import os; print(os.environ['HVDLITE_FUSION_THRESHOLD'], os.environ['MINE'], os.environ['PYTHONUNBUFFERED'])"
    done = run(tmp_path, program, "--fusion-threshold-mb", "2", "-x", "MINE=a b", "--no-tag-output", n=1)
    assert (done.stdout, done.returncode) == ("2097152 a b 1\n", 0), done.stderr


def test_the_folder_for_temporary_files_may_have_a_long_path(tmp_path):
    folder = tmp_path / ("a" * 100)  # the path of a socket has at most 107 bytes
    folder.mkdir()
    done = run(tmp_path, "print('here')", "--no-tag-output", n=2, TMPDIR=str(folder))
    assert (done.stdout, done.returncode) == ("here\nhere\n", 0), done.stderr
    assert not list(folder.glob("hvdlite-*"))


def test_lines_of_ranks_do_not_mix(tmp_path):
    program = """
import os, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
for number in range(3000):
    print(rank * 100, number, "x" * 100)
"""
    done = run(tmp_path, program)
    lines = done.stdout.splitlines()
    assert len(lines) == 9000
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[{rank}]<stdout>: ")]
        assert mine == [f"[{rank}]<stdout>: {str(rank) * 100} {number} {'x' * 100}" for number in range(3000)]


def test_what_comes_without_an_end_of_line_comes_at_the_end(tmp_path):
    done = run(tmp_path, "import sys; sys.stdout.write('no end')", n=1)
    assert done.stdout == "[0]<stdout>: no end\n"


def test_ranks_read_nothing_from_standard_input(tmp_path):
    """Open MPI's mpirun would let rank 0 wait for the end of its standard input, for ever."""
    script = tmp_path / "program.py"
    script.write_text("import sys; print(len(sys.stdin.read()))")
    done = subprocess.run(
        command("-n", "2", "python", str(script)),
        env=environment(),
        input="hello",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: 0", "[1]<stdout>: 0"]


RAISES = """
import numpy, hvdlite as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    raise ValueError("the data is bad")
hvd.allreduce(numpy.ones(2))
"""


KILLED = """
import os, signal, numpy, hvdlite as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(numpy.ones(2))
"""


@pytest.mark.skipif(not launcher_has_ulfm(), reason="the launcher cannot let a job continue without a rank")
@pytest.mark.parametrize("elastic", [True, False])
def test_an_elastic_job_that_cannot_continue_can_be_started_again(tmp_path, elastic):
    done = run(tmp_path, KILLED, *["--elastic"][: int(elastic)], n=2)
    assert done.returncode == 137, done.stderr
    assert "hvdlite run: rank 1 (host " in done.stderr
    assert ("Start the program again, on the hosts that are left" in done.stderr) == elastic, done.stderr


def test_the_traceback_of_the_first_failure_comes_last(tmp_path):
    done = run(tmp_path, RAISES)
    assert done.returncode == 1
    assert "[0]<stderr>: hvdlite.errors.PeerLostError: rank 1" in done.stderr or "[2]<stderr>:" in done.stderr
    place, last = done.stderr.rsplit("hvdlite run: rank 1 (host ", 1)
    assert "failed first: it ended with exit code 1. Its last output:" in last
    assert last.splitlines()[1] == "Traceback (most recent call last):"
    assert "ValueError: the data is bad" in last
    assert "PeerLostError" not in last
    assert "[1]<stderr>: ValueError: the data is bad" in place


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("os._exit(7)", 7, "it ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "it was ended by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 10)", 138, "it was ended by signal 10 (SIGUSR1)"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(tmp_path, how, status, said):
    program = f"""
import os, time, hvdlite as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 2:
    print("my last words")
    {how}
hvd.barrier()
"""
    done = run(tmp_path, program)
    assert done.returncode == status, done.stderr
    _, last = done.stderr.rsplit("hvdlite run: ", 1)
    assert last.startswith("rank 2 (host ")
    assert said in last
    assert last.endswith("Its last output:\nmy last words\n")


def test_a_program_that_cannot_be_started():
    done = subprocess.run(
        command("-n", "2", "/no/such/program"), env=environment(), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 127
    assert done.stderr.rstrip().endswith("/no/such/program cannot be started: No such file or directory")


def test_an_mpirun_that_has_started_no_rank_is_started_again(tmp_path):
    """As Open MPI 5's ends if it has the process id of an mpirun that was killed."""
    weak, real = tmp_path / "mpirun", find_mpirun()
    weak.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n'
        f'echo once >> {tmp_path}/launches; [ $(wc -l < {tmp_path}/launches) -gt "$FAILURES" ] && exec {real} "$@"\n'
        'echo "PRRTE: listener thread failed to start" >&2; exit 213\n'
    )
    weak.chmod(0o755)
    done = run(tmp_path, "print('here')", "--mpirun", str(weak), n=2, FAILURES="2")
    assert (done.returncode, done.stdout.count("here")) == (0, 2), done.stderr
    assert done.stderr.count("has started no rank; hvdlite starts it again") == 2
    (tmp_path / "launches").unlink()
    done = run(tmp_path, "print('here')", "--mpirun", str(weak), n=2, FAILURES="3")
    assert (done.returncode, done.stdout) == (213, "")
    assert f"{weak} ended with exit code 213 before it had started a rank" in done.stderr


def test_an_mpirun_of_another_mpi_is_found_out_by_the_ranks(tmp_path):
    """The classic mistake: ranks of which each believes that it is alone."""
    other = tmp_path / "mpirun"
    other.write_text(
        """#!/bin/sh
[ "$1" = --version ] && { echo "HYDRA build details: Version: 4.0"; exit; }
while [ "$1" != -bind-to ]; do shift; done; shift 2
PMI_RANK=0 PMI_SIZE=2 "$@" & first=$!
PMI_RANK=1 PMI_SIZE=2 "$@"; second=$?
wait $first && exit $second
"""
    )
    other.chmod(0o755)
    done = run(tmp_path, "import hvdlite; hvdlite.init(); print('alone')", "--mpirun", str(other), n=2)
    assert done.returncode == 1
    assert "alone" not in done.stdout
    last = done.stderr.rsplit("hvdlite run: rank ", 1)[1]
    assert "the launcher says that this job has 2 processes (PMI_SIZE=2" in last
    assert "`hvdlite run`, which takes the mpirun of the loaded MPI" in last


def test_ranks_that_do_not_start_in_time(tmp_path):
    slow = tmp_path / "mpirun"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "mpirun (Open MPI) 5.0.1"; exit; }\nexec sleep 600\n')
    slow.chmod(0o755)
    done = run(tmp_path, "", "--mpirun", str(slow), "--start-timeout", "1", n=2)
    assert done.returncode != 0
    assert "ranks 0, 1 had not started after 1 seconds" in done.stderr


# --- hvdlite.run ----------------------------------------------------------------------------------------------------------


def test_a_function_of_a_program_runs_on_ranks_and_gives_their_results(tmp_path):
    done = in_a_program(
        tmp_path,
        """
import hvdlite

def train(factor, *, base):
    import numpy as np
    import hvdlite as hvd
    hvd.init()
    print("here", hvd.rank())
    return base + factor * hvd.allreduce(np.arange(2.0) + hvd.rank(), op=hvd.Sum), hvd.rank()

for total, rank in hvdlite.run(train, (10,), {"base": 1}, np=3):
    print(rank, total.tolist())
""",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-3:] == [f"{rank} [31.0, 61.0]" for rank in range(3)]
    assert sorted(lines[:3]) == [f"[{rank}]<stdout>: here {rank}" for rank in range(3)]


def raises_on_rank_1():
    import numpy

    hvdlite.init()
    if hvdlite.rank() == 1:
        raise KeyError("only here")
    hvdlite.allreduce(numpy.ones(1))


def ends_on_rank_1():
    hvdlite.init()
    hvdlite.barrier()
    if hvdlite.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvdlite.barrier()


@pytest.fixture
def unprepared(monkeypatch):
    for name in os.environ:
        if name.startswith(OURS):
            monkeypatch.delenv(name)


def test_what_a_rank_raises_is_raised_in_the_caller(unprepared, capfd):
    with pytest.raises(KeyError, match="only here") as caught:
        hvdlite.run(raises_on_rank_1, np=3)
    assert "rank 1 (host " in str(caught.value.__cause__)
    assert "in raises_on_rank_1" in str(caught.value.__cause__)


class Refused(Exception):
    def __init__(self, path, code):
        super().__init__(f"{path} was refused with {code}")
        self.path, self.code = path, code


def raises_an_exception_of_two_arguments():
    raise Refused("data.bin", 403)


def test_an_exception_whose_class_takes_several_arguments(unprepared, capfd):
    with pytest.raises(Refused, match=r"data\.bin was refused with 403") as caught:
        hvdlite.run(raises_an_exception_of_two_arguments, np=1)
    assert (caught.value.path, caught.value.code) == ("data.bin", 403)


def test_a_rank_that_is_killed(unprepared, capfd):
    with pytest.raises(PeerLostError, match=r"rank 1 \(host .*\) was ended by signal 9 \(SIGKILL\)"):
        hvdlite.run(ends_on_rank_1, np=2)


def test_horovods_run_serves_horovod_to_the_function(tmp_path):
    done = in_a_program(
        tmp_path,
        """
import hvdlite.horovod.install
import horovod

def train():
    import os
    import hvdlite
    from horovod.common import basics
    hvdlite.init()
    return hvdlite.rank(), basics.__name__, os.environ["HVDLITE_CACHE_CAPACITY"]

print(horovod.run(train, num_proc=2, disable_cache=True))
""",
    )
    results = [(rank, "hvdlite.horovod.common.basics", "0") for rank in (0, 1)]
    assert done.stdout == f"{results}\n", done.stderr
