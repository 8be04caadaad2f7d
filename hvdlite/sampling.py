"""Samples the Python stack of the main thread while a timeline is written. So the report of ``hvdlite timeline`` can say where
the program of a late rank was.

The samples go to a file beside the timeline, in the same format and on the same clock.
"""

import contextlib
import json
import logging
import os
import threading
import time
from pathlib import Path

from hvdlite.runtime import RUNTIME
from hvdlite.timeline.files import STACK, stacks_file
from hvdlite.watchdog import main_frame, own_calls_of

_LOGGER = logging.getLogger("hvdlite")
# The seconds between two samples.
_INTERVAL = 0.005
# A span ends after this number of microseconds even if the program stays in the same place, so that a crash loses little.
_LONGEST_SPAN = 1e6
# How many spans one write has.
_MANY = 100
# The number of the samples' lane in the trace. The numbers of the callers' lanes begin at 1.
_LANE = 0
_END = b"\n]\n"
# The samples may take the timeline's limit divided by this number.
_PART = 8


_running: list["StackSampler"] = []  # at most one


def start(timeline: Path, max_bytes: int, rank: int) -> None:
    """Samples beside a new timeline until `stop`, another timeline, or `hvdlite.shutdown`; arguments as for `StackSampler`."""
    stop()
    _running.append(StackSampler(timeline, max_bytes, rank))
    RUNTIME.at_stop.append(stop)


def stop() -> None:
    """Ends the sampling beside the present timeline. Does nothing if there is no timeline."""
    while _running:
        _running.pop().close()
        if stop in RUNTIME.at_stop:
            RUNTIME.at_stop.remove(stop)


class StackSampler:
    """A thread that samples until `close`.

    Equal samples in a row become one span. The file is bounded in the same way as the timeline: at half of its limit it is
    renamed to ``.old``, and a new file begins. If the disk fails, the sampling ends with one line in the log.

    Args:
        timeline: the file of the timeline.
        max_bytes: the limit of the timeline in bytes. The samples take at most an eighth of that in addition.
        rank: the rank of this process.

    Attributes:
        path: the file of the samples.
        samples: the number of samples so far.
    """

    def __init__(self, timeline: Path, max_bytes: int, rank: int) -> None:
        self.path = stacks_file(timeline)
        self._room, self._rank = max_bytes // _PART, rank
        self._stop = threading.Event()
        self._lines: list[str] = []
        self._written = 0
        self.samples = 0
        self._thread = threading.Thread(target=self._run, name="hvdlite-stacks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the last samples. A second call does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path.with_name(self.path.name + ".old"))  # left by an earlier timeline of this name
            self._begin_file()
            self._sample()
        except OSError as error:
            text = "the stacks cannot be written to '%s': %s; the sampling ends"
            _LOGGER.warning(text, self.path, error.strerror)

    def _sample(self) -> None:
        """Takes samples. Each stands for the time since the previous one, in which this thread may have waited for the GIL."""
        since = until = _now()
        before = ""
        while not self._stop.wait(_INTERVAL):
            calls = " > ".join(own_calls_of(main_frame()))
            if calls != before or until - since > _LONGEST_SPAN:
                self._add(since, until, before)
                since, before = until, calls
            until = _now()
            self.samples += 1
        self._add(since, until, before)
        self._flush()

    def _add(self, since: float, until: float, calls: str) -> None:
        if not calls:
            return
        span = {"name": STACK, "ph": "X", "pid": self._rank, "tid": _LANE, "ts": round(since, 3)}
        self._lines.append(json.dumps({**span, "dur": round(until - since, 3), "args": {"calls": calls}}))
        if len(self._lines) >= _MANY:
            self._flush()

    def _begin_file(self) -> None:
        lane = {"name": "thread_name", "ph": "M", "pid": self._rank, "tid": _LANE, "args": {"name": "Python, main thread"}}
        self._written = 0
        self.path.write_bytes(b"")
        self._append(f"[\n{json.dumps(lane)}")

    def _flush(self) -> None:
        if not self._lines:
            return
        if self._written > self._room // 2:
            os.replace(self.path, self.path.with_name(self.path.name + ".old"))
            self._begin_file()
        self._append("".join(f",\n{line}" for line in self._lines))
        self._lines.clear()

    def _append(self, text: str) -> None:
        """Replaces the bracket that ends the file by the text and a bracket, so that the file stays valid JSON."""
        data = text.encode()
        with self.path.open("r+b") as file:
            file.seek(self._written)
            file.write(data + _END)
        self._written += len(data)


def _now() -> float:
    """Microseconds on the timeline's clock."""
    return time.monotonic_ns() / 1e3
