"""Emulated hosts on this machine: jobs whose ranks find different host names, networks, processes and shared memory.

    with emulated_hosts(2, rate_mbit=1000, delay_us=1000) as hosts:
        job = hosts.run([2, 1], "import hvdlite; ...")

The hosts are namespaces, and a switch in user space joins them (tests/native/hosts, compiled when it is needed first). They end
with the block, with this process, or after `ttl` seconds, whichever comes first, and all processes on them end as well. mpirun
runs on a further host, the front. It starts its daemons through a script that enters a host, in place of ssh.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.job import JobResult, find_mpirun, launcher_is_hydra, run_job

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "native" / "hosts"
NOT_ALLOWED = 77  # the program's exit code if the machine or container does not permit namespaces
NETWORK = "10.77.0.0/24"
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
MPIRUN_OPTIONS = (
    *("--prtemca", "prte_if_include", NETWORK, "--mca", "btl_tcp_if_include", NETWORK),
    *("--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "osc", "^ucx"),
    # There are usually more ranks than cores, so a rank that waits inside MPI (init, mpi4py) must let others run.
    *("--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"),
)
# Further options for elastic training. After a death, these collectives of Open MPI 5.0 return wrong data across hosts.
# `hvdlite run --elastic` excludes them, too.
ULFM_OPTIONS = ("--with-ft", "ulfm", "--mca", "coll", "^han,adapt,hcoll,portals4")

# Turns the interface eth0 off.
_DOWN = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"eth0", 0))
"""


class EmulatedHosts:
    """Running hosts, which emulated_hosts() has made."""

    def __init__(self, program: "subprocess.Popen[str]") -> None:
        self._program = program
        pids = self._answer().split()
        self._front, self._pids = pids[0], pids[1:]

    def shape(self, rate_mbit: float = 0.0, delay_us: float = 0.0, jitter_us: float = 0.0, loss: float = 0.0) -> None:
        """Gives all links a rate (0: unlimited), and the path between each two hosts a delay, a largest jitter, and a
        probability that a frame is lost. A frame is the data that the kernel passes on at once, up to 64 KiB.
        """
        assert self._program.stdin is not None
        print(rate_mbit, delay_us, jitter_us, loss, file=self._program.stdin, flush=True)
        self._answer()

    def kill(self, host: int) -> None:
        """Ends a host with all processes on it."""
        self._on_front(["kill", "-KILL", self._pids[host]])

    def cut(self, host: int) -> None:
        """Cuts the link of a host. No process is notified."""
        enter = ["nsenter", "--target", self._pids[host], "--net"]
        self._on_front([*enter, sys.executable, "-c", _DOWN])

    def run(
        self,
        ranks: int | Sequence[int],
        program: str | Path,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        timeout: float = 180.0,
        interleaved: bool = False,
        mpirun_args: Sequence[str] = (),
    ) -> JobResult:
        """Runs a script on these hosts (see run_job).

        Args:
            ranks: the number of ranks on every host, or a number for each host.
            program: the path of a file, or the program's text.
            env: changes to the environment, on all hosts.
            args: arguments of the program.
            timeout: the seconds after which all processes of the job are killed.
            interleaved: are the ranks dealt to the hosts in turn? Otherwise each host has consecutive ranks.
            mpirun_args: further arguments of mpirun.
        """
        each, options = self.placement(ranks, interleaved)
        return run_job(program, sum(each), timeout, args, env, [*options, *mpirun_args], self)

    def placement(self, ranks: int | Sequence[int], interleaved: bool = False) -> tuple[list[int], list[str]]:
        """The number of ranks on each host, and the options that make mpirun place them so."""
        each = [ranks] * len(self._pids) if isinstance(ranks, int) else list(ranks)
        assert len(each) <= len(self._pids), f"{len(each)} hosts wanted, {len(self._pids)} are up"
        slots = ",".join(f"h{host}:{count}" for host, count in enumerate(each))
        return each, ["--host", slots, "--map-by", "node" if interleaved else "slot", *MPIRUN_OPTIONS]

    def _on_front(self, command: Sequence[str]) -> None:
        enter = ["nsenter", "--target", self._front, "--mount", "--pid"]
        subprocess.run([*enter, *command], check=True, stdin=subprocess.DEVNULL)

    def on_front(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> list[str]:
        """Changes a command of mpirun so that it runs on the front, and its daemons get this environment on the hosts."""
        agent = folder / "agent"
        pids = "\n".join(f"  h{host}) pid={pid} ;;" for host, pid in enumerate(self._pids))
        # As with ssh, the daemons do not inherit mpirun's environment. TMPDIR is set because MPI's paths contain process ids,
        # which are unique only within a host.
        variables = shlex.join(f"{name}={value}" for name, value in {**environment, "TMPDIR": "/dev/shm/tmp"}.items())
        agent.write_text(
            f'#!/bin/sh\ncase "$1" in\n{pids}\n  *) exit 255 ;;\nesac\nshift\n'
            f'exec nsenter --target "$pid" {" ".join(NAMESPACES)} env -i {variables} sh -c "$*"\n'
        )
        agent.chmod(0o755)
        enter = ["nsenter", "--target", self._front, *NAMESPACES, "env", f"--chdir={Path.cwd()}", "TMPDIR=/dev/shm/tmp"]
        return [*enter, command[0], "--prtemca", "plm_ssh_agent", str(agent), *command[1:]]

    def on_host(self, host: int, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Changes a command so that it runs on a host, with this environment only."""
        variables = [f"{name}={value}" for name, value in {**environment, "TMPDIR": "/dev/shm/tmp"}.items()]
        enter = [["nsenter", "--target", pid, *NAMESPACES] for pid in (self._front, self._pids[host])]
        return [*enter[0], *enter[1], "env", "-i", f"--chdir={Path.cwd()}", *variables, *command]

    def _answer(self) -> str:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        if line:
            return line
        code = self._program.wait()
        assert self._program.stderr is not None
        text = self._program.stderr.read().strip()
        if code == NOT_ALLOWED:
            pytest.skip(f"no emulated hosts here: {text}")
        raise RuntimeError(f"the emulated hosts ended with {code}: {text}")


@contextmanager
def emulated_hosts(
    n: int, rate_mbit: float = 0.0, delay_us: float = 0.0, jitter_us: float = 0.0, ttl: float = 1200.0
) -> Iterator[EmulatedHosts]:
    """Makes n hosts and the front, with such links (see `EmulatedHosts.shape`). Skips the test if this is not possible here."""
    why_not = _obstacle()
    if why_not:
        pytest.skip(f"no emulated hosts here: {why_not}")
    program = subprocess.Popen(
        [_compiled(), str(n), str(ttl)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to the test, which then ends the program
    )
    try:
        hosts = EmulatedHosts(program)
        hosts.shape(rate_mbit, delay_us, jitter_us)
        yield hosts
    finally:
        program.communicate()  # closes its stdin, so that it ends


def _obstacle() -> str:
    """The reason why this machine cannot have emulated hosts, as far as it is known without a try; empty if none is known."""
    if os.geteuid() != 0:
        return "only root can make network namespaces (in a container: with CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    for tool in ("nsenter", "c++"):
        if shutil.which(tool) is None:
            return f"there is no {tool} on PATH (Debian: apt install util-linux g++)"
    if not Path("/dev/net/tun").exists():
        return "the switch needs /dev/net/tun (modprobe tun; for a container --device /dev/net/tun)"
    try:
        find_mpirun()
    except FileNotFoundError as error:
        return str(error)
    return "MPICH's launcher does not start ranks through a script of ours" if launcher_is_hydra() else ""


def _compiled() -> str:
    """The path of the program, which is compiled again if its sources have changed."""
    sources = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = ROOT / "build" / "tests" / f"hosts-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        own = program.with_suffix(f".{os.getpid()}.{threading.get_ident()}")  # other processes may compile it at the same time
        units = [str(path) for path in sources if path.suffix == ".cc"]
        subprocess.run(["c++", "-std=c++20", "-O2", *units, "-o", str(own)], check=True)
        own.rename(program)
    return str(program)
