"""hvdlite top on a job of several emulated hosts: mpirun starts a program on each that asks the ranks there."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import MPIRUN_OPTIONS, emulated_hosts
from support.job import Job, job_environment
from support.limits import DEADLINE

TESTS = Path(__file__).parents[1]
PROGRAM = """
import os, sys
import numpy as np
import hvdlite as hvd
hvd.init()
print("up", flush=True)
step = 0
while not hvd.allreduce(np.array([os.path.exists(sys.argv[1])]), op=hvd.Max, name="end")[0]:
    step += 1
    hvd.allreduce(np.full(5000, hvd.rank() + step, np.float32), name="gradient")
    hvd.mark_step()
"""


@pytest.fixture(scope="module")
def hosts():
    with emulated_hosts(2) as up:
        yield up


@pytest.fixture(scope="module")
def training(hosts, tmp_path_factory):
    """Ranks 0 and 1 on h0, rank 2 on h1, until the tests of this file are over."""
    folder = tmp_path_factory.mktemp("top")
    (folder / "training.py").write_text(PROGRAM)
    _, options = hosts.placement([2, 1])
    job = Job([str(folder / "training.py"), str(folder / "end")], 3, folder, None, options, hosts)
    job.wait(DEADLINE, lambda: list(job.result().stdout.values()) == ["up\n"] * 3)
    yield job
    (folder / "end").touch()
    ended = job.wait(DEADLINE)
    result = job.end(timed_out=not ended)
    assert result.returncode == 0, result.report()


def top(hosts, tmp_path, names, *words):
    """hvdlite top on the front."""
    environ = job_environment()
    *enter, _, flag, name, agent = hosts.on_front(["mpirun"], environ, tmp_path)
    options = [word for word in MPIRUN_OPTIONS if word not in ("--bind-to", "none")]
    ours = [
        sys.executable,
        "-m",
        "hvdlite",
        "top",
        "-H",
        names,
        "--mpi-args",
        shlex.join([flag, name, agent, *options]),
        *words,
    ]
    return subprocess.run(
        [*enter, *ours], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def test_the_ranks_of_all_hosts(hosts, training, tmp_path):
    for _ in range(5):
        done = top(hosts, tmp_path, "h0,h1", "--once", "--json", "--interval", "0.5")
        found = json.loads(done.stdout) if done.returncode == 0 else {"ranks": []}
        # On a busy machine a rank may be silent for a second, in either look, and may end no step between the looks.
        if found["ranks"] and all(each["steps"] and each["bytes_per_second"] for each in found["ranks"]):
            break
    assert done.returncode == 0, done.stderr
    assert [(each["rank"], each["host"], each["state"]) for each in found["ranks"]] == [
        (0, "h0", "answers"),
        (1, "h0", "answers"),
        (2, "h1", "answers"),
    ]
    assert all(each["steps"] > 0 and each["bytes_per_second"] > 0 and each["memory_bytes"] > 0 for each in found["ranks"])
    assert (found["size"], found["not_asked"]) == (3, {})


@pytest.mark.slow
def test_one_host_of_two(hosts, training, tmp_path):
    for _ in range(5):
        done = top(hosts, tmp_path, "h1", "--once", "--json", "--interval", "0.2")
        if done.returncode == 0:
            break  # on a busy machine the only rank may be silent for a second
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["rank"] for each in found["ranks"]] == [2]
    assert found["not_asked"] == {"h0": 2}


def test_a_host_that_cannot_be_reached(hosts, tmp_path):
    done = top(hosts, tmp_path, "h0,nowhere", "--once", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hvdlite: a program could not be run on the hosts h0,nowhere: " in done.stderr
