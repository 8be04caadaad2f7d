"""The unix sockets through which `hvdlite top` asks the ranks of this host for their numbers.

A socket has a name in Linux's abstract space, so it leaves no file behind. The kernel tells each side which user is at the
other end of a connection. Each side accepts only processes of its own user; a rank also accepts processes of root.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PREFIX = "hvdlite-view"
_WAITING = 16  # this many viewers may wait for an answer
_ACCEPTS = 0x10000  # a flag in /proc/net/unix: the socket listens
_HOST_LETTERS = 32  # a job's name has this many letters of the host's name: a socket's name has at most 107 bytes
_MOST_BYTES = 16 << 20  # the limit for an answer


class SilentRankError(Exception):
    """A rank has not answered in time: its process is stopped, or native code holds Python's GIL."""


@dataclass(frozen=True, order=True)
class ViewAddress:
    """The socket of one rank.

    Attributes:
        job: the name of the rank's job.
        rank: the rank's number in that job.
        pid: the rank's process id.
        name: the whole name of the socket.
    """

    job: str
    rank: int
    pid: int
    name: str


def job_name(host: str, pid: int) -> str:
    """The name of a job, from the host and the process id of its rank 0, such as ``20756@node7``."""
    return f"{pid}@{host[:_HOST_LETTERS]}"


def bound_socket(name: str) -> socket.socket:
    """A socket with this name in Linux's abstract socket space.

    Raises:
        OSError: another socket has the name (``errno.EADDRINUSE``), or the system refuses the socket.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"\0{name}")
    except OSError:
        bound.close()
        raise
    return bound


def listen(job: str, rank: int) -> socket.socket:
    """A socket that listens for viewers of this process. Its name ends with random digits, so nobody can take the name before.

    Raises:
        OSError: the system refuses the socket.
    """
    name = ":".join((_PREFIX, str(os.getuid()), job, str(rank), str(os.getpid()), secrets.token_hex(4)))
    listener = bound_socket(name)
    listener.listen(_WAITING)
    return listener


def addresses(table: str = "/proc/net/unix") -> list[ViewAddress]:
    """The sockets of this user's ranks on this host (in this network namespace), by job and rank."""
    found = []
    for line in Path(table).read_text(errors="replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or not int(fields[3], 16) & _ACCEPTS or not fields[7].startswith(f"@{_PREFIX}:{os.getuid()}:"):
            continue
        parts = fields[7][1:].split(":")
        if len(parts) == 6 and parts[3].isdigit() and parts[4].isdigit():
            found.append(ViewAddress(parts[2], int(parts[3]), int(parts[4]), fields[7][1:]))
    return sorted(found)


def is_trusted(connection: socket.socket, root: bool = False) -> bool:
    """Does the process at the other end belong to this user?

    Args:
        connection: the connection to that process.
        root: does a process of root count, too?
    """
    user = _peer(connection)[1]
    return user == os.geteuid() or (root and user == 0)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process id (0 if the process is not visible here) and the user id at the other end, from the kernel."""
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def _resident_bytes(pid: int) -> int | None:
    """The memory of a process that is in RAM; None if the process is not visible here."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def ask(address: ViewAddress, seconds: float) -> dict[str, Any] | None:
    """The present numbers of a rank, and the ``memory_bytes`` of its process; None if the rank has ended or is not trusted.

    Args:
        address: the address of the rank.
        seconds: the time limit for the answer.

    Raises:
        SilentRankError: the rank does not answer in time.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection, contextlib.suppress(ConnectionError, FileNotFoundError):
        connection.settimeout(seconds)
        try:
            connection.connect(f"\0{address.name}")
            if not is_trusted(connection):
                return None
            data = b""
            while piece := connection.recv(1 << 16):
                data += piece
                if len(data) > _MOST_BYTES:
                    return None
        except (TimeoutError, BlockingIOError):  # BlockingIOError: too many viewers wait
            raise SilentRankError(address.name) from None
        with contextlib.suppress(ValueError):  # the rank has ended in the middle of its answer
            return {**json.loads(data), "memory_bytes": _resident_bytes(_peer(connection)[0])}
    return None
