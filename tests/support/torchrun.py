"""Processes with the variables of torchrun: started by torchrun itself, or, without its import of torch, by the test."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.job import job_environment

if TYPE_CHECKING:
    from support.hosts import EmulatedHosts

TIMEOUT = 180.0


def files_of(folder: Path) -> dict[str, str]:
    """Variables by which PMIx and MPI make their files in a folder of the test."""
    return {"TMPDIR": str(folder), "OMPI_MCA_btl_sm_backing_directory": str(folder)}


def variables(rank: int, size: int, nodes: int = 1, run: str = "", **changes: str) -> dict[str, str]:
    """The variables that torchrun gives a process. All nodes have equally many processes."""
    each = size // nodes
    return {
        "TORCHELASTIC_RUN_ID": run or uuid.uuid4().hex,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % each),
        "LOCAL_WORLD_SIZE": str(each),
        "GROUP_RANK": str(rank // each),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        **changes,
    }


@contextmanager
def reserved_port() -> Iterator[str]:
    """A port for torch's store. Within the block the system gives it to no other program.

    The store's socket has SO_REUSEADDR, and so has the socket that holds the port here. Two such sockets may have one port, if
    at most one of them listens. This one does not.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield str(held.getsockname()[1])


class Processes:
    """The processes of one node, which run a program as torchrun's workers would. Use it in a with statement.

    Each process leads a process group, as under torchrun. The PMIx server has the standard error of the process that has
    started it, so `wait` returns when the server has ended, too.
    """

    def __init__(self, program: str, size: int, folder: Path, env: Mapping[str, str] | None = None) -> None:
        (folder / "program.py").write_text(textwrap.dedent(program))
        self.files = folder / "files"
        self.files.mkdir()
        run = uuid.uuid4().hex
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(folder / "program.py")],
                env={**job_environment(env), **files_of(self.files), **variables(rank, size, run=run)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(size)
        ]
        self._stack = ExitStack()
        for each in self.ranks:
            self._stack.callback(each.wait)
            self._stack.callback(each.kill)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, rank: int) -> None:
        """Kills the process group of a rank, as torchrun does when another rank has failed."""
        os.killpg(self.ranks[rank].pid, signal.SIGKILL)

    def wait(self) -> list[tuple[int, str, str]]:
        """The exit code and the output of each rank."""
        outputs = [each.communicate(timeout=TIMEOUT) for each in self.ranks]
        return [(each.returncode, *output) for each, output in zip(self.ranks, outputs, strict=True)]


def torchrun(
    *arguments: str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    host: "tuple[EmulatedHosts, int] | None" = None,
) -> "subprocess.Popen[str]":
    """A started torchrun. The output of its processes is among its own.

    Args:
        arguments: its arguments.
        folder: the folder for MPI's files, and on this machine for those of PMIx.
        env: changes to the environment.
        host: the emulated host on which it runs; None for this machine.
    """
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    environment = job_environment({**files_of(folder), **(env or {})})
    if host is not None:
        command = host[0].on_host(host[1], command, environment)
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def outputs_of(torchruns: Sequence["subprocess.Popen[str]"]) -> list[str]:
    """Waits for the end of torchruns and of all that they have started. Returns their outputs."""
    with ExitStack() as stack:
        for each in torchruns:
            stack.callback(each.wait)
            stack.callback(each.terminate)  # it ends its processes
        return [each.communicate(timeout=TIMEOUT)[0] for each in torchruns]
