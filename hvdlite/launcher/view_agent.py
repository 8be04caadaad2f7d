"""Asks the ranks of this host for their counters at regular intervals, and prints each look as one line of JSON.

``hvdlite top -H`` starts this program on each host: ``python -m hvdlite.launcher.view_agent INTERVAL JOB``. INTERVAL is in
seconds. JOB "-" means every job of this user. The program runs until it is ended.
"""

import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdlite import view_socket

EVERY_JOB = "-"
_AT_ONCE = 32  # the number of ranks that are asked at the same time
_PATIENCE = 1.0  # the seconds in which a rank has to answer


def look(job: str = "") -> list[dict[str, Any]]:
    """Asks the ranks of this host once, and returns their answers. For a rank that does not answer in time, the list has an
    answer with the key ``silent``; for a rank that has ended, none.

    Args:
        job: the name of the job, the process id of its rank 0, or "-" or "" for every job of this user.
    """
    wanted = [
        address for address in view_socket.addresses() if job in ("", EVERY_JOB, address.job, address.job.partition("@")[0])
    ]
    if not wanted:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:  # a rank answers only when its program gives up the GIL
        return [answer for answer in pool.map(_ask, wanted) if answer is not None]


def _ask(address: view_socket.ViewAddress) -> dict[str, Any] | None:
    place = {"job": address.job, "rank": address.rank, "pid": address.pid, "host": socket.gethostname()}
    try:
        answer = view_socket.ask(address, _PATIENCE)
    except view_socket.SilentRankError:
        return {**place, "silent": True}
    return None if answer is None else {**answer, **place}


def looks(job: str, interval: float) -> Iterator[list[dict[str, Any]]]:
    """Yields the answers of one look every `interval` seconds, without an end."""
    due = time.monotonic()
    while True:
        yield look(job)
        due = max(due + interval, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0.0)


def main(words: Sequence[str]) -> int:
    """Prints the looks until the program is ended; returns the exit status 0."""
    interval, job = words
    try:
        for answers in looks(job, float(interval)):
            print(json.dumps({"host": socket.gethostname(), "answers": answers}), flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
