"""Makes hvdlite treat torch's host tensors as tensors on a fake GPU, so that the whole torch door runs without a GPU.

torch's own work is done at once, on the host. hvdlite's work is done later by the fake GPU, in streams. So the values of a
result are complete only for a stream that is ordered after the operation. Here that is the current stream of `current`: after
each wait, this module sleeps until that stream, and no other, has done its work. Code that does not order it reads old values.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.driver_arrays import Stream

from hvdlite.errors import HvdliteError

_here = threading.local()
_default: dict[int, Stream] = {}
followed: list[tuple[int, int]] = []  # (current stream, a stream after which it was ordered)


def current(gpu: int) -> int:
    """The raw handle of the thread's current stream."""
    return _current(gpu).address


def _current(gpu: int) -> Stream:
    chosen: Stream | None = getattr(_here, "streams", {}).get(gpu)
    if chosen is None:
        chosen = _default.setdefault(gpu, Stream(gpu))
    return chosen


def use(chosen: Stream, gpu: int) -> None:
    """Makes this stream the thread's current stream on a GPU."""
    _here.streams = {**getattr(_here, "streams", {}), gpu: chosen}


@contextmanager
def stream(chosen: Stream, gpu: int) -> Iterator[None]:
    """In the block, this stream is the thread's current stream on a GPU."""
    before = getattr(_here, "streams", {})
    _here.streams = {**before, gpu: chosen}
    try:
        yield
    finally:
        _here.streams = before


class _Result:
    """A result of the engine that waits for its copies."""

    def __init__(self, result: Any, gpu: int) -> None:
        self._result, self._gpu = result, gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def copy_to(self, pointer: int, stream: int) -> None:
        self._result.copy_to(pointer, stream)
        if stream == current(self._gpu):  # other arrays have other streams
            _current(self._gpu).synchronize()


def _wait_for_the_gpu(gpu: int) -> None:
    """Lets each wait of the engine also wait for the current stream."""
    from hvdlite._engine import Engine, Work

    wait, result, results, wait_many = Work.wait, Work.result, Work.results, Engine.wait_many

    def wait_and_more(work: Work, *arguments: Any, **options: Any) -> None:
        wait(work, *arguments, **options)
        _current(gpu).synchronize()

    def wait_for_many(*arguments: Any) -> bool:
        all_well = wait_many(*arguments)
        _current(gpu).synchronize()
        return all_well

    def result_there(work: Work, *arguments: Any, **options: Any) -> _Result:
        there = _Result(result(work, *arguments, **options), gpu)
        _current(gpu).synchronize()
        return there

    def results_there(work: Work) -> list[Any]:
        return [each if isinstance(each, HvdliteError) else _Result(each, gpu) for each in results(work)]

    work: Any = Work
    work.wait, work.result, work.results = wait_and_more, result_there, results_there
    Engine.wait_many = wait_for_many  # type: ignore[method-assign,assignment]


def install(number: int) -> None:
    """From now on, hvdlite treats all host tensors as tensors on this GPU. The attribute `fake_place` of a tensor names another
    GPU, or -1 for host memory. Must be called before hvdlite is initialised.
    """
    import torch

    import hvdlite.backends.torch as backend
    from hvdlite.torch import agreement, gpu, in_flight, parameter_gradient

    settings = {"host_memory": number + 1, "delay_percent": 3}  # trainings have many operations, so only few are delayed
    for name, value in settings.items():
        ctypes.CDLL(os.environ["HVDLITE_CUDA_LIBRARY"]).fake_set(name.encode(), str(value).encode())

    def gpu_of(tensor: Any) -> int:
        return getattr(tensor, "fake_place", number)

    for module in (agreement, in_flight, parameter_gradient):
        module.gpu_of = gpu_of  # type: ignore[attr-defined]
    gpu.current_stream = current
    gpu.follow = lambda gpu, streams: followed.extend((current(gpu), stream) for stream in streams)

    kind: Any = backend.TorchBackend
    export = kind.export

    def export_as_on_gpu(self: Any, tensor: torch.Tensor, *arguments: bool) -> Any:
        exported = export(self, tensor, *arguments)
        return exported._replace(device=number, stream=current(number))

    kind.export = export_as_on_gpu
    kind.plain = lambda self, kind: None  # native code must not describe the tensors as host memory
    kind.stream_now = lambda self, exported: current(exported.device)
    kind.use_in_current_stream = lambda self, tensor: None
    backend.RECYCLED_FROM = 1 << 62  # torch allocates results of all sizes

    _wait_for_the_gpu(number)
