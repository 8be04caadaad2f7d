"""The program of each rank in a job of `python -m hvdlite.bench guard`, with the arguments KIND SECONDS FOLDER.

The program may belong to another checkout than the hvdlite that it imports, so it uses only the public API of hvdlite. Rank 0
writes FOLDER/figures.json: the path of the imported package, and each figure in seconds or as a share of a processor.
"""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hvdlite as hvd

_WORLD = MPI.COMM_WORLD
_BATCH = 20  # the number of calls in a sample
_SMALL, _TINY, _LARGE = 1, 16, 4 << 20  # numbers of elements
_GRADIENTS = [64, 4096, 256, 65_536, 64, 262_144] * 10
_LEAST = 5  # the smallest number of samples


def _filled(count: int) -> Any:
    return np.full(count, hvd.rank() + 1.0, np.float32)


def _samples(seconds: float, batch: int, call: Callable[[], object]) -> Iterator[float]:
    """Yields samples for about `seconds`, by rank 0's clock: the mean time of `batch` calls on the slowest rank.

    The first sample only fills the caches and is not yielded.
    """
    end = time.monotonic() + seconds
    number = 0
    while _WORLD.bcast(number < _LEAST or time.monotonic() < end):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        taken = _WORLD.allreduce(time.perf_counter() - start, MPI.MAX) / batch
        number += 1
        if number > 1:
            yield taken


def _time(seconds: float, batch: int, call: Callable[[], object]) -> float:
    return statistics.median(_samples(seconds, batch, call))


def _gradients(arrays: list[Any]) -> None:
    handles = [hvd.allreduce_async_(array, name=f"gradient{place}", op=hvd.Sum) for place, array in enumerate(arrays)]
    for handle in handles:
        hvd.synchronize(handle)
    for array in arrays:
        array.fill(1.0)


def _grouped(arrays: list[Any]) -> None:
    hvd.grouped_allreduce_(arrays, name="group", op=hvd.Average)


def _mismatch() -> None:
    try:
        hvd.allreduce(np.ones(3 + hvd.rank()), name="differs")
    except hvd.HorovodInternalError:
        return
    raise AssertionError("no rank reported a mismatch")


def _processor_share(seconds: float, waits: bool) -> float:
    """The share of a processor that this process takes. Without `waits`, the main threads of all ranks sleep in this time. With
    `waits`, only the last rank sleeps, and the other ranks wait for it in an allreduce.
    """
    _WORLD.Barrier()
    start, taken = time.perf_counter(), time.process_time()
    if not waits or hvd.rank() == hvd.size() - 1:
        time.sleep(seconds)
    if waits:
        hvd.allreduce(_filled(1000), name="late")
    return (time.process_time() - taken) / (time.perf_counter() - start)


def pair(seconds: float, folder: Path) -> dict[str, float]:
    """The figures of two ranks, each bound to a core. All kinds of jobs have these arguments.

    Args:
        seconds: the approximate time for each figure.
        folder: the job's temporary folder.
    """
    small, large, gradients = _filled(_SMALL), _filled(_LARGE), [_filled(count) for count in _GRADIENTS]
    tiny = [_filled(_TINY) for _ in range(100)]
    figures = {
        "small": _time(seconds, _BATCH, lambda: hvd.allreduce_(small, name="small", op=hvd.Average)),
        "large": _time(seconds, 1, lambda: hvd.allreduce_(large, name="large", op=hvd.Average)),
        "gradients": _time(seconds, 1, lambda: _gradients(gradients)),
        "many": _time(seconds, 1, lambda: _gradients(tiny)),
        "grouped": _time(seconds, 1, lambda: _grouped(tiny)),
        "mismatch": _time(seconds / 4, 1, _mismatch),
    }
    for name, waits in (("idle", False), ("waiting", True)):
        figures[name] = _WORLD.allreduce(_processor_share(seconds, waits), MPI.SUM) / hvd.size()
    return figures


def crowd(seconds: float, folder: Path) -> dict[str, float]:
    """The figures of ranks that are not bound to cores. There may be more ranks than processors."""
    small = _filled(16)
    taken, calls = time.process_time(), 0

    def call() -> None:
        nonlocal calls
        calls += 1
        hvd.allreduce_(small, name="small", op=hvd.Average)

    figures = {"crowded": _time(seconds, _BATCH, call)}
    figures["crowded_processor"] = _WORLD.allreduce((time.process_time() - taken) / calls, MPI.SUM) / hvd.size()
    return figures


def death(seconds: float, folder: Path) -> dict[str, float]:
    """The time from the death of the last rank to the error of a rank that waits for it. All ranks read the host's clock."""
    note = folder / "killed"
    _WORLD.Barrier()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.2)
        note.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce(_filled(3), name="never")
    except hvd.HorovodInternalError:
        return {"death": time.monotonic() - float(note.read_text())}
    raise AssertionError("no rank reported a death")


def main() -> None:
    """Runs one rank of one job."""
    kind, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    hvd.init()
    for step in range(3):
        assert (hvd.allreduce(_filled(4) + step, name="warm", op=hvd.Min) == step + 1).all()
    figures = {"pair": pair, "crowd": crowd, "death": death}[kind](seconds, folder)
    if hvd.rank() == 0:
        (folder / "figures.json").write_text(json.dumps({"package": hvd.__file__, "figures": figures}))
    if kind == "death":
        os._exit(0)
    hvd.shutdown()


if __name__ == "__main__":
    main()
