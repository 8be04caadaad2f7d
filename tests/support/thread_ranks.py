"""Ranks in threads: several engines of one process on a fabric in memory, each of which has a thread of its own."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite import _engine
from hvdlite.dtypes import code_of_name
from hvdlite.errors import HvdliteError, install
from hvdlite.requests import Request

Array = npt.NDArray[Any]

install(_engine.set_error_classes)

ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN, ADD_SET, REMOVE_SET = range(9)
AVERAGE, SUM, _ADASUM, MIN, MAX, PRODUCT = range(6)
ABSENT = 1

# The default knobs of all engines of this module.
COMMON: dict[str, Any] = {"log_level": 5}


class Rank:
    """One rank's engine, with methods for arrays. Only the rank's own threads may call them."""

    def __init__(self, engine: _engine.Engine, rank: int, size: int, fabric: _engine.Fabric) -> None:
        self.engine = engine
        self.fabric = fabric
        self.rank = rank
        self.size = size
        self._kept: list[Array | None] = []  # the engine uses their memory until the operations are done

    def start(
        self,
        kind: int,
        name: str | None,
        array: Array | None = None,
        output: Array | None = None,
        wake: bool = True,
        **options: Any,
    ) -> _engine.Work:
        """Submits one operation. `array` is the input. Without `output`, the engine allocates the result if there is one."""
        array = np.zeros((), np.uint8) if array is None else array
        self._kept += [array, output]
        request = Request(
            kind,
            name,
            int(code_of_name(array.dtype.name)),
            array.shape,
            0 if options.get("flags", 0) & ABSENT else array.ctypes.data,
            0 if output is None else output.ctypes.data,
            **options,
        )
        return self.engine.submit((request,), wake=wake)

    def allreduce(self, name: str | None, array: Array, **options: Any) -> Array:
        output = np.empty_like(array)
        self.start(ALLREDUCE, name, array, output, **options).result()
        return output

    def allgather(self, name: str | None, array: Array, **options: Any) -> Array:
        return self.take(self.start(ALLGATHER, name, array, **options).result(), array.dtype)

    def broadcast(self, name: str, array: Array, root: int, **options: Any) -> Array:
        output = np.empty_like(array)
        self.start(BROADCAST, name, array, output, root=root, **options).result()
        return output

    def barrier(self, name: str = "barrier", **options: Any) -> None:
        self.start(BARRIER, name, **options).result()

    def join(self, **options: Any) -> int:
        return self.start(JOIN, "join", **options).result().last_joined_rank

    def add_process_set(self, ranks: list[int]) -> int:
        handle = self.start(ADD_SET, "add_process_set", splits=ranks)
        return handle.result().process_set

    def remove_process_set(self, process_set: int) -> None:
        self.start(REMOVE_SET, "remove_process_set", root=process_set).result()

    @staticmethod
    def take(result: _engine.Result, dtype: Any) -> Array:
        return np.frombuffer(result.data, dtype).reshape(result.shape)


def run_request(engine: _engine.Engine, request: tuple[Any, ...]) -> _engine.Result:
    """Submits one request and waits for it."""
    return engine.submit((request,), wake=False).result()


def outcomes_of(
    engine: _engine.Engine, works: _engine.Work | Sequence[_engine.Work], streams: Sequence[int] = ()
) -> list[int | HvdliteError]:
    """Waits for one or more works; returns for each operation the number of its contributors, or its failure."""
    works = [works] if isinstance(works, _engine.Work) else works
    outcomes: list[int | HvdliteError] = []
    all_well = engine.wait_many(works, outcomes, streams)
    assert all_well == (not any(isinstance(outcome, HvdliteError) for outcome in outcomes))
    return outcomes


@contextmanager
def engines(size: int, config: dict[str, Any] | None = None, hosts: list[int] | None = None) -> Iterator[list[Rank]]:
    """Makes `size` engines on one fabric, and shuts them down at the end of the block. `hosts` has the number of each rank's
    host; by default all ranks are on one host.
    """
    fabric = _engine.Fabric(size, hosts)
    ranks = [
        Rank(_engine.Engine.create_inproc(fabric, rank, {**COMMON, **(config or {})}), rank, size, fabric)
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        in_threads(ranks, lambda rank: rank.engine.shutdown())


def in_threads(ranks: list[Rank], body: Callable[[Rank], Any], timeout: float = 240.0) -> list[Any]:
    """Calls body(rank) in a thread for each rank, and returns the results in rank order.

    Raises:
        AssertionError: a rank failed, or did not finish in time. The text has the ranks and their tracebacks or flight records.
    """
    results: list[Any] = [None] * len(ranks)
    failures: list[str] = []

    def run(index: int) -> None:
        try:
            results[index] = body(ranks[index])
        except BaseException:  # the caller's thread reports it
            failures.append(f"rank {ranks[index].rank}:\n{traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    stuck = [ranks[index].rank for index, thread in enumerate(threads) if thread.is_alive()]
    if stuck:
        records = "\n".join(f"rank {rank.rank}:\n{rank.engine.flight_record()}" for rank in ranks)
        raise AssertionError(f"ranks {stuck} did not finish within {timeout} s\n{failures}\n{records}")
    if failures:
        raise AssertionError("\n".join(failures))
    return results


def run_ranks(
    size: int, body: Callable[[Rank], Any], config: dict[str, Any] | None = None, timeout: float = 240.0
) -> list[Any]:
    """Makes the engines, calls `body` on each rank, and shuts the engines down. Returns the results in rank order."""
    with engines(size, config) as ranks:
        return in_threads(ranks, body, timeout)
