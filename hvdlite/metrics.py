"""Writers of `hvdlite.stats`: scalars for TensorBoard, and a text file for Prometheus's node_exporter.

Neither writer needs a package: the program passes its own TensorBoard writer, and this module writes Prometheus's file itself.
"""

import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.runtime import RUNTIME
from hvdlite.timeline.files import file_of_rank
from hvdlite.usage import Stats, stats

__all__ = ["PrometheusWriter", "TensorBoardWriter", "to_prometheus"]

_LOGGER = logging.getLogger("hvdlite")

# The name without its prefix, the attribute of Stats, and the help text.
_SERIES: tuple[tuple[str, str, str], ...] = (
    ("steps_total", "steps", "Steps that ended."),
    ("operations_total", "operations", "Operations that ended without an error."),
    ("failed_operations_total", "failed_operations", "Operations that ended with an error."),
    ("fused_operations_total", "fused_operations", "Executed operations; small allreduces are executed together."),
    ("data_bytes_total", "bytes", "Bytes of the data of operations."),
    ("bus_bytes_total", "bus_bytes", "The least bytes that a rank's link has to carry for these data."),
    ("sent_bytes_total", "sent_bytes", "Bytes that this rank sent as messages."),
    ("uncoded_bytes_total", "uncoded_bytes", "Bytes, before coding, of the elements that this rank sent coded."),
    ("coded_bytes_total", "coded_bytes", "Bytes, after coding, of the elements that this rank sent coded."),
    ("control_messages_total", "control_messages", "Messages of the negotiation that this rank sent."),
    ("negotiating_seconds_total", "negotiating_seconds", "Time in which an operation was submitted and not agreed on."),
    ("waiting_seconds_total", "waiting_seconds", "Time in which an operation was announced and other ranks were missing."),
    ("moving_seconds_total", "moving_seconds", "Time in which data moved."),
    ("exposed_seconds_total", "exposed_seconds", "Time in which the program was blocked by communication."),
    ("exposed_moving_seconds_total", "exposed_moving_seconds", "The part of the exposed time in which data moved."),
)


def to_prometheus(now: Stats, host: str) -> str:
    """The text exposition format of Prometheus: counters with the labels rank and host.

    Args:
        now: a snapshot, not a difference of two.
        host: the value of the label host.

    Returns:
        Lines of text. Times are in seconds, sizes in bytes.
    """
    escaped = host.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'{{rank="{now.rank}",host="{escaped}"}}'
    samples = [(name, getattr(now, attribute), text) for name, attribute, text in _SERIES]
    text = "Operations that this rank was the last to ask for: its share among the ranks shows who is slow."
    samples.append(("last_to_ask_total", now.last_to_ask[now.rank], text))
    lines = []
    for name, value, text in samples:
        lines += [f"# HELP hvdlite_{name} {text}", f"# TYPE hvdlite_{name} counter", f"hvdlite_{name}{labels} {value!r}"]
    return "\n".join(lines) + "\n"


class PrometheusWriter:
    """Writes `stats` into a file again and again, for the textfile collector of Prometheus's node_exporter.

    A thread replaces the whole file every `interval` seconds, and once more when the writer is closed or hvdlite shuts down
    (also when the ranks of an elastic job change). If the disk fails, the writer logs one line and tries again. If the knob
    metrics_file is set, each `init` makes a writer, whose interval is the knob metrics_interval.

    Args:
        path: the path of the file, which should end in ``.prom``. ``{rank}`` stands for the rank; without ``{rank}``, rank 3
            writes a file with ``.rank3`` before the suffix.
        interval: seconds between two writings.

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError: the interval is not above 0, or the path names no file.

    """

    def __init__(self, path: str | os.PathLike[str], interval: float = 15.0) -> None:
        rank = RUNTIME.require_topology().rank
        if not interval > 0:
            raise InvalidArgumentError(f"PrometheusWriter: interval is a number of seconds above 0, got {interval!r}")
        if not Path(path).name:
            text = f"PrometheusWriter: path={os.fspath(path)!r} names no file; name the file to write, such as hvdlite.prom"
            raise InvalidArgumentError(text)
        named = os.fspath(path)
        self.path = file_of_rank(named.replace("{rank}", str(rank)), 0 if "{rank}" in named else rank, 0)
        self._interval = float(interval)
        self._host = socket.gethostname()
        self._stop = threading.Event()
        self._complained = False
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hvdlite-metrics", daemon=True)
        RUNTIME.at_stop.append(self.close)
        self._thread.start()

    def close(self) -> None:
        """Writes the file for the last time. A second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self.close in RUNTIME.at_stop:
            RUNTIME.at_stop.remove(self.close)
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Writes the file now. If several writes fail in a row, it logs only the first error."""
        if not RUNTIME.engine:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with self._writing:
            try:
                temporary.write_text(to_prometheus(stats(), self._host))
                os.replace(temporary, self.path)
                self._complained = False
            except OSError as error:
                if not self._complained:
                    _LOGGER.warning("the metrics cannot be written to '%s': %s; hvdlite tries again", self.path, error.strerror)
                self._complained = True

    def _run(self) -> None:
        while True:
            self.write()
            if self._stop.wait(self._interval):
                return


class TensorBoardWriter:
    """Writes the cost of training steps as scalars ``hvdlite/...`` every few steps, through the program's TensorBoard writer.

    It follows the steps that torch's `DistributedOptimizer` counts, or the calls of `mark_step`. Each scalar is the mean per
    step since the last writing; times are in milliseconds. After another `init` (also when the ranks of an elastic job change),
    the first mean leaves out the first step.

    Args:
        writer: a SummaryWriter of torch or tensorboardX, or anything else with ``add_scalar(tag, value, step)``; or a function
            with these arguments, which for TensorFlow calls ``tf.summary.scalar(tag, value, step)`` in its writer.
        every: the number of training steps between two writings.

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError: the writer is neither of these, or `every` is not a whole number above 0.

    """

    def __init__(self, writer: Any, every: int = 50) -> None:
        add: Callable[[str, float, int], Any] | None = getattr(writer, "add_scalar", writer if callable(writer) else None)
        if add is None:
            raise InvalidArgumentError(
                f"TensorBoardWriter needs a SummaryWriter with add_scalar(tag, value, step), or a function of these, got a "
                f"{type(writer).__name__}"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"TensorBoardWriter: every is a whole number of steps above 0, got {every!r}")
        self._add = add
        self._every = every
        self._before = stats()
        self._steps = RUNTIME.steps
        self._earlier = 0  # the number of steps in earlier jobs
        RUNTIME.steps.watchers.append(self._watch)

    def close(self) -> None:
        """Writes the remaining steps, and stops. The program's writer stays open. A second call does nothing."""
        if self._watch not in RUNTIME.steps.watchers:
            return
        RUNTIME.steps.watchers.remove(self._watch)
        if RUNTIME.steps is self._steps and RUNTIME.engine is not None:
            self._write(stats())

    def _watch(self) -> None:
        if RUNTIME.steps is not self._steps:
            self._earlier += self._steps.count
            self._steps, self._before = RUNTIME.steps, stats()
        if self._steps.count - self._before.steps >= self._every:
            self._write(stats())

    def _write(self, now: Stats) -> None:
        spent = now - self._before
        if not spent.steps:
            return
        self._before = now
        for tag, value in _scalars(spent).items():
            self._add(f"hvdlite/{tag}", value, self._earlier + now.steps)


def _scalars(spent: Stats) -> dict[str, float]:
    """The mean cost of a training step, from the difference of two snapshots."""
    each = 1.0 / spent.steps
    values = {
        f"{re.sub('_seconds$', '', name)}_ms": 1e3 * getattr(spent, name) * each
        for name in (
            *("exposed_seconds", "exposed_moving_seconds", "exposed_waiting_seconds"),
            *("negotiating_seconds", "waiting_seconds", "moving_seconds"),
        )
    }
    values["step_ms"] = 1e3 * spent.seconds * each
    for name in ("operations", "fused_operations", "bytes", "control_messages"):
        values[name] = getattr(spent, name) * each
    values["bus_bandwidth_GBs"] = spent.bus_bandwidth / 1e9
    if spent.slowest_rank is not None:
        values["slowest_rank"] = float(spent.slowest_rank)
        values["slowest_share"] = spent.slowest_share
    return values
