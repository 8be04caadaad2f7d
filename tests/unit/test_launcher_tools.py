"""hvdlite doctor and shell completion, and what hvdlite.run sends."""

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.job import job_environment
from support.limits import eventually

from hvdlite.errors import InvalidArgumentError, PeerLostError, SystemFailure, UnsupportedError
from hvdlite.horovod.runner import run as horovod_run
from hvdlite.launcher import checks, cli, completion, doctor, folder, function_rank, functions, probes
from hvdlite.launcher.checks import Finding
from hvdlite.launcher.job import JobOutcome
from hvdlite.launcher.output import RankExit
from hvdlite.tuning import files
from hvdlite.tuning.place import JobPlace, cpu_name

# --- doctor -------------------------------------------------------------------------------------------------------------


def test_the_report_has_a_remedy_for_each_problem():
    bad = Finding("mpirun", "fail", "there is none", "install one")
    good = Finding("processors", "ok", "2 cores")
    assert doctor.render(bad) == "FAIL  mpirun            there is none\n                        To do: install one"
    assert doctor.render(good) == "ok    processors        2 cores"
    assert doctor.verdict([bad, good]) == "a required part does not work: 1 failed, 0 could work better, 1 passed"


def test_all_checks_here(capsys):
    """On a machine that runs these tests nothing that is needed fails."""
    assert cli.main(["doctor", "--json", "--no-frameworks", "--no-smoke"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in said["findings"]}
    for check in (
        "MPI loaded",
        "MPI starts",
        "native engine",
        "built for",
        "mpirun",
        "knobs",
        "processors",
        "open files",
        "CUDA",
    ):
        assert check in found
    assert found["MPI starts"]["found"] == "it offers the thread level MPI_THREAD_MULTIPLE"
    assert all(finding["remedy"] for finding in said["findings"] if finding["status"] in ("warn", "fail"))


def test_something_that_is_needed_and_does_not_work(monkeypatch, capsys):
    failing = Finding("mpirun", "fail", "there is none", "install one")
    started = []
    monkeypatch.setattr(checks, "CHECKS", {"MPI": lambda: iter([failing]), "job": lambda: started.append(1) or iter([])})
    assert cli.main(["doctor"]) == 1
    assert "To do: install one" in capsys.readouterr().out
    assert not started  # without mpirun there is no job


def test_check_build_of_horovodrun_is_the_doctor(monkeypatch, capsys):
    monkeypatch.setattr(checks, "CHECKS", {"processors": lambda: iter([Finding("processors", "ok", "9 cores")])})
    assert cli.main(["run", "--check-build"]) == 0
    assert "9 cores" in capsys.readouterr().out


def test_a_probe_that_starts_mpi_leaves_none_of_its_files():
    """Open MPI 5 never removes the file of a process without launcher, and this probe ends before MPI could remove anything."""
    text = "MPI.Init()\nsay(maps=open('/proc/self/maps').read())\nimport os; os._exit(0)"
    maps = probes.probe(probes.LOADED_MPI + text)[0]["maps"]
    files = {Path(line.split()[5]) for line in maps.splitlines() if "/sm_segment." in line}
    assert not [file for file in files if file.exists()], files


def test_a_probe_that_crashes_or_hangs_or_raises_is_survived(tmp_path, monkeypatch):
    assert probes.probe("say(a=1)\nimport os; os.abort()") == ({"a": 1}, "signal 6 (SIGABRT) ended it")
    assert probes.probe("raise ImportError('no such thing')") == ({}, "ImportError: no such thing")
    assert probes.probe("import os; say(a=1); os.write(2, b'caf\\xe9')") == ({"a": 1}, ""), "libraries may print latin-1"

    class Begun(subprocess.Popen):
        def communicate(self, input=None, timeout=None):
            assert timeout is None or eventually(said.exists)
            return super().communicate(input, timeout)

    said = tmp_path / "said"
    monkeypatch.setattr(probes.subprocess, "Popen", Begun)
    hangs = f"say(b=2)\nimport signal\nopen({str(said)!r}, 'w').close()\nsignal.pause()"
    assert probes.probe(hangs, seconds=1.0) == ({"b": 2}, "it took more than 1 seconds")


def test_a_source_tree_in_the_current_folder_is_no_problem(tmp_path, monkeypatch):
    (tmp_path / "hvdlite").mkdir()
    (tmp_path / "hvdlite" / "__init__.py").write_text("raise ImportError('this is the source tree')")
    monkeypatch.chdir(tmp_path)
    assert Path(probes.probe(probes.ENGINE)[0]["engine"]).parent == Path(probes.__file__).parents[1]
    assert probes.probe(probes.SMOKE) == ({}, "")


def test_a_framework_that_is_absent_broken_or_without_its_door(tmp_path, monkeypatch):
    (tmp_path / "brokenframework.py").write_text("import nonsense_that_is_not_there")
    (tmp_path / "fineframework.py").write_text("__version__ = '1.2'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert checks.framework("absentframework", "x").status == "none"
    broken = checks.framework("brokenframework", "x")
    assert (broken.status, "No module named 'nonsense_that_is_not_there'" in broken.found) == ("warn", True)
    without = checks.framework("fineframework", "absentdoor")
    assert without.status == "fail"
    assert without.found.startswith("version 1.2 is installed, but absentdoor cannot be imported: ")
    fine = Finding("fineframework", "ok", "version 1.2 is installed, and json can be imported")
    assert checks.framework("fineframework", "json") == fine


def test_a_bad_knob_is_a_failure(monkeypatch):
    monkeypatch.setenv("HVDLITE_CYCLE_TIME", "soon")
    (found,) = checks.knobs()
    assert (found.status, "HVDLITE_CYCLE_TIME='soon'" in found.found) == ("fail", True)
    monkeypatch.setenv("HVDLITE_CYCLE_TIME", "1")
    monkeypatch.setenv("HVDLITE_CYCEL_TIME", "1")
    (found,) = checks.knobs()
    assert found.status == "warn"
    assert "HVDLITE_CYCLE_TIME=1; HVDLITE_CYCEL_TIME is no knob" in found.found


def test_tunings_for_this_machine_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [finding.status for finding in checks.tuning()] == ["none"]
    for cpu, ranks in ((cpu_name(), (4,)), (cpu_name(), (2, 2)), ("another CPU", (8,))):
        place = JobPlace((cpu,), (8,), ranks, False, "openmpi", "auto", False)
        files.save(files.default_path(place), place, {}, {})
    (tmp_path / "hvdlite" / "tuning-broken.json").write_text("{")
    (found,) = checks.tuning()
    assert found.status == "ok"
    assert "jobs of 2+2, 4 ranks" in found.found


def test_limits_of_control_groups(tmp_path):
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("1073741824\n")
    assert checks.cgroup_limits("0::/a/b\n", str(tmp_path)) == (1.5, 1 << 30)
    old = tmp_path / "cpu" / "x"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("400000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert checks.cgroup_limits("4:cpu,cpuacct:/x\n", str(tmp_path)) == (4.0, None)
    assert checks.cgroup_limits("0::/none\n", str(tmp_path / "none")) == (None, None)


# --- completion ---------------------------------------------------------------------------------------------------------


def complete(words, script):
    program = f'. {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _hvdlite; echo "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_completion_in_bash(tmp_path):
    script = tmp_path / "hvdlite.bash"
    script.write_text(completion.generate("bash", cli.make_parser()))
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert complete('hvdlite ""', script)[:5] == ["run", "doctor", "tune", "top", "timeline"]
    assert complete("hvdlite run --fusion", script) == ["--fusion-threshold", "--fusion-threshold-mb"]
    assert complete("hvdlite run --launcher s", script) == ["srun"]
    assert complete("hvdlite tune --any", script) == ["--any-bits"]
    assert complete('hvdlite completion ""', script)[:3] == ["bash", "zsh", "fish"]
    assert sys.executable.rpartition("/")[2] in complete("hvdlite run -n 2 py", script)
    # behind the program, its own arguments: files here, where bash-completion is not loaded
    assert complete(f"hvdlite run -n 2 cat {tmp_path}/hvdlite.b", script) == [str(script)]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_names_every_flag(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for name in ("fusion-threshold", "num-proc", "smoke", "launcher"):
        assert name in text
    assert "host-discovery-script" not in text  # refused
    if shell != "bash" and shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


# --- what hvdlite.run sends -----------------------------------------------------------------------------------------------


def test_a_lambda_needs_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidArgumentError, match=r"a lambda or a function inside another.*pip install cloudpickle"):
        functions._packed(lambda: 1, (), {}, ())
    monkeypatch.setattr(json.dumps, "__module__", "__main__")
    with pytest.raises(InvalidArgumentError, match=r"run\(dumps\): a function of the program itself.*pip install cloudpickle"):
        functions._packed(json.dumps, (), {}, ())


def test_a_function_of_a_module_needs_no_cloudpickle(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    path, preload, call = pickle.loads(functions._packed(json.dumps, ([1],), {"indent": None}, ("json",)))
    fn, args, kwargs = pickle.loads(call)
    assert (fn, args, kwargs, preload, path) == (json.dumps, ([1],), {"indent": None}, ["json"], sys.path)


def test_what_cannot_be_pickled(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidArgumentError, match=r"run\(dumps\): the function or its arguments cannot be pickled"):
        functions._packed(json.dumps, (open(__file__),), {}, ())  # noqa: SIM115


def call(folder, rank, function, *arguments, before=None):
    (folder / function_rank.CALL).write_bytes(functions._packed(function, arguments, {}, ()))
    return subprocess.run(
        [sys.executable, "-m", "hvdlite.launcher.function_rank", str(folder)],
        env={**job_environment(), "PMI_RANK": str(rank)},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_a_rank_leaves_is_for_its_owner_only(tmp_path):
    assert call(tmp_path, 3, divmod, 7, 2).returncode == 0
    assert function_rank.load_outcome(str(tmp_path), 3) == (None, (3, 1))
    assert (tmp_path / "outcome.3.pkl").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):
        function_rank.load_outcome(str(tmp_path), 0)


def test_an_exception_is_left_with_its_traceback_and_goes_on(tmp_path):
    done = call(tmp_path, 1, divmod, 1, 0)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    text, error = function_rank.load_outcome(str(tmp_path), 1)
    assert isinstance(error, ZeroDivisionError)
    assert text.startswith("Traceback")
    outcome = JobOutcome(1, RankExit(1, "h", 7, 1, False), ("x",))
    raised = functions._error(str(tmp_path), outcome)
    assert type(raised) is ZeroDivisionError
    assert "rank 1 (host h, pid 7) raised:\nTraceback" in str(raised.__cause__)


def test_an_exception_that_would_end_the_caller_does_not(tmp_path):
    call(tmp_path, 0, sys.exit, 3)
    raised = functions._error(str(tmp_path), JobOutcome(3, RankExit(0, "h", 7, 3, False)))
    assert isinstance(raised, PeerLostError)
    assert "rank 0 (host h, pid 7) raised SystemExit: 3" in str(raised)


def test_a_result_that_cannot_be_pickled_is_an_error_of_that_rank(tmp_path):
    done = call(tmp_path, 0, threading.Lock)
    assert done.returncode == 1
    assert "the result of rank 0, of type lock, cannot be pickled" in done.stderr


def test_a_result_for_which_the_disk_has_no_room_is_an_error_of_that_rank(tmp_path):
    done = call(tmp_path, 0, bytes, 1 << 20, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert done.returncode == 1
    raised = functions._error(str(tmp_path), JobOutcome(1, RankExit(0, "h", 7, 1, False)))
    assert (type(raised), str(raised)) == (OSError, "[Errno 27] File too large")


def test_a_folder_that_cannot_be_used_is_not_left_behind(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"), folder.private_folder("call", str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_rank_without_the_folder_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hvdlite.launcher.function_rank", str(tmp_path / "absent")],
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pass folder=, which all hosts must share" in done.stderr


def test_a_rank_that_ends_without_a_result(tmp_path):
    with pytest.raises(PeerLostError, match="rank 0 ended with exit code 0 but without a result"):
        functions._results(str(tmp_path), 1, JobOutcome(0))
    with pytest.raises(SystemFailure, match="the launcher ended with 7"):
        functions._results(str(tmp_path), 1, JobOutcome(7))
    killed = functions._error(str(tmp_path), JobOutcome(137, RankExit(0, "h", 7, -9, False), ("last",)))
    assert isinstance(killed, PeerLostError)
    assert "rank 0 (host h, pid 7) was ended by signal 9 (SIGKILL). Its last output: last" in str(killed)


def test_the_report_of_a_rank_that_has_printed_nothing():
    said = []
    cli.report(JobOutcome(137, RankExit(0, "h", 7, -9, False)), SimpleNamespace(say=said.append))
    assert said[0].endswith("(host h, pid 7) failed first: it was ended by signal 9 (SIGKILL). It has printed nothing.")
    assert len(said) == 1


def test_other_hosts_need_a_shared_folder():
    with pytest.raises(InvalidArgumentError, match="with folder="):
        functions.run(print, hosts="elsewhere.example:2")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"hosts": "a", "hostfile": "b"}, InvalidArgumentError, "either hosts or hostfile"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "either use_gloo or use_mpi"),
        ({"min_np": 2, "slots": 3}, UnsupportedError, r"horovod\.run\(min_np, slots\) is not supported"),
    ],
)
def test_what_horovod_run_refuses(arguments, error, said):
    with pytest.raises(error, match=said):
        horovod_run(print, **arguments)


def test_horovod_run_on_gloo_warns_and_runs_on_mpi(monkeypatch):
    asked = {}
    monkeypatch.setattr(functions, "run", lambda *args, **kwargs: asked.update(kwargs, args=args) or ["of rank 0", "of rank 1"])
    with pytest.warns(UserWarning, match="hvdlite always runs over MPI; leave the argument out") as caught:
        assert horovod_run(print, (1,), np=2, use_gloo=True) == ["of rank 0", "of rank 1"]
    assert caught[0].filename == __file__
    assert asked["args"] == (print, (1,), None, 2)
