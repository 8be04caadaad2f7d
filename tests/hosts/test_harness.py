"""The emulated hosts themselves: they look like hosts, the wire keeps to its shape, and nothing of them stays behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.hosts import emulated_hosts
from support.job import job_environment
from support.limits import eventually

TESTS = Path(__file__).parents[1]

# Rank 0 to the first rank of the other host: the shortest time of a message there and back, and of a large one and its receipt.
PING = """
    import json, time
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    big, small = np.zeros(2_000_000, np.uint8), np.zeros(1, np.uint8)

    def there_and_back(data):
        start = time.perf_counter()
        if world.rank == 0:
            world.Send(data, 1)
            world.Recv(small, 1)
        else:
            world.Recv(data, 0)
            world.Send(small, 0)
        return time.perf_counter() - start

    there_and_back(big)
    times = [min(there_and_back(data) for _ in range(15)) for data in (small, big)]
    print(json.dumps(times), flush=True)
"""


@pytest.mark.measures
@pytest.mark.parametrize(
    ("shape", "round_trip", "transfer"),
    [
        # At least so long, and on a busy machine some times as long. 2 MB take 16 ms at 1 Gbit/s and some more for the frames'
        # headers; a round trip is twice the delay.
        ({"rate_mbit": 1000, "delay_us": 1000}, (0.0020, 0.100), (0.016, 0.500)),
        ({"rate_mbit": 100, "delay_us": 100, "jitter_us": 200}, (0.0002, 0.100), (0.160, 1.000)),
    ],
    ids=["1Gbit", "100Mbit"],
)
def test_the_wire_keeps_to_its_shape(shape, round_trip, transfer):
    with emulated_hosts(2, **shape) as hosts:
        job = hosts.run(1, PING)
    assert job.returncode == 0, job.report()
    small, big = json.loads(job.stdout[0])
    assert round_trip[0] < small < round_trip[1], job.report()
    assert transfer[0] < big < transfer[1], job.report()


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
        stuck = hosts.run(1, "import time; print('here', flush=True); time.sleep(600)", timeout=5)
        assert stuck.timed_out
        assert stuck.seconds < 60
        assert hosts.run(1, "print('again')").stdout == {0: "again\n", 1: "again\n"}


HOLD = """
    import subprocess, sys, time
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
    ttl = 300.0 if ending == "killed" else 10.0
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
