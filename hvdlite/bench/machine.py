"""Facts about the machine for the benchmark: its caches, and the threads and processor time of this process. The facts come
from files of Linux; if a file is missing, its fact has a default.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

_TASKS = Path("/proc/self/task")
_UNKNOWN_CACHE = 64 << 20
_LINE = 64  # the bytes of a cache line


def last_level_cache() -> int:
    """The bytes of the largest cache of the first core that this process may use; 64 MiB if the system does not say it."""
    core = min(os.sched_getaffinity(0))
    folder = Path(f"/sys/devices/system/cpu/cpu{core}/cache")
    sizes = [re.fullmatch(r"(\d+)K", path.read_text().strip()) for path in folder.glob("index*/size")]
    return max((int(size[1]) << 10 for size in sizes if size), default=_UNKNOWN_CACHE)


def cache_flusher() -> Callable[[], None]:
    """A function that writes memory of twice the size of the largest cache, so that nothing else stays in the cache."""
    lines = np.ones(2 * last_level_cache() // 4, dtype=np.float32)[::16]  # one element of each cache line

    def flush() -> None:
        np.negative(lines, lines)

    return flush


def aligned_zeros(shape: int | tuple[int, ...]) -> npt.NDArray[np.float32]:
    """A float32 array of zeros that begins at a cache line, as torch's tensors do.

    NumPy's own arrays begin at arbitrary addresses. A copy between two arrays takes up to twenty times as long if one array
    begins a little later in its page than the other (docs/benchmarks.md).
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    memory = np.zeros(4 * size + _LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + 4 * size].view(np.float32).reshape(shape)


def thread_ids() -> set[int]:
    """The ids of this process's threads; an empty set if the kernel does not report their processor time."""
    return {int(path.parent.name) for path in _TASKS.glob("*/schedstat")}


def thread_seconds(threads: Iterable[int]) -> float:
    """The processor time in seconds that these threads have taken so far, from the kernel's scheduler statistics."""
    total = 0
    for thread in threads:
        try:
            total += int((_TASKS / str(thread) / "schedstat").read_text().split()[0])
        except (OSError, ValueError):  # the thread has ended
            continue
    return total / 1e9
