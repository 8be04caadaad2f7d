"""The ranks' output on the launcher's side: prints each line with its rank, copies it to files, and keeps the last lines."""

import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from hvdlite.launcher.rank import MARK

__all__ = ["RankExit", "RankOutput", "first_failure", "last_words", "parse_marked"]

_TAIL_LINES = 400
_LAST_LINES = 30
_STREAMS = {"o": "stdout", "e": "stderr"}
_ENDINGS = {"n": "\n", "r": "\r", "u": ""}
_MARKED = re.compile(rf"{MARK}([hoex])([nru])(\d+){MARK}(.*)\Z", re.DOTALL)


class RankExit:
    """How a rank's program ended: its number, host and process id, code (negative: a signal), and whether it was told to
    end.
    """

    def __init__(self, rank: int, host: str, pid: int, code: int, stopped: bool) -> None:
        self.rank, self.host, self.pid, self.code, self.stopped = rank, host, pid, code, stopped

    @property
    def failed(self) -> bool:
        """Did it fail?"""
        return self.code != 0

    @property
    def how(self) -> str:
        """The end in words."""
        return (
            f"ended with exit code {self.code}"
            if self.code >= 0
            else f"was ended by signal {-self.code}{_signal_name(-self.code)}"
        )

    @property
    def status(self) -> int:
        """The exit status as a shell gives it."""
        return self.code if self.code >= 0 else 128 - self.code


def _signal_name(number: int) -> str:
    import signal

    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""


def parse_marked(line: str) -> tuple[str, str, int, str] | None:
    """Kind, ending, rank and text of a line that came through mpirun; None for a line of mpirun itself."""
    found = _MARKED.search(line)
    return (found[1], _ENDINGS[found[2]], int(found[3]), found[4]) if found else None


class RankOutput:
    """Prints the ranks' lines and keeps the last ones.

    Args:
        size: the number of ranks.
        tagged: with ``[rank]<stream>: `` in front?
        timestamps: with the time in front?
        folder: for a copy in ``rank.N/stdout`` and ``rank.N/stderr``, or None.
        stdout, stderr: where to print.
        clock: gives the time as text.
    """

    def __init__(
        self,
        size: int,
        tagged: bool = True,
        timestamps: bool = False,
        folder: str | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Callable[[], str] = lambda: time.strftime("%Y-%m-%d %H:%M:%S"),
    ) -> None:
        self._tagged, self._timestamps, self._clock = tagged, timestamps, clock
        self._out = {"o": stdout or sys.stdout, "e": stderr or sys.stderr}
        self._files: dict[tuple[int, str], TextIO] = {}
        self._tails: dict[tuple[int, str], deque[str]] = {}
        self._broken: set[str] = set()
        if folder is not None:
            digits = len(str(size - 1))
            for rank in range(size):
                place = Path(folder, f"rank.{rank:0{digits}}")
                place.mkdir(parents=True, exist_ok=True)
                for kind, stream in _STREAMS.items():
                    self._files[rank, kind] = (place / stream).open("w", buffering=1, newline="")

    def line(self, kind: str, rank: int, text: str, ending: str) -> None:
        """Prints one line.

        Args:
            kind: ``o`` for stdout, ``e`` for stderr.
            rank: that printed it.
            text: without its end.
            ending: a newline, a carriage return, or nothing.
        """
        file = self._files.get((rank, kind))
        if file is not None:
            file.write(text + ending)
        if ending != "\r":
            self._tails.setdefault((rank, kind), deque(maxlen=_TAIL_LINES)).append(text)
        tag = f"{self._clock()} " if self._timestamps else ""
        tag += f"[{rank}]<{_STREAMS[kind]}>: " if self._tagged else ""
        self._print(kind, tag + text + (ending or "\n"))

    def launcher(self, kind: str, text: str) -> None:
        """Prints a line of mpirun itself."""
        self._print(kind, text)

    def say(self, text: str) -> None:
        """Prints a line of hvdlite to stderr."""
        self._print("e", f"{text}\n")

    def _print(self, kind: str, text: str) -> None:
        if kind in self._broken:
            return
        try:
            self._out[kind].write(text)
            self._out[kind].flush()
        except BrokenPipeError:  # for example of `hvdlite run ... | head`: the job continues without a reader
            self._broken.add(kind)

    def tail(self, rank: int, kind: str) -> list[str]:
        """The last lines of a rank."""
        return list(self._tails.get((rank, kind), ()))

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_TRACEBACK = "Traceback (most recent call last):"


def last_words(stderr: Sequence[str], stdout: Sequence[str]) -> list[str]:
    """A rank's last traceback with its causes and all later lines, or else its last lines."""
    start = next((place for place in reversed(range(len(stderr))) if stderr[place].startswith(_TRACEBACK)), None)
    if start is None:
        lines = [line for line in stderr if line.strip()] or [line for line in stdout if line.strip()]
        return lines[-_LAST_LINES:]
    while start and any(line.startswith(_CHAINED) for line in stderr[max(0, start - 3) : start]):
        earlier = [place for place in range(start - 1) if stderr[place].startswith(_TRACEBACK)]
        if not earlier:
            break
        start = earlier[-1]
    return list(stderr[start:])


_EXCEPTION = re.compile(r"[\w.]*(?:Error|Failure|Exception)\b")  # starts the traceback's line with the exception
_BLAMED = re.compile(r"\brank (\d+) \(host ([^,()]*), pid (\d+)\) (raised|ended without a word|has left|failed)")


def first_failure(
    endings: Iterable[RankExit], started: Mapping[int, tuple[str, int]], tail: Callable[[int], Sequence[str]]
) -> RankExit | None:
    """The rank whose failure made the others fail.

    A rank that reports another rank's failure may end before that rank. So such reports are followed to their origin. The
    origin may be a rank that was ended while it still told the others why it fails; it counts as exit code 1, like any Python
    program that raises. Otherwise ranks that were told to end come last.

    Args:
        endings: of all ranks, in the order in which they came; those that were killed may be missing.
        started: by rank its host and process id.
        tail: gives the last lines of a rank's stderr.
    """
    failed = [ending for ending in endings if ending.failed]
    failed.sort(key=lambda ending: ending.stopped)  # stable
    if not failed:
        return None
    found, seen = failed[0], set()
    while found.rank not in seen:
        seen.add(found.rank)
        found = _blamed(found.rank, failed, started, tail(found.rank)) or found
    return found


def _blamed(
    accuser: int, failed: Sequence[RankExit], started: Mapping[int, tuple[str, int]], tail: Sequence[str]
) -> RankExit | None:
    """The rank that this one names as the cause in its traceback."""
    for line in last_words(tail, ()):
        if not _EXCEPTION.match(line):  # the log of a rank that failed by itself also reports on other ranks
            continue
        for number, host, pid, deed in _BLAMED.findall(line):
            # The numbers are hvdlite's, which may come from a communicator of the program. A process id is exact.
            rank = next((rank for rank, place in started.items() if place == (host, int(pid))), int(number))
            if rank == accuser or rank not in started:
                continue
            own = next((ending for ending in failed if ending.rank == rank and not ending.stopped), None)
            if own is not None or deed == "raised":
                return own or RankExit(rank, *started[rank], code=1, stopped=False)
    return None
