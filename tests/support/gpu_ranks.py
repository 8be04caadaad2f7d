"""Ranks in threads (thread_ranks.py), with their tensors on fake GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from support.fake_gpu import DeviceArray, FakeGpus, Stream, knobs
from support.thread_ranks import (
    ABSENT,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Array,
    Rank,
    engines,
    in_threads,
)

from hvdlite import _engine
from hvdlite.dtypes import code_of_name
from hvdlite.requests import Request

WIRE_FLOAT16, WIRE_BFLOAT16 = 2, 4


class GpuRank:
    """A rank whose tensors are on one GPU and in one stream by default."""

    def __init__(self, rank: Rank, gpus: FakeGpus, device: int) -> None:
        self.host = rank
        self.engine, self.rank, self.size = rank.engine, rank.rank, rank.size
        self.gpus, self.device = gpus, device
        self.stream = gpus.stream(device)

    def array(self, values: Any, device: int | None = None) -> DeviceArray:
        return self.gpus.array(np.asarray(values), self.device if device is None else device, self.stream_on(device))

    def empty_like(self, array: DeviceArray) -> DeviceArray:
        return self.gpus.empty(array.shape, array.dtype, array.device, array.stream)

    def stream_on(self, device: int | None) -> Stream:
        return self.stream if device in (None, self.device) else self.gpus.stream(device)

    def request(
        self,
        kind: int,
        name: str,
        array: DeviceArray,
        output: DeviceArray | None = None,
        stream: Stream | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        stream = stream or array.stream
        assert stream is not None
        options = {"device": array.device, "stream": stream.handle, **options}
        return {
            "kind": kind,
            "name": name,
            "dtype": int(code_of_name(dtype or array.dtype.name)),
            "shape": array.shape,
            "input_ptr": 0 if options.get("flags", 0) & ABSENT else array.ptr,
            "output_ptr": 0 if output is None else output.ptr,
            **options,
        }

    def start(self, *arguments: Any, **options: Any) -> _engine.Work:
        return self.engine.submit((Request(**self.request(*arguments, **options)),))

    def wait(self, work: _engine.Work, stream: Stream | None = None) -> _engine.Result:
        return work.result(streams=((stream or self.stream).handle,))

    def allreduce(self, name: str, values: Any, in_place: bool = False, **options: Any) -> Array:
        array = self.array(values)
        output = array if in_place else self.empty_like(array)
        self.wait(self.start(ALLREDUCE, name, array, output, **options))
        return output.numpy()

    def broadcast(self, name: str, values: Any, root: int, in_place: bool = False, **options: Any) -> Array:
        array = self.array(values)
        output = array if in_place else self.empty_like(array)
        self.wait(self.start(BROADCAST, name, array, output, root=root, **options))
        return output.numpy()

    def made(self, kind: int, name: str, values: Any, **options: Any) -> Array:
        """Runs an operation whose result the engine allocates."""
        array = self.array(values)
        result = self.wait(self.start(kind, name, array, **options))
        return self.take(result, array)

    def allgather(self, name: str, values: Any, **options: Any) -> Array:
        return self.made(ALLGATHER, name, values, **options)

    def alltoall(self, name: str, values: Any, **options: Any) -> Array:
        return self.made(ALLTOALL, name, values, **options)

    def reducescatter(self, name: str, values: Any, **options: Any) -> Array:
        return self.made(REDUCESCATTER, name, values, **options)

    def take(self, result: _engine.Result, like: DeviceArray) -> Array:
        assert result.device == like.device
        output = self.gpus.empty(result.shape, like.dtype, like.device, like.stream)
        assert like.stream is not None
        result.copy_to(output.ptr, like.stream.handle)
        return output.numpy()

    def counters(self) -> dict[str, int]:
        return self.engine.counters()


@contextmanager
def gpu_engines(
    gpus: FakeGpus,
    size: int,
    config: dict[str, Any] | None = None,
    devices: Sequence[int] | None = None,
    hosts: list[int] | None = None,
) -> Iterator[list[GpuRank]]:
    """Makes an engine for each rank.

    Args:
        gpus: the fake GPUs.
        size: the number of ranks.
        config: knobs of all engines.
        devices: the GPU of each rank; by default each rank has a GPU of its own.
        hosts: the number of each rank's host; by default all ranks are on one host.
    """
    devices = range(size) if devices is None else devices
    gpus.set(gpus=max(2, *[device + 1 for device in devices]))
    with engines(size, knobs(**(config or {})), hosts) as ranks:
        yield [GpuRank(rank, gpus, device) for rank, device in zip(ranks, devices, strict=True)]


def run_gpu_ranks(
    gpus: FakeGpus,
    size: int,
    body: Callable[[GpuRank], Any],
    config: dict[str, Any] | None = None,
    devices: Sequence[int] | None = None,
    timeout: float = 60.0,
) -> list[Any]:
    """Makes the engines, calls `body` on each rank, and shuts the engines down. Returns the results in rank order."""
    with gpu_engines(gpus, size, config, devices) as ranks:
        return in_threads(ranks, body, timeout)  # type: ignore[arg-type]
