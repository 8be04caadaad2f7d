"""The output of ranks in the launcher: prints each line with its rank, copies it to files, and keeps the last lines."""

import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher.rank import MARK

_TAIL_LINES = 400  # kept of each stream of a rank
_LAST_LINES = 30  # shown of a rank that failed without a traceback
_STREAMS = {"o": "stdout", "e": "stderr"}
_ENDINGS = {"n": "\n", "r": "\r", "u": ""}
_MARKED = re.compile(rf"{MARK}([hoex])([nru])(\d+){MARK}(.*)\Z", re.DOTALL)


class LauncherStream:
    """Cuts mpirun's output into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Takes bytes and returns the lines that are complete, each with its newline."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") + "\n" for line in lines]

    def finish(self) -> list[str]:
        """Call it at the end of the stream. Returns the text after the last newline, with a newline; [] if there is none."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace") + "\n"] if rest else []


class RankExit:
    """The end of a rank's program.

    Attributes:
        rank: the rank's number.
        host: the name of its host.
        pid: the process id of its program.
        code: the exit code; -n if signal n has ended the program.
        stopped: was the program told to end?
    """

    def __init__(self, rank: int, host: str, pid: int, code: int, stopped: bool) -> None:
        self.rank, self.host, self.pid, self.code, self.stopped = rank, host, pid, code, stopped

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
    """The kind, ending, rank and text of a rank's line that came through mpirun; None for a line of mpirun itself."""
    found = _MARKED.search(line)
    return (found[1], _ENDINGS[found[2]], int(found[3]), found[4]) if found else None


class RankOutput:
    """Prints the ranks' lines and keeps the last ones. If a file cannot be written any more, one line on stderr says so.

    Args:
        size: the number of ranks.
        tagged: print ``[rank]<stream>: `` in front of each line?
        timestamps: print the time in front of each line?
        folder: the folder for copies of the output in ``rank.N/stdout`` and ``rank.N/stderr``; None for no copies.
        stdout, stderr: the files to print to; None for those of this process.
        clock: a function that returns the time as text.

    Raises:
        InvalidArgumentError: the folder or a file in it cannot be made.
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
            try:
                self._open_files(size, folder)
            except OSError as error:
                text = f"the ranks' output cannot be copied to {folder}: {error.filename} cannot be made: {error.strerror}"
                raise InvalidArgumentError(text) from None

    def _open_files(self, size: int, folder: str) -> None:
        digits = len(str(size - 1))
        for rank in range(size):
            place = Path(folder, f"rank.{rank:0{digits}}")
            place.mkdir(parents=True, exist_ok=True)
            for kind, stream in _STREAMS.items():
                self._files[rank, kind] = (place / stream).open("w", buffering=1, newline="", encoding="utf-8")

    def line(self, kind: str, rank: int, text: str, ending: str) -> None:
        """Prints one line.

        Args:
            kind: ``o`` for stdout, ``e`` for stderr.
            rank: the rank that printed the line.
            text: the line without its ending.
            ending: a newline, a carriage return, or nothing.
        """
        file = self._files.get((rank, kind))
        if file is not None:
            try:
                file.write(text + ending)
            except OSError as error:
                del self._files[rank, kind]
                with contextlib.suppress(OSError):  # for the text that is still in its buffer
                    file.close()
                self.say(f"hvdlite run: {file.name} cannot be written, and the job continues without it: {error.strerror}")
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
        out = self._out[kind]
        encoding = getattr(out, "encoding", None) or "utf-8"
        try:
            out.write(text.encode(encoding, "replace").decode(encoding))
            out.flush()
        except BrokenPipeError:  # the reader has ended, for example in `hvdlite run ... | head`, and the job continues
            self._broken.add(kind)
        except OSError as error:
            self._broken.add(kind)
            self.say(f"hvdlite run: {_STREAMS[kind]} cannot be written, and the job continues without it: {error.strerror}")

    def tail(self, rank: int, kind: str) -> list[str]:
        """The last lines that a rank has printed to stdout (kind ``o``) or stderr (``e``), at most 400."""
        return list(self._tails.get((rank, kind), ()))

    def close(self) -> None:
        """Closes the files of the copies."""
        for file in self._files.values():
            file.close()


_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_TRACEBACK = "Traceback (most recent call last):"


def last_output(stderr: Sequence[str], stdout: Sequence[str]) -> list[str]:
    """A rank's last traceback with its causes and all later lines; without a traceback, the last lines of stderr, or of
    stdout if stderr is empty.
    """
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
# How an error of hvdlite names the rank that caused it.
_BLAMED = re.compile(
    r"\brank (\d+) \(host ([^,()]*), pid (\d+)\) (raised|ended without telling the other ranks|has left|failed)"
)


def first_failure(
    endings: Iterable[RankExit], started: Mapping[int, tuple[str, int]], tail: Callable[[int], Sequence[str]]
) -> RankExit | None:
    """The rank whose failure made the others fail; None if no rank has failed.

    A rank whose error names another rank as the cause may end before the named rank. So this function follows the names from
    error to error, to the rank that failed first. This rank may have been told to end while it was still reporting its
    exception to the others; then its exit code is taken as 1, as for any Python program that raises. Other ranks that were told
    to end are considered last.

    Args:
        endings: the ends of the ranks, in the order in which they were reported. Ranks that were killed may be missing.
        started: for each rank, its host and process id.
        tail: a function that returns the last lines of a rank's stderr.
    """
    failed = [ending for ending in endings if ending.code != 0]
    failed.sort(key=lambda ending: ending.stopped)  # the sort is stable
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
    """The rank that `accuser` names in its traceback as the cause of its failure; None if it names no failed rank there."""
    for line in last_output(tail, ()):
        if not _EXCEPTION.match(line):  # other lines of the log may also name ranks, but not as the cause
            continue
        for number, host, pid, deed in _BLAMED.findall(line):
            # hvdlite's rank numbers differ from mpirun's if the program gave init() a communicator. So the process id decides.
            rank = next((rank for rank, place in started.items() if place == (host, int(pid))), int(number))
            if rank == accuser or rank not in started:
                continue
            own = next((ending for ending in failed if ending.rank == rank and not ending.stopped), None)
            if own is not None or deed == "raised":
                return own or RankExit(rank, *started[rank], code=1, stopped=False)
    return None
