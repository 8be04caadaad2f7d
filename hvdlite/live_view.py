"""Answers viewers of this rank (``hvdlite top``) with the rank's numbers, while there is an engine.

A thread sleeps in `accept`: without a viewer, a rank has only one more socket and one more sleeping thread. Each connection
gets one answer and is closed. A viewer that does not read its answer delays the next viewer by at most a second.
"""

import contextlib
import json
import logging
import os
import re
import socket
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from hvdlite import view_socket
from hvdlite._version import __version__
from hvdlite.errors import NotInitializedError
from hvdlite.runtime import RUNTIME
from hvdlite.watchdog import main_frame, own_calls_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine

# The time limit in seconds for a viewer to read its answer, and the seconds from a failed `accept` to the next `accept`.
_PATIENCE = 1.0
# Lines of the flight record: for an operation that has ended, and for any operation.
_ENDED = re.compile(r", (?:done|failed) \([\d.]+ s ago\)$")
_OPEN = re.compile(r"  #\d+ (.*): submitted ([\d.]+) s ago, (.*) \([\d.]+ s ago\)")
# The fields of `Stats` that `hvdlite top` needs.
_STATS = (
    *("rank", "size", "job", "seconds", "steps", "operations", "bus_bytes", "moving_seconds"),
    *("exposed_seconds", "exposed_moving_seconds", "waited_for_seconds"),
)


def start() -> None:
    """Lets viewers look at this rank until `hvdlite.shutdown`. If the system refuses the socket, logs one line instead."""
    try:
        server = ViewServer()
    except OSError as error:
        logging.getLogger("hvdlite").warning("`hvdlite top` cannot look at this rank: %s", error.strerror)
    else:
        RUNTIME.at_stop.append(server.close)
        if not _servers:
            os.register_at_fork(after_in_child=_give_up_copy)
        _servers[:] = [server]


_servers: list["ViewServer"] = []  # the latest of this process


def _give_up_copy() -> None:
    """Runs in a forked child, which is not the rank: closes the child's descriptor. The rank's socket stays open."""
    _servers[0].listener.close()


class ViewServer:
    """The socket of this rank and the thread behind it, until `close`.

    Raises:
        OSError: the system refuses the socket.
    """

    def __init__(self) -> None:
        self._job = view_socket.job_name(*RUNTIME.places[0])
        self._hosts = dict(Counter(host for host, _ in RUNTIME.places))
        self.listener = view_socket.listen(self._job, RUNTIME.require_topology().rank)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="hvdlite-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # which ends accept()
        self._thread.join(2 * _PATIENCE)
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:  # or, for a while, the process has too many open files
                if self._closing.wait(_PATIENCE):
                    return
                continue
            # OSError: the viewer is gone. NotInitializedError: shutdown has begun.
            with connection, contextlib.suppress(OSError, NotInitializedError):
                if view_socket.is_trusted(connection, root=True):
                    connection.settimeout(_PATIENCE)
                    connection.sendall(json.dumps(self._numbers()).encode())

    def _numbers(self) -> dict[str, Any]:
        from hvdlite.usage import stats  # not above: a job without viewers does not need it

        engine, now = RUNTIME.require(), stats()
        return {
            "hvdlite": __version__,
            "job": self._job,
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
            "hosts": self._hosts,
            "where": " > ".join(own_calls_of(main_frame())),
            "oldest": oldest_operation(engine.flight_record()) if _has_open_operations(engine) else None,
            "stats": {name: getattr(now, name) for name in _STATS},
        }


def oldest_operation(record: str) -> dict[str, Any] | None:
    """The oldest operation in a flight record that has not ended, with its age in seconds and its stage; None if all have."""
    ages = []
    for line in record.splitlines():
        found = None if ": submitted " not in line or _ENDED.search(line) else _OPEN.fullmatch(line)
        if found:
            ages.append((float(found[2]), found[1], found[3]))
    if not ages:
        return None
    seconds, operation, stage = max(ages)
    return {"operation": operation, "seconds": seconds, "stage": stage}


def _has_open_operations(engine: "Engine") -> bool:
    counters = engine.counters()
    return counters["submitted"] != counters["completed"] + counters["failed"]
