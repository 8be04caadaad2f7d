"""Starts programs under mpirun, with a deadline and two output files for each rank."""

import ast
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support import warm
from support.child import WARM

if TYPE_CHECKING:
    from support.hosts import EmulatedHosts

CHILD = Path(__file__).with_name("child.py")
MARK = "HVDTEST_JOB"  # a variable in the environment of every process of a job, by which `end` finds them

# Permits root in a container, and more ranks than cores.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    # This component sleeps for a second in MPI_Init if it finds no network for itself.
    "OMPI_MCA_btl": "^ofi",
    # MPI's waits let the tests that run beside this job use the processor.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class JobResult:
    """The end of a job.

    Attributes:
        returncode: mpirun's exit code; -9 if it was killed at the deadline, None while it runs.
        seconds: the time from the start to the end.
        stdout, stderr: the output of each rank. A rank that never started has none.
        launcher: the output of mpirun itself.
        timed_out: was the deadline reached?
    """

    returncode: int | None
    seconds: float
    stdout: dict[int, str]
    stderr: dict[int, str]
    launcher: str
    timed_out: bool

    def report(self) -> str:
        """The whole output, for the message of an assertion."""
        parts = [f"returncode {self.returncode} after {self.seconds:.1f} s{', timed out' if self.timed_out else ''}"]
        for rank in sorted(self.stdout):
            parts += [f"--- rank {rank} stdout", self.stdout[rank], f"--- rank {rank} stderr", self.stderr[rank]]
        return "\n".join([*parts, "--- mpirun", self.launcher])


def find_mpirun() -> str:
    """The path of the mpirun beside this Python, or of the one on PATH.

    Raises:
        FileNotFoundError: there is neither.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError("no mpirun beside this Python and none on PATH")
    return found


@functools.cache
def launcher_is_hydra() -> bool:
    """Is mpirun MPICH's? MPICH's ends a job at once when a rank dies; Open MPI's leaves the others a quarter of a second."""
    version = subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True, check=False)
    return "hydra" in version.stdout.lower()


def survivors_stay() -> tuple[str, ...]:
    """The options by which mpirun lets the other ranks go on when a rank has ended with an error.

    Otherwise Open MPI's ends them a quarter of a second later, perhaps before they have said what a test wants to read.
    """
    return () if launcher_is_hydra() else ("--runtime-options", "recoverable")


@functools.cache
def launcher_has_ulfm() -> bool:
    """Does this machine's mpirun have the option --with-ft? Open MPI's has it from version 5 on."""
    version = subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Open MPI\) (\d+)", version)
    return found is not None and int(found[1]) >= 5


def job_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a job: this process's, without the variables of an mpirun that has started it, and with
    MPI_ENVIRONMENT and `changes`.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMIX_", "PMI_", "PRTE_LAUNCHED"))
    }
    package = importlib.util.find_spec("hvdlite")
    places = [str(Path(package.origin).parent.parent)] if package is not None and package.origin else []
    places += inherited["PYTHONPATH"].split(os.pathsep) if inherited.get("PYTHONPATH") else []
    path = os.pathsep.join(dict.fromkeys(places))
    ours = {"PYTHONPATH": path, "HVDLITE_FLIGHT_RECORDER_FOLDER": "off"}  # ranks that fail leave no files
    return {**inherited, **MPI_ENVIRONMENT, **ours, **(changes or {})}


class Job:
    """A job of n ranks, each of which runs ``python *arguments``. It starts at once, and the caller must call `end`.

    Args:
        arguments: the arguments of Python.
        n: the number of ranks.
        folder: a folder for the files with the ranks' output.
        env: changes to the environment.
        mpirun_args: further arguments of mpirun.
        hosts: the emulated hosts of the job; None for this machine.
        frameworks: the frameworks of the warm interpreters that fork the ranks (support/warm.py); None for fresh processes.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        n: int,
        folder: Path,
        env: Mapping[str, str] | None = None,
        mpirun_args: Sequence[str] = (),
        hosts: "EmulatedHosts | None" = None,
        frameworks: Collection[str] | None = None,
    ) -> None:
        self._folder = folder
        self._mark = uuid.uuid4().hex
        child = [sys.executable, "-I", "-S", str(CHILD), str(folder)]
        self._command = [find_mpirun(), "-n", str(n), *mpirun_args, *child, *arguments]
        self._environment = {**job_environment(env), MARK: self._mark}
        # MPICH's ranks send messages to their launcher through an inherited file, which a warm interpreter does not have.
        if frameworks is not None and hosts is None and not launcher_is_hydra():
            sockets = warm.zygotes(frameworks, self._environment)
            self._environment |= {WARM: ":".join(sockets)} if sockets else {}
        # Open MPI names its files by process ids and a hash of 16 bits. So a job must not share folders with other jobs, or
        # with files that a killed job has left behind. (Emulated hosts have folders and host names of their own.)
        self._memory = tempfile.mkdtemp(prefix="hvdtest-", dir="/dev/shm") if hosts is None else ""
        if hosts is None:
            self._environment.setdefault("OMPI_MCA_btl_sm_backing_directory", self._memory)
            self._environment["PRTE_MCA_prte_local_tmpdir_base"] = str(folder)
        else:
            self._command = hosts.on_front(self._command, self._environment, folder)
        self._started, self._ended = time.monotonic(), 0.0
        with (self._folder / "mpirun.txt").open("w") as launcher:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=launcher,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, timeout: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the job has ended or `until` returns true. Returns false if neither happens within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not until():
            if self._process.poll() is not None:
                break
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def running(self) -> list[int]:
        """The ids of the job's processes that run, with mpirun's."""
        return _marked(self._mark) + _warm(self._folder)

    def end(self, timed_out: bool = False) -> JobResult:
        """Kills the processes of the job that still run, and returns its result. Ranks have process groups of their own."""
        self._ended = time.monotonic()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pid in self.running():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self._memory:
            shutil.rmtree(self._memory, ignore_errors=True)
        return self.result(timed_out)

    def result(self, timed_out: bool = False) -> JobResult:
        """The result so far; its return code is None while the job runs."""
        return JobResult(
            self._process.poll(),
            (self._ended or time.monotonic()) - self._started,
            _by_rank(self._folder, "stdout"),
            _by_rank(self._folder, "stderr"),
            _read(self._folder / "mpirun.txt"),
            timed_out,
        )


def run_python(
    arguments: Sequence[str],
    n: int,
    timeout: float,
    folder: Path,
    env: Mapping[str, str] | None = None,
    mpirun_args: Sequence[str] = (),
    hosts: "EmulatedHosts | None" = None,
    frameworks: Collection[str] | None = None,
) -> JobResult:
    """Runs a `Job` and waits for its end, at most `timeout` seconds. Then it kills the job."""
    job = Job(arguments, n, folder, env, mpirun_args, hosts, frameworks)
    ended = False
    try:
        ended = job.wait(timeout)
    finally:
        result = job.end(timed_out=not ended)
    return result


def run_job(
    script: str | Path,
    n: int,
    timeout: float = 180.0,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    mpirun_args: Sequence[str] = (),
    hosts: "EmulatedHosts | None" = None,
    fresh: bool = False,
) -> JobResult:
    """Runs a script as n ranks of one job and waits for its end, at most `timeout` seconds.

    The ranks are forked from warm interpreters that have imported the script's frameworks, but not on emulated hosts, and not
    in programs other than pytest.

    Args:
        script: the path of a file, or (as a str) the program's text, which may be indented.
        n: the number of ranks.
        timeout: the seconds after which all processes of the job are killed.
        args: arguments of the script.
        env: changes to the environment.
        mpirun_args: arguments of mpirun, after ``-n``.
        hosts: the emulated hosts of the job; None for this machine.
        fresh: are the ranks fresh processes, because the test is about how processes start or end?
    """
    text = textwrap.dedent(script) if isinstance(script, str) else script.read_text()
    imports = warm.imports_of(ast.parse(text))
    frameworks = warm.frameworks_of(imports, env or {}) if warm.NURSERY in os.environ and not fresh else None
    with tempfile.TemporaryDirectory(prefix="hvdlite-job-") as name:
        folder = Path(name)
        if isinstance(script, str):
            program = folder / "script.py"
            program.write_text(text)
        else:
            program = script
        return run_python([str(program), *args], n, timeout, folder, env, mpirun_args, hosts, frameworks)


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended, or belongs to another user
            continue
        if wanted in variables:
            found.append(int(entry.name))
    return found


def _warm(folder: Path) -> list[int]:
    """The ids of ranks that a zygote has forked. In /proc they have the zygote's variables, and so no mark."""
    found = []
    for file in folder.glob("rank*.pid"):
        try:
            command = Path("/proc", file.read_text(), "cmdline").read_bytes()
        except OSError:  # the process has ended
            continue
        if str(warm.ZYGOTE).encode() in command:
            found.append(int(file.read_text()))
    return found


def _by_rank(folder: Path, stream: str) -> dict[int, str]:
    return {int(path.stem.removeprefix("rank")): _read(path) for path in sorted(folder.glob(f"rank*.{stream}"))}


def _read(path: Path) -> str:
    return path.read_text(errors="replace")
