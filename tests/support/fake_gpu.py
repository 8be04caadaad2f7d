"""Fake GPUs (tests/native/fake_gpu): the paths of their libraries, functions that control them, and memory and streams on them.

The engine opens the libraries by its ordinary knobs: ``knobs()`` for engines of this process, ``environment()`` for others.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_long, c_size_t, c_uint, c_ulonglong, c_void_p
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import native
from support.limits import eventually

Array = npt.NDArray[Any]

LIBRARIES = {"cuda": "libfakecuda.so", "nccl": "libfakenccl.so", "nvrtc": "libfakenvrtc.so"}
NON_BLOCKING = 1
ILLEGAL_ADDRESS = 700

_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuMemAlloc_v2": [POINTER(c_ulonglong), c_size_t],
    "cuMemFree_v2": [c_ulonglong],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemcpyAsync": [c_ulonglong, c_ulonglong, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_ulonglong, ctypes.c_ubyte, c_size_t, c_void_p],
    "cuStreamCreateWithPriority": [POINTER(c_void_p), c_uint, c_int],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventDestroy_v2": [c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuModuleUnload": [c_void_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), c_void_p],
    "fake_set": [c_char_p, c_char_p],
    "fake_fail": [c_char_p, c_long, c_int],
    "fake_calls": [c_char_p],
    "fake_busy": [c_void_p, c_double],
    "fake_capture": [c_void_p, c_int],
    "fake_async_error": [c_int, c_int],
    "fake_hold": [POINTER(c_void_p), c_int, c_int],
    "fake_priority": [c_void_p],
}
_TEXTS = ("fake_leaks", "fake_called", "fake_image")


class DriverError(Exception):
    """A call of the fake driver returned an error; ``code`` is the returned number."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


def missing() -> str | None:
    """The reason why there are no fake GPUs here; None if there are."""
    return None if native.folder() else "the fake GPUs are not built (make develop)"


def libraries() -> dict[str, str]:
    """The paths of the libraries, by the names cuda, nccl and nvrtc."""
    found = native.folder()
    assert found is not None, missing()
    return {name: str(found / file) for name, file in LIBRARIES.items()}


def knobs(**others: Any) -> dict[str, Any]:
    """An engine's configuration with the fakes as its libraries, and without a kernel cache."""
    return {**{f"{name}_library": path for name, path in libraries().items()}, "kernel_cache": "", **others}


def environment(gpus: int = 2, **settings: object) -> dict[str, str]:
    """The variables for processes with fake GPUs.

    Args:
        gpus: the number of GPUs.
        settings: settings of control.h, and fail="FUNCTION:NTH:CODE".
    """
    variables = {f"HVDLITE_{name.upper()}_LIBRARY": path for name, path in libraries().items()}
    text = ",".join(f"{name}={value}" for name, value in {"gpus": gpus, **settings}.items())
    return {**variables, "HVDLITE_KERNEL_CACHE": "off", "FAKE_GPU": text}


@functools.cache
def _load() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    paths = libraries()
    cuda, nccl = ctypes.CDLL(paths["cuda"]), ctypes.CDLL(paths["nccl"])
    for name, arguments in _SIGNATURES.items():
        getattr(cuda, name).argtypes = arguments
    for name in _TEXTS:
        getattr(cuda, name).restype = c_char_p
    cuda.fake_calls.restype = c_long
    nccl.fake_nccl_error.argtypes = [c_int, c_int, c_char_p]
    return cuda, nccl


class FakeGpus:
    """Controls this process's fake GPUs, and makes the objects of a test on them; `close` frees these objects."""

    def __init__(self) -> None:
        self.cuda, self.nccl = _load()
        self.cuda.fake_reset()
        self._contexts: dict[int, c_void_p] = {}
        self._lock = threading.Lock()
        self._undo: list[tuple[int, Callable[[], object]]] = []

    # --- control ---

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            self.cuda.fake_set(name.encode(), str(value).encode())

    def fail(self, function: str, nth: int, code: int) -> None:
        """Lets the nth call of the function from now on (1: the next one) return the code. With nth 0 no later call fails."""
        self.cuda.fake_fail(function.encode(), nth, code)

    def calls(self, function: str) -> int:
        """Counts the calls of a function, or "enqueued_too_early": what entered a stream before earlier calls of NCCL did."""
        return int(self.cuda.fake_calls(function.encode()))

    def called(self) -> dict[str, int]:
        pairs = (entry.split("=") for entry in self.cuda.fake_called().decode().split())
        return {name: int(number) for name, number in pairs}

    def leaks(self) -> str:
        return str(self.cuda.fake_leaks().decode())

    def break_down(self, device: int, code: int = ILLEGAL_ADDRESS) -> None:
        self.cuda.fake_async_error(device, code)

    def nccl_error(self, code: int, text: str, rank: int = -1) -> None:
        self.nccl.fake_nccl_error(rank, code, text.encode())

    def idle(self) -> None:
        """Sleeps until all streams are empty."""
        self.cuda.fake_idle()

    @contextmanager
    def held(self, *streams: Stream | None) -> Iterator[None]:
        """No work in these streams begins before the block ends; then it begins in all of them at once.

        Args:
            streams: streams of one GPU; None stands for the legacy default stream of GPU 0.
        """
        handles = (c_void_p * len(streams))(*[None if stream is None else stream.handle for stream in streams])
        device = next((stream.device for stream in streams if stream is not None), 0)

        def hold(held: bool) -> None:
            with self.on(device):
                self.call("fake_hold", handles, len(streams), held)

        hold(True)
        try:
            yield
        finally:
            hold(False)

    # --- the driver ---

    def call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self.cuda, function)(*arguments))
        if code != 0:
            raise DriverError(function, code)

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """In the block, the GPU's context is the thread's current context."""
        with self._lock:
            if device not in self._contexts:
                context = c_void_p()
                self.call("cuInit", 0)
                self.call("cuDevicePrimaryCtxRetain", byref(context), device)
                self._contexts[device] = context
        self.call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", None)

    def later(self, device: int, undo: Callable[[], object]) -> None:
        self._undo.append((device, undo))

    def close(self) -> None:
        for device, undo in reversed(self._undo):
            with self.on(device):
                undo()
        self._undo.clear()
        for device in self._contexts:
            self.cuda.cuDevicePrimaryCtxRelease_v2(device)
        self._contexts.clear()

    def stream(self, device: int = 0, blocking: bool = False) -> Stream:
        return Stream(self, device, blocking)

    def array(self, values: Any, device: int = 0, stream: Stream | None = None) -> DeviceArray:
        """A copy on the GPU, which is complete when this returns. Later calls use `stream` by default."""
        result = DeviceArray(self, np.asarray(values).shape, np.asarray(values).dtype, device, stream)
        result.write(np.asarray(values))
        with self.on(device):
            self.call("cuStreamSynchronize", None if stream is None else stream.handle)
        return result

    def empty(self, shape: Any, dtype: Any, device: int = 0, stream: Stream | None = None) -> DeviceArray:
        return DeviceArray(self, shape, dtype, device, stream)

    def pinned(self, values: Any, device: int = 0) -> Array:
        """A copy in page-locked memory. An operation reads or writes it when the stream executes the operation."""
        source = np.ascontiguousarray(values)
        memory = c_void_p()
        with self.on(device):
            self.call("cuMemHostAlloc", byref(memory), max(1, source.nbytes), 0)
        self.later(device, lambda: self.cuda.cuMemFreeHost(memory))
        buffer = (ctypes.c_char * max(1, source.nbytes)).from_address(memory.value or 0)
        result = np.frombuffer(buffer, source.dtype, source.size).reshape(source.shape)
        result[...] = source
        return result

    def kernel(self, name: str) -> Callable[..., None]:
        """A kernel of tests/native/fake_gpu, as a function launch(device, stream, threads, *ctypes values)."""
        functions: dict[int, c_void_p] = {}

        def function_on(device: int) -> c_void_p:
            if device not in functions:
                module, function = c_void_p(), c_void_p()
                self.call("cuModuleLoadData", byref(module), self.cuda.fake_image())
                self.call("cuModuleGetFunction", byref(function), module, name.encode())
                self.later(device, lambda: self.cuda.cuModuleUnload(module))
                functions[device] = function
            return functions[device]

        def launch(device: int, stream: Stream | None, threads: int, *values: Any) -> None:
            pointers = (c_void_p * len(values))(*[ctypes.cast(byref(value), c_void_p) for value in values])
            handle = None if stream is None else stream.handle
            with self.on(device):
                blocks = math.ceil(threads / 256)
                self.call("cuLaunchKernel", function_on(device), blocks, 1, 1, 256, 1, 1, 0, handle, pointers, None)

        return launch

    def add(self, array: DeviceArray, summand: float, stream: Stream | None = None) -> None:
        """Adds `summand` to all elements (float32), in the stream."""
        launch = self.kernel("fake_add")
        launch(array.device, stream, array.size, c_ulonglong(array.ptr), c_ulonglong(array.size), c_float(summand))


class Stream:
    """A stream of a fake GPU. If `blocking`, it is ordered with the legacy default stream."""

    def __init__(self, gpus: FakeGpus, device: int = 0, blocking: bool = False) -> None:
        self.gpus, self.device = gpus, device
        handle = c_void_p()
        with gpus.on(device):
            gpus.call("cuStreamCreateWithPriority", byref(handle), 0 if blocking else NON_BLOCKING, 0)
        self.handle: int = handle.value or 0
        gpus.later(device, lambda: gpus.cuda.cuStreamDestroy_v2(handle))

    def busy(self, seconds: float) -> None:
        """Gives the stream work that takes this time and changes no data."""
        with self.gpus.on(self.device):
            self.gpus.call("fake_busy", self.handle, seconds)

    def synchronize(self) -> None:
        with self.gpus.on(self.device):
            self.gpus.call("cuStreamSynchronize", self.handle)

    def capture(self, status: int = 1) -> None:
        with self.gpus.on(self.device):
            self.gpus.call("fake_capture", self.handle, status)

    def wait(self, other: Stream) -> None:
        """Orders later work of this stream after all work that the other stream has now."""
        event = c_void_p()
        with self.gpus.on(other.device):
            self.gpus.call("cuEventCreate", byref(event), 2)
            self.gpus.call("cuEventRecord", event, other.handle)
        with self.gpus.on(self.device):
            self.gpus.call("cuStreamWaitEvent", self.handle, event, 0)
            self.gpus.call("cuEventDestroy_v2", event)


class DeviceArray:
    """An array in a fake GPU's memory, with ``__cuda_array_interface__`` (version 3)."""

    def __init__(self, gpus: FakeGpus, shape: Any, dtype: Any, device: int = 0, stream: Stream | None = None) -> None:
        self.gpus, self.device, self.stream = gpus, device, stream
        self.shape: tuple[int, ...] = tuple(shape) if np.ndim(shape) else (int(shape),)
        self.dtype = np.dtype(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._address = c_ulonglong(0)
        if self.nbytes:
            with gpus.on(device):
                gpus.call("cuMemAlloc_v2", byref(self._address), self.nbytes)
        gpus.later(device, self._free)

    @property
    def ptr(self) -> int:
        return self._address.value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, False),
            "version": 3,
            "strides": None,
            "stream": None if self.stream is None else self.stream.handle,
        }

    def free(self) -> None:
        with self.gpus.on(self.device):
            self._free()

    def _free(self) -> None:
        if self.ptr:
            self.gpus.cuda.cuMemFree_v2(self._address)
            self._address = c_ulonglong(0)

    def write(self, values: Array, stream: Stream | None = None) -> None:
        """Copies from the host: at once from ordinary memory, in the stream from `pinned` memory."""
        source = np.ascontiguousarray(values, self.dtype)
        assert source.size == self.size
        self._copy(self.ptr, source.ctypes.data, stream)

    def copy(self, source: DeviceArray, stream: Stream | None = None) -> None:
        """Copies `source` into this array when the stream executes the copy."""
        assert source.nbytes == self.nbytes
        self._copy(self.ptr, source.ptr, stream)

    def numpy(self, stream: Stream | None = None) -> Array:
        """The values after all work of the stream; by default that is the array's stream, or the legacy default stream."""
        result = np.empty(self.shape, self.dtype)
        self._copy(result.ctypes.data, self.ptr, stream)
        return result

    def _copy(self, to: int, source: int, stream: Stream | None) -> None:
        stream = stream or self.stream
        with self.gpus.on(self.device):
            if self.nbytes:
                self.gpus.call("cuMemcpyAsync", to, source, self.nbytes, None if stream is None else stream.handle)


class LeakCheck:
    """Fake GPUs for a block of code that must free everything on them: `with LeakCheck() as gpus`."""

    def __enter__(self) -> FakeGpus:
        self.gpus = FakeGpus()
        return self.gpus

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        gc.collect()  # the frames of an exception may keep engines alive in a cycle
        self.gpus.close()
        if kind is None:  # an engine that ends waits only a moment for its thread that waits in the driver
            eventually(lambda: not self.gpus.leaks())
        leaks = self.gpus.leaks()
        self.gpus.cuda.fake_reset()
        if kind is None:
            assert not leaks, f"left on the fake GPUs:\n{leaks}"


@pytest.fixture
def fake_gpus() -> Iterator[FakeGpus]:
    """Two fake GPUs for one test, which must free everything on them."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with LeakCheck() as gpus:
        yield gpus
