"""A real job that is looked at: its figures, viewers that go away or come together, strangers, a stopped rank, the end.

One job trains while the tests of this file look at it, and ends when it is told to.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.job import Job, job_environment, run_job
from support.limits import DEADLINE, eventually

from hvdlite import view_socket
from hvdlite.launcher import cli, view_agent
from hvdlite.launcher.figures import figures_of_job

TESTS = Path(__file__).parents[1]
NOBODY = 65534
PROGRAM = """
import os, sys
import numpy as np
import hvdlite as hvd
from support.limits import when_waiting
from support.world import WORLD

def sockets():
    return [name for fd in os.listdir("/proc/self/fd") if os.path.exists(name := f"/proc/self/fd/{fd}")
            and os.readlink(name).startswith("socket:") and os.stat(name).st_ino == listener]

def train(step):
    "Rank 1 asks when rank 0 waits for it. Shall the job end?"
    if hvd.rank() == 0:
        when_waiting(lambda: WORLD.send(None, 1))
    else:
        WORLD.recv()
    values = np.full(5000, hvd.rank() + step, np.float32)
    values[0] = os.path.exists(sys.argv[1])
    end = hvd.allreduce(values, op=hvd.Max, name="gradient")[0]
    hvd.mark_step()
    return end

hvd.init()
from hvdlite import live_view
listener = os.fstat(live_view._servers[-1].listener.fileno()).st_ino
child = os.fork()
if child == 0:
    os._exit(len(sockets()))
print("sockets", len(sockets()), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
step = 0
while not train(step):
    step += 1
hvd.shutdown()
print("ended well", flush=True)
"""


class Training:
    """The job, and looks at it."""

    def __init__(self, folder):
        self.end_file = folder / "end"
        script = folder / "training.py"
        script.write_text(PROGRAM)
        path = {"PYTHONPATH": os.pathsep.join((job_environment()["PYTHONPATH"], str(TESTS)))}
        self.job = Job([str(script), str(self.end_file)], 2, folder, path)
        self.job.wait(DEADLINE, lambda: len(self.addresses()) == 2)
        assert len(self.addresses()) == 2, self.job.end().report()
        self.name = self.addresses()[0].job

    def addresses(self):
        """Those of this job: other tests may run jobs beside it."""
        ours = self.job.running()
        return [address for address in view_socket.addresses() if address.pid in ours]

    def answers(self):
        return view_agent.look(self.name)

    def steps(self):
        return min(answer["stats"]["steps"] for answer in self.answers())

    def goes_on(self):
        before = self.steps()
        return eventually(lambda: self.steps() > before + 2)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("top")
    started = Training(folder)
    yield started
    started.end_file.touch()
    ended = started.job.wait(DEADLINE)
    result = started.job.end(timed_out=not ended)
    assert result.returncode == 0, result.report()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine no rank counts as silent."""
    monkeypatch.setattr(view_agent, "_PATIENCE", DEADLINE)


def test_the_figures_of_a_job(training):
    before = {answer["rank"]: answer for answer in training.answers()}
    assert training.goes_on()
    found = figures_of_job(before, training.answers())
    assert (found.job, found.program, found.size, found.not_asked) == (training.name, "training.py", 2, {})
    assert [each.rank for each in found.ranks] == [0, 1]
    assert found.waited_for == 1
    for each in found.ranks:
        assert (each.state, each.host) == ("answers", socket.gethostname())
        assert each.steps > 2
        assert each.step_seconds == pytest.approx(each.seconds / each.steps)
        assert each.computing + each.waiting + each.communicating == pytest.approx(1)
        assert min(each.computing, each.waiting, each.communicating) >= 0
        assert each.bytes_per_second > 0
        assert each.memory_bytes > 1 << 20
        assert "training.py" in each.where
    assert found.ranks[0].blocked_on[1] > 0
    assert found.ranks[0].waiting > 0
    assert 0 < found.waited_for_share <= 1


@pytest.mark.parametrize("whole_name", [True, False])
def test_one_look_for_scripts(training, whole_name, capsys):
    name = training.name if whole_name else training.name.partition("@")[0]
    assert cli.main(["top", name, "--once", "--json", "--interval", "0.1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [(each["rank"], each["state"]) for each in found["ranks"]] == [(0, "answers"), (1, "answers")]
    assert found["job"] == training.name


def test_a_page_for_people(training, capsys):
    pytest.importorskip("rich")

    def page():
        assert cli.main(["top", training.name, "--once", "--interval", "0.1"]) == 0
        out = capsys.readouterr().out
        assert f"training.py, job {training.name}: 2 ranks on 1 host" in out
        return out

    # On a busy machine no wait may end between the two looks of a page.
    assert eventually(lambda: "The others waited most for rank 1" in page())


def test_viewers_that_go_away(training):
    """Before the answer, in the middle of it, and one that takes nothing while it stays."""
    stays = []
    for address in training.addresses():
        for read in (0, 1, 0, 7, 0):
            with socket.socket(socket.AF_UNIX) as viewer:
                viewer.connect(f"\0{address.name}")
                assert len(viewer.recv(read, socket.MSG_WAITALL) if read else b"") == read
        stays.append(socket.socket(socket.AF_UNIX))
        stays[-1].connect(f"\0{address.name}")
    assert training.goes_on()
    for viewer in stays:
        viewer.close()


def test_two_viewers(training):
    seen = []

    def watch():
        seen.append([[answer["rank"] for answer in training.answers() if "stats" in answer] for _ in range(5)])

    viewers = [threading.Thread(target=watch) for _ in range(2)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert seen == [[[0, 1]] * 5] * 2
    assert training.goes_on()


def test_another_user_gets_nothing(training):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = f"""
import os, socket
viewer = socket.socket(socket.AF_UNIX)
os.setgid({NOBODY}); os.setuid({NOBODY})
viewer.connect(chr(0) + {training.addresses()[0].name!r})
print(len(viewer.recv(100)))
"""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout == "0\n"
    assert training.goes_on()


def test_a_socket_that_is_not_of_this_user_is_not_believed(monkeypatch):
    with view_socket.listen("1@here", 0):
        (address,) = [each for each in view_socket.addresses() if each.job == "1@here"]
        monkeypatch.setattr(view_socket.os, "geteuid", lambda: NOBODY)
        assert view_socket.ask(address, DEADLINE) is None


def states(pid):
    """Of the threads of a process."""
    return {file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_a_stopped_rank_is_silent(training, monkeypatch):
    monkeypatch.setattr(view_agent, "_PATIENCE", 0.5)
    address = training.addresses()[1]
    os.kill(address.pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: states(address.pid) == {"T"})
        with pytest.raises(view_socket.SilentRankError):
            view_socket.ask(address, 0.05)
        looks = []

        def only_rank_0_answers_and_waits():
            answers = training.answers()
            if [bool(answer.get("silent")) for answer in answers] != [False, True]:
                return False
            looks.append(figures_of_job({0: answers[0]}, answers))
            return looks[-1].ranks[0].oldest is not None

        assert eventually(only_rank_0_answers_and_waits)
        found = looks[-1]
        assert [each.state for each in found.ranks] == ["answers", "silent"]
        assert found.ranks[1].computing is None
        assert found.ranks[0].oldest["operation"].startswith("allreduce of")
    finally:
        os.kill(address.pid, signal.SIGCONT)
    monkeypatch.setattr(view_agent, "_PATIENCE", DEADLINE)  # from here on both ranks answer
    assert training.goes_on()


def test_a_job_that_ends_while_it_is_looked_at(training):
    """The last test of this file."""
    command = [sys.executable, "-m", "hvdlite", "top", training.name, "--json", "--interval", "0.05"]
    with subprocess.Popen(command, env=job_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as viewer:
        assert json.loads(viewer.stdout.readline())["job"] == training.name
        training.end_file.touch()
        rest, said = viewer.communicate(timeout=DEADLINE)
    assert viewer.returncode == 0
    assert said == f"hvdlite top: the job {training.name} has ended\n"
    assert all(json.loads(line)["job"] == training.name for line in rest.splitlines())
    assert eventually(lambda: training.addresses() == [])
    assert training.job.wait(DEADLINE)
    for text in training.job.result().stdout.values():
        assert text == "sockets 1 0\nended well\n"


FULL = """
import os, resource, socket, threading
import hvdlite as hvd
from hvdlite import live_view, view_socket

hvd.init()
(server,) = live_view._servers
(address,) = [each for each in view_socket.addresses() if each.pid == os.getpid()]
view_socket.ask(address, 60)  # imports what an answer needs
failed, wait = threading.Event(), server._closing.wait
server._closing.wait = lambda seconds: failed.set() or wait(seconds)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
viewer = socket.socket(socket.AF_UNIX)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
viewer.connect(server.listener.getsockname())  # ends the present accept(), for which the system has set a number aside
assert failed.wait(60)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(view_socket.ask(address, 60)["stats"]["size"])
"""


def test_a_rank_answers_again_after_it_had_too_many_open_files():
    job = run_job(FULL, 1)
    assert job.stdout[0] == "1\n", job.report()
