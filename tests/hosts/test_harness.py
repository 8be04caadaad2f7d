"""The emulated hosts themselves: they look like hosts, the wire keeps to its shape, and nothing of them stays behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.hosts import emulated_hosts
from support.job import job_environment
from support.limits import DEADLINE, eventually

TESTS = Path(__file__).parents[1]


def test_the_wire_keeps_to_its_shape(tmp_path):
    """In virtual time, frame by frame."""
    program = tmp_path / "wire_test"
    if shutil.which("c++") is None:
        pytest.skip("there is no c++ on PATH")
    source = TESTS / "native" / "wire_test.cc"
    subprocess.run(["c++", "-std=c++20", str(source), "-o", str(program)], check=True, timeout=DEADLINE)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr


@pytest.mark.parametrize(
    "shape",
    [{"rate_mbit": 1000, "delay_us": 1000}, {"rate_mbit": 100, "delay_us": 100, "jitter_us": 200}],
    ids=["1Gbit", "100Mbit"],
)
def test_messages_of_any_size_come_through_a_shaped_wire(shape):
    program = """
        import numpy as np
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        for count in (1, 2_000_000):
            sent, received = np.arange(count, dtype=np.uint32) + world.rank, np.empty(count, np.uint32)
            world.Sendrecv(sent, 1 - world.rank, recvbuf=received)
            assert (received == np.arange(count) + 1 - world.rank).all()
        print("ok")
    """
    with emulated_hosts(2, **shape) as hosts:
        job = hosts.run(1, program)
    assert list(job.stdout.values()) == ["ok\n"] * 2, job.report()


def test_hosts_share_neither_memory_nor_processes_and_get_the_environment():
    program = """
        import json, os, socket
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.rank
        open(f"/dev/shm/of-{rank}", "w").close()
        MPI.COMM_WORLD.Barrier()
        seen = {"host": socket.gethostname(), "variable": os.environ["A_VARIABLE"], "pid": os.getpid()}
        seen["files"] = sorted(name for name in os.listdir("/dev/shm") if name.startswith("of-"))
        seen["address"] = socket.gethostbyname(socket.gethostname())
        print(json.dumps(seen))
    """
    with emulated_hosts(3) as hosts:
        job = hosts.run([2, 1, 1], program, env={"A_VARIABLE": 'it\'s "$here"'})
    assert job.returncode == 0, job.report()
    seen = [json.loads(job.stdout[rank]) for rank in range(4)]
    assert [each["host"] for each in seen] == ["h0", "h0", "h1", "h2"]
    assert [each["files"] for each in seen] == [["of-0", "of-1"], ["of-0", "of-1"], ["of-2"], ["of-3"]]
    assert [each["address"] for each in seen] == ["10.77.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert all(each["variable"] == 'it\'s "$here"' for each in seen)
    assert all(each["pid"] < 1000 for each in seen)


def test_a_job_that_hangs_is_ended_and_the_hosts_can_be_used_again():
    with emulated_hosts(2) as hosts:
        stuck = hosts.run(1, "import signal; print('here', flush=True); signal.pause()", timeout=5)
        assert stuck.timed_out
        assert hosts.run(1, "print('again')").stdout == {0: "again\n", 1: "again\n"}


HOLD = """
    import subprocess, sys
    sys.path.insert(0, {tests!r})
    from support.hosts import emulated_hosts
    with emulated_hosts(2, ttl={ttl}) as hosts:
        enter = hosts.on_front(["sleep"], {{}}, __import__("pathlib").Path({folder!r}))
        enter = enter[: enter.index("sleep")]
        sleeper = subprocess.Popen([*enter, "sleep", {mark!r}], start_new_session=True)
        print("up", flush=True)
        sleeper.wait()
        print("down", flush=True)
"""


def running(mark: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("ending", ["killed", "outlived"])
def test_nothing_stays_behind(ending, tmp_path):
    with emulated_hosts(1):
        pass  # skips where there can be none, and compiles the program
    mark = f"600.{os.getpid()}{len(ending)}"
    ttl = 300.0 if ending == "killed" else 20.0
    text = textwrap.dedent(HOLD).format(tests=str(TESTS), ttl=ttl, folder=str(tmp_path), mark=mark)
    holder = subprocess.Popen([sys.executable, "-c", text], env=job_environment(), stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "up\n"
        assert eventually(lambda: running(mark))  # the arguments of a process appear after it has started
        if ending == "killed":
            holder.send_signal(signal.SIGKILL)
        else:
            assert holder.stdout.readline() == "down\n"
        assert eventually(lambda: not running(mark))
    finally:
        holder.kill()
        holder.wait()
