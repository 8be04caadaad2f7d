"""Asks the ranks of this host for their numbers, again and again, and prints each look as one line of JSON.

``hvdlite top -H`` starts it on each host: ``python -m hvdlite.launcher.view_agent INTERVAL LOOKS JOB``. INTERVAL is in seconds;
LOOKS 0 means until it is ended; JOB "-" means every job of this user.
"""

import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdlite import view_socket

__all__ = ["EVERY_JOB", "look", "looks", "main"]

EVERY_JOB = "-"
_AT_ONCE = 32  # ranks
_PATIENCE = 1.0  # seconds for one rank to answer


def look(job: str = "") -> list[dict[str, Any]]:
    """What the ranks of this host answer now, each with its rank; a rank that does not answer in time has ``silent``.

    Args:
        job: the name of the job, the process id of its rank 0, or "-" or "" for every job of this user.
    """
    wanted = [
        address for address in view_socket.addresses() if job in ("", EVERY_JOB, address.job, address.job.partition("@")[0])
    ]
    if not wanted:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:  # a rank that computes answers only when it gives up the GIL
        return [answer for answer in pool.map(_ask, wanted) if answer is not None]


def _ask(address: view_socket.ViewAddress) -> dict[str, Any] | None:
    place = {"job": address.job, "rank": address.rank, "pid": address.pid, "host": socket.gethostname()}
    try:
        answer = view_socket.ask(address, _PATIENCE)
    except view_socket.SilentRankError:
        return {**place, "silent": True}
    return None if answer is None else {**answer, **place}


def looks(job: str, interval: float, count: int = 0) -> Iterator[list[dict[str, Any]]]:
    """A look every `interval` seconds; `count` of them, or without an end if that is 0."""
    due, done = time.monotonic(), 0
    while True:
        yield look(job)
        done += 1
        if done == count:
            return
        due = max(due + interval, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0.0)


def main(words: Sequence[str]) -> int:
    """Prints the looks; returns the exit status."""
    interval, count, job = words
    try:
        for answers in looks(job, float(interval), int(count)):
            print(json.dumps({"host": socket.gethostname(), "answers": answers}), flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
