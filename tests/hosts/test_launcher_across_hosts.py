"""hvdlite run across emulated hosts: what ranks elsewhere print and how they end comes through mpirun."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from support.hosts import MPIRUN_OPTIONS, emulated_hosts
from support.job import job_environment

TIMEOUT = 180.0


@pytest.fixture(scope="module")
def hosts():
    with emulated_hosts(2) as up:
        yield up


def command(hosts, tmp_path, program, environ, *words):
    """What goes to the front, and `hvdlite run` there with two ranks on each host; its daemons start where ssh would log in."""
    script = tmp_path / "program.py"
    script.write_text(program)
    *enter, _, flag, name, agent = hosts.on_front(["mpirun"], environ, tmp_path)
    options = [word for word in MPIRUN_OPTIONS if word not in ("--bind-to", "none")]
    arguments = ["-H", "h0:2,h1:2", "--mpi-args", shlex.join([flag, name, agent, *options]), *words]
    return enter, [sys.executable, "-m", "hvdlite", "run", *arguments, "python", str(script)]


def run(hosts, tmp_path, program, *words, **changes):
    environ = {**job_environment(), **changes}
    enter, ours = command(hosts, tmp_path, program, environ, *words)
    return subprocess.run(
        [*enter, *ours], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
    )


def test_ranks_on_other_hosts_are_tagged_and_get_variables(hosts, tmp_path):
    program = """
import os, socket, sys, numpy, hvdlite as hvd
hvd.init()
total = hvd.allreduce(numpy.ones(2) * hvd.rank(), op=hvd.Sum)[0]
print(total, socket.gethostname(), hvd.local_rank(), os.environ["HVDLITE_SEGMENT_BYTES"], os.environ["MINE"])
print("x" * 3000, file=sys.stderr)
"""
    done = run(
        hosts, tmp_path, program, "--segment-bytes", "64KiB", "-x", "MINE=a b", "--output-filename", str(tmp_path / "logs")
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: 6.0 h{rank // 2} {rank % 2} 64KiB a b" for rank in range(4)]
    # On a busy machine mpirun may be late to put its ssh into a process group, and says so.
    ours = [line for line in done.stderr.splitlines() if not re.match(r"\[\S+:\d+\] plm:ssh: Warning: setpgid", line)]
    assert sorted(ours) == [f"[{rank}]<stderr>: {'x' * 3000}" for rank in range(4)]
    assert (tmp_path / "logs" / "rank.3" / "stdout").read_text() == "6.0 h1 1 64KiB a b\n"


def test_the_rank_that_failed_first_is_named_with_its_host(hosts, tmp_path):
    program = """
import numpy, hvdlite as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 3:
    raise ValueError("the data is bad")
hvd.allreduce(numpy.ones(2))
"""
    done = run(hosts, tmp_path, program)
    # Open MPI may abort a rank that still tells the others, as soon as a connection of it is closed; its code is another then.
    assert done.returncode != 0, done.stderr
    last = done.stderr.rsplit("hvdlite run: ", 1)[1]
    assert last.startswith("rank 3 (host h1, pid ")
    assert "ValueError: the data is bad" in last
    assert "PeerLostError" not in last


@pytest.mark.parametrize(("number", "kind"), [("INT", "KeyboardInterrupt"), ("TERM", "signal")])
def test_ranks_on_all_hosts_have_time_to_save(hosts, tmp_path, number, kind):
    """mpirun forwards the launcher's wish to end; rank 0 saves when all others have done so, and are still there."""
    program = """
import os, signal, sys, hvdlite as hvd
hvd.init()

def save(kind):
    if hvd.rank() == 0:
        for rank in (1, 2, 3):
            assert hvd.broadcast_object(None, root_rank=rank) == rank
    else:
        for rank in (1, 2, 3):
            hvd.broadcast_object(hvd.rank() if rank == hvd.rank() else None, root_rank=rank)
    print("saved by", kind, flush=True)
    sys.exit(3)

signal.signal(signal.SIGTERM, lambda *args: save("signal"))
try:
    print("up", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    save("KeyboardInterrupt")
"""
    environ = job_environment()
    enter, ours = command(hosts, tmp_path, program, environ)
    # A shell's `&` has SIGINT ignored, which would stay so.
    heard = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
    )
    launcher = shlex.join([sys.executable, "-c", heard, *ours])
    line = f"{launcher} & pid=$!; read go; kill -{number} $pid; wait $pid; echo ends with $?"
    with subprocess.Popen(
        [*enter, "bash", "-c", line],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        up = 0
        while up < 4:
            said = process.stdout.readline()
            assert said
            up += said.endswith("up\n")
        rest = process.communicate("go\n", timeout=TIMEOUT)[0]
    assert rest.count(f"saved by {kind}\n") == 4, rest
    assert rest.endswith(f"ends with {130 if number == 'INT' else 143}\n")


def doctor(hosts, tmp_path, names, *words):
    environ = job_environment()
    *enter, _, flag, name, agent = hosts.on_front(["mpirun"], environ, tmp_path)
    options = [word for word in MPIRUN_OPTIONS if word not in ("--bind-to", "none")]
    ours = ["doctor", "--json", "--hosts", names, "--mpi-args", shlex.join([flag, name, agent, *options]), *words]
    done = subprocess.run(
        [*enter, sys.executable, "-m", "hvdlite", *ours],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return done, {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]} if done.stdout else {}


def test_the_doctor_checks_hosts_against_each_other(tmp_path):
    """A wire of 1 ms and 100 Mbit/s: the latency is at least the delay, and no message is faster than the wire."""
    with emulated_hosts(2, rate_mbit=100, delay_us=1000) as hosts:
        done, found = doctor(hosts, tmp_path, "h0,h1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {finding["status"] for finding in found.values()} == {"ok"}
    assert "h0,h1".replace(",", ", ") in found["reach the hosts"]["found"]
    assert "10.77.0.0/24: eth0 of h0 (10.77.0." in found["network"]["found"]
    assert re.fullmatch(r"8 bytes from h0 to h1 take (\S+) ms one way, by MPI", found["latency"]["found"])
    assert float(found["latency"]["found"].split()[7]) >= 1
    rates = [float(rate) for rate in re.findall(r"(\S+) GB/s", found["bandwidth"]["found"])]
    assert len(rates) == 2
    assert 0 < max(rates) <= 0.0126
    assert re.search(r"the right sum of .*, at 0\.0", found["allreduce"]["found"])


@pytest.mark.slow
def test_the_doctor_does_not_reach_a_host(hosts, tmp_path):
    done, found = doctor(hosts, tmp_path, "h0,nowhere")
    assert done.returncode == 1
    assert list(found) == ["reach the hosts"]
    assert "`ssh HOST true`" in found["reach the hosts"]["remedy"]
