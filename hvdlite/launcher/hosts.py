"""The hosts of a job: reads ``-H a:2,b:2`` and host files of Open MPI and MPICH, and knows the names of this host."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdlite.errors import InvalidArgumentError

_NAME = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+")
_OPEN_MPI_WORDS = ("slots", "max_slots", "max-slots")


@dataclass(frozen=True)
class Host:
    """A host, and the number of its slots."""

    name: str
    slots: int = 1


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of ``-H``.

    >>> parse_hosts("a:2,b")
    (Host(name='a', slots=2), Host(name='b', slots=1))

    Raises:
        InvalidArgumentError: the text does not have this form.
    """
    return _merged([_host(part.strip(), f"-H {text}") for part in text.split(",") if part.strip()], f"-H {text}")


def parse_hostfile(text: str, where: str = "the host file") -> tuple[Host, ...]:
    """The hosts of a host file: lines ``a slots=2`` (Open MPI), ``a:2`` (MPICH) or ``a``, with comments after ``#``.

    Args:
        text: the text of the file.
        where: the name of the file, for error texts.

    Raises:
        InvalidArgumentError: a line has another form, or the file names no host. The error names the line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.split("#")[0]).split()
        if not words:
            continue
        place = f"{where}, line {number}"
        host = _host(words[0], place)
        slots = host.slots
        for word in words[1:]:
            name, _, value = word.partition("=")
            if name not in _OPEN_MPI_WORDS or not value.isdigit():
                raise InvalidArgumentError(f"{place}: {line.strip()!r} has none of the forms `host`, `host:2`, `host slots=2`")
            if name == "slots":
                slots = int(value)
        found.append(Host(host.name, slots))
    return _merged(found, where)


def read_hostfile(path: str) -> tuple[Host, ...]:
    """The hosts of the file at `path`.

    Raises:
        InvalidArgumentError: the file cannot be read, or a line has another form.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the host file {path} cannot be read: {error}") from None
    return parse_hostfile(text, f"the host file {path}")


def _host(text: str, where: str) -> Host:
    named = _NAME.match(text)
    name = named[0] if named else ""
    slots = text[len(name) :]
    if "@" in text:
        raise InvalidArgumentError(f"{where}: {text!r} names a user; write the user into ~/.ssh/config, as User of that Host")
    if not name or (slots and not re.fullmatch(r":[1-9]\d*", slots)):
        raise InvalidArgumentError(f"{where}: {text!r} is not a host; write the name, or name:ranks with at least 1 rank")
    return Host(name, int(slots[1:]) if slots else 1)


def _merged(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    """Joins the entries of each host and adds up their slots, because some systems write a line for each slot."""
    if not hosts:
        raise InvalidArgumentError(f"{where} names no host")
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())


def total_slots(hosts: Sequence[Host]) -> int:
    """The number of slots of these hosts."""
    return sum(host.slots for host in hosts)


def format_hosts(hosts: Sequence[Host]) -> str:
    """The hosts in the form of ``-H``."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def is_local(name: str) -> bool:
    """Is this a name of this host? The function compares names only; it asks no name server."""
    own = socket.gethostname()
    return name in {"localhost", "127.0.0.1", "[::1]", own, own.partition(".")[0]}
