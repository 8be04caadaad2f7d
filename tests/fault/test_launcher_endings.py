"""Jobs of hvdlite run and hvdlite.run that are told to end: programs get a signal and time, and nothing is left."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.launched import command, environment, in_a_program
from support.limits import DEADLINE, eventually

MARK = "HVDTEST_LAUNCHER"
HANGS = """
import signal, subprocess, hvdlite as hvd
hvd.init()
if {stubborn}:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *args: None)
subprocess.Popen(["sleep", "600"])
print("up", flush=True)
while True:
    signal.pause()
"""


def marked(mark):
    """The processes of a job, which have this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@contextmanager
def started(words, stderr=subprocess.STDOUT, **changes):
    """A process with these words, whose ranks are up; it is killed in the end."""
    process = subprocess.Popen(
        words,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        await_lines(process, "[0]<stdout>: up", "[1]<stdout>: up")
        yield process
    finally:
        process.kill()
        process.communicate()


def await_lines(process, *lines):
    """Reads what is printed until all of these have come, in any order and among others."""
    missing = {f"{line}\n" for line in lines}
    while missing:
        said = process.stdout.readline()
        assert said, f"{missing} did not come"
        missing.discard(said)


@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGKILL, True)]
)
def test_nothing_is_left_of_a_job_that_is_interrupted(tmp_path, number, stubborn):
    script = tmp_path / "program.py"
    script.write_text(HANGS.format(stubborn=stubborn))
    mark = uuid.uuid4().hex
    try:
        words = command("-n", "2", "--grace", "1" if stubborn else "60", "python", str(script))
        with started(words, **{MARK: mark, "TMPDIR": str(tmp_path)}) as process:
            # Launcher, mpirun, and beside each rank its program and what that has started, which may still be about to run.
            assert eventually(lambda: len(marked(mark)) >= 8)
            process.send_signal(number)
            rest = process.communicate(timeout=DEADLINE)[0]
            assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
            assert rest.count("]<stderr>: KeyboardInterrupt\n") == (2 if number == signal.SIGINT and not stubborn else 0), rest
            assert eventually(lambda: not marked(mark))
            assert not list(tmp_path.glob("hvdlite-run-*"))
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


SAVES = """
import os, signal, sys, hvdlite as hvd
hvd.init()

def save():
    if hvd.rank() == 0:
        open(sys.argv[1]).close()  # a pipe: waits until the test opens it, too
    print("saved", flush=True)
    os._exit(3)

signal.signal(signal.SIGTERM, lambda *args: save())
try:
    print("up", flush=True)  # from here on the signal may come
    while True:
        signal.pause()
except KeyboardInterrupt:
    save()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_every_rank_has_time_to_save(tmp_path, number):
    """Ctrl-C is a KeyboardInterrupt in the script, SIGTERM is SIGTERM; mpirun ends nobody because another has ended."""
    script, go_on = tmp_path / "program.py", tmp_path / "go_on"
    script.write_text(SAVES)
    os.mkfifo(go_on)
    with started(command("-n", "2", "python", str(script), str(go_on))) as process:
        process.send_signal(number)
        await_lines(process, "[1]<stdout>: saved")
        go_on.open("w").close()
        assert "[0]<stdout>: saved\n" in process.communicate(timeout=DEADLINE)[0]
        assert process.returncode == 128 + number


def test_what_is_ignored_stays_ignored(tmp_path):
    """As nohup has it; the job goes on until another signal ends it."""
    script = tmp_path / "program.py"
    script.write_text(SAVES)
    words = ["nohup", *command("-n", "2", "python", str(script), os.devnull)]
    with started(words, subprocess.DEVNULL) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=DEADLINE)[0].count("saved\n") == 2
        assert process.returncode == 128 + signal.SIGTERM


DRIVER = """
import signal, sys, hvdlite

def waits():
    print("up", flush=True)
    while True:
        signal.pause()

hvdlite.run(waits, np=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_ended_leaves_nothing(tmp_path, number):
    """After SIGKILL the next one removes it."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with started([sys.executable, str(script)], subprocess.DEVNULL, TMPDIR=str(tmp_path)) as process:
        process.send_signal(number)
        process.communicate(timeout=DEADLINE)
        assert process.returncode == -number
    if number == signal.SIGKILL:
        assert len(list(tmp_path.glob("hvdlite-*"))) == 1
        done = in_a_program(tmp_path, "import hvdlite; hvdlite.run(print, ('x',), np=1)", TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("hvdlite-*"))
