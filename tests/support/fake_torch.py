"""Makes torch's host tensors pass for tensors on a fake GPU, so that the whole of the torch door runs without one.

torch's own work is done at once, on the host. hvdlite's is done by the fake GPU, in streams, later: so the values of a result
are there only for those whose stream comes after the operation. Here that is the current stream of `current`, and after
each wait this module sleeps until that stream, and no other, has come so far. Whoever fails to order it reads old values.
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
followed: list[tuple[int, int]] = []  # (current stream, a stream that it was put after)


def current(gpu: int) -> int:
    """The raw handle of the thread's current stream."""
    return _current(gpu).address


def _current(gpu: int) -> Stream:
    chosen: Stream | None = getattr(_here, "streams", {}).get(gpu)
    if chosen is None:
        chosen = _default.setdefault(gpu, Stream(gpu))
    return chosen


def use(chosen: Stream, gpu: int) -> None:
    """The thread's current stream on a GPU is this one from now on."""
    _here.streams = {**getattr(_here, "streams", {}), gpu: chosen}


@contextmanager
def stream(chosen: Stream, gpu: int) -> Iterator[None]:
    """The thread's current stream on a GPU is this one."""
    before = getattr(_here, "streams", {})
    _here.streams = {**before, gpu: chosen}
    try:
        yield
    finally:
        _here.streams = before


class _Result:
    """The engine's, whose copies are waited for."""

    def __init__(self, result: Any, gpu: int) -> None:
        self._result, self._gpu = result, gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def copy_to(self, pointer: int, stream: int) -> None:
        self._result.copy_to(pointer, stream)
        if stream == current(self._gpu):  # not one of other arrays'
            _current(self._gpu).synchronize()


class _Engine:
    """The engine, after whose waits the current stream is waited for."""

    def __init__(self, engine: Any, gpu: int) -> None:
        self._engine, self._gpu = engine, gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _waited(self, result: Any) -> Any:
        _current(self._gpu).synchronize()
        return _Result(result, self._gpu)

    def run(self, *arguments: Any) -> Any:
        return self._waited(self._engine.run(*arguments))

    def wait_into(self, outcomes: list[Any], *arguments: Any, **options: Any) -> None:
        self._engine.wait_into(outcomes, *arguments, **options)
        if not isinstance(outcomes[-1], HvdliteError):
            outcomes[-1] = self._waited(outcomes[-1])

    def start_allreduce(self, *arguments: Any) -> None:
        """Of what is in host memory, such as the start check's rows, too: the handle would be one of the engine behind this."""

    start_allreduces = start_allreduce

    def wait_many(self, *arguments: Any) -> Any:
        all_well = self._engine.wait_many(*arguments)
        self._waited(None)
        return all_well


def install(number: int) -> None:
    """From now on all host tensors pass for tensors on this GPU, but for those with an attribute
    `fake_place`: another GPU, or -1 for host memory. Before hvdlite is initialised."""
    import torch

    import hvdlite.backends.torch as backend
    from hvdlite.runtime import Runtime
    from hvdlite.torch import agreement, flights, gpu, slots, state

    settings = {"host_memory": number + 1, "delay_percent": 3}  # trainings have many operations
    for name, value in settings.items():
        ctypes.CDLL(os.environ["HVDLITE_CUDA_LIBRARY"]).fake_set(name.encode(), str(value).encode())

    def gpu_of(tensor: Any) -> int:
        return getattr(tensor, "fake_place", number)

    for module in (agreement, flights, slots, state):
        module.gpu_of = gpu_of  # type: ignore[attr-defined]
    state.number_of = lambda device: number  # type: ignore[attr-defined]
    gpu.current_stream = current
    gpu.follow = lambda gpu, streams: followed.extend((current(gpu), stream) for stream in streams)

    kind: Any = backend.TorchBackend
    export = kind.export

    def export_as_on_gpu(self: Any, tensor: torch.Tensor, *arguments: bool) -> Any:
        exported = export(self, tensor, *arguments)
        return exported._replace(device=number, stream=current(number))

    kind.export = export_as_on_gpu
    kind.plain = lambda self, kind: None  # native code finds all its tensors on a GPU
    kind.stream_now = lambda self, exported: current(exported.device)
    kind.use_in_current_stream = lambda self, tensor: None
    backend.RECYCLED_FROM = 1 << 62  # results of any size are torch's own

    start = Runtime.start

    def start_here(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self.engine = _Engine(self.engine, number)

    Runtime.start = start_here  # type: ignore[method-assign]
    launch = flights.launch
    flights.launch = lambda engine, *arguments: launch(engine._engine, *arguments)
