"""A small replacement for CuPy, which uses the CUDA driver that HVDLITE_CUDA_LIBRARY names. That may be the fake driver.

It has the parts of CuPy that hvdlite's backend and its tests use: arrays with strides, current devices and streams, and a pool.
Like CuPy's pool, it gives freed memory to the next array of the same stream without waiting for the GPU. Values are computed on
the host after a wait for the current stream. So code that does not order that stream after an operation reads old values.
"""

import ctypes
import sys
import threading
from collections import defaultdict
from types import ModuleType
from typing import Any

import numpy as np
from support.driver_arrays import driver

_here = threading.local()
_pool: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)


def _stack(name: str) -> list[Any]:
    if not hasattr(_here, name):
        setattr(_here, name, [])
    found: list[Any] = getattr(_here, name)
    return found


class Device:
    """A GPU. In a ``with`` block it is the current GPU."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _stack("devices")[-1].id if device is None and _stack("devices") else device or 0

    def use(self) -> None:
        _stack("devices")[:] = [self]

    def __enter__(self) -> "Device":
        _stack("devices").append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _stack("devices").pop()


class Stream:
    """A stream of the current GPU. In a ``with`` block it is the current stream."""

    def __init__(self, null: bool = False) -> None:
        self.ptr = 0
        self.device_id = Device().id
        if not null:
            handle = ctypes.c_void_p()
            with driver(self.device_id) as call:
                call("cuStreamCreateWithPriority", ctypes.byref(handle), ctypes.c_uint(1), ctypes.c_int(0))
            self.ptr = handle.value or 0

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            with driver(self.device_id) as call:
                call("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))

    def synchronize(self) -> None:
        with driver(self.device_id) as call:
            call("cuStreamSynchronize", ctypes.c_void_p(self.ptr))

    def __enter__(self) -> "Stream":
        _stack("streams").append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _stack("streams").pop()


def get_current_stream() -> Stream:
    """The current stream of the current GPU."""
    device = Device().id
    return next((stream for stream in reversed(_stack("streams")) if stream.device_id == device), Stream(null=True))


class _Memory:
    """Memory of the pool of one GPU and stream."""

    def __init__(self, nbytes: int) -> None:
        self.key = (Device().id, get_current_stream().ptr, nbytes)
        kept = _pool[self.key]
        if not kept and nbytes:
            address = ctypes.c_uint64()
            with driver(self.key[0]) as call:
                call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
            kept.append(address.value)
        self.address = kept.pop() if nbytes else 0

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            _pool[self.key].append(self.address)


def free_all_blocks() -> None:
    """Frees all memory of the pool that no array uses."""
    for (device, _, _), addresses in _pool.items():
        with driver(device) as call:
            while addresses:
                call("cuMemFree_v2", ctypes.c_uint64(addresses.pop()))


class _Pointer:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class ndarray:  # noqa: N801 - CuPy's name
    """An array, or a view of one."""

    def __init__(self, memory: _Memory, ptr: int, shape: Any, strides: Any, dtype: Any) -> None:
        self._memory = memory
        self.data = _Pointer(ptr)
        self.shape, self.strides, self.dtype = tuple(shape), tuple(strides), np.dtype(dtype)
        self.device = Device(memory.key[0])

    def _extent(self) -> int:
        if 0 in self.shape:
            return 0
        return sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize

    @property
    def flags(self) -> Any:
        return np.ndarray(self.shape, self.dtype, bytes(self._extent() or 1), strides=self.strides).flags

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def T(self) -> "ndarray":  # noqa: N802 - NumPy's name
        return ndarray(self._memory, self.data.ptr, self.shape[::-1], self.strides[::-1], self.dtype)

    def __getitem__(self, rows: slice) -> "ndarray":
        start, stop, step = rows.indices(self.shape[0])
        shape = (len(range(start, stop, step)), *self.shape[1:])
        strides = (self.strides[0] * step, *self.strides[1:])
        return ndarray(self._memory, self.data.ptr + start * self.strides[0], shape, strides, self.dtype)

    def __setitem__(self, everything: Any, value: "ndarray") -> None:
        assert everything is Ellipsis
        host = bytearray(self._extent())
        _copy(self, host, from_gpu=True)
        np.ndarray(self.shape, self.dtype, host, strides=self.strides)[...] = asnumpy(value)
        _copy(self, host, from_gpu=False)

    def astype(self, dtype: Any) -> "ndarray":
        with self.device:
            return asarray(asnumpy(self).astype(dtype))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AssertionError("CuPy's arrays have a backend of their own")


def _copy(array: ndarray, host: bytearray, from_gpu: bool) -> None:
    """Copies the memory that an array spans from the GPU to the host or back, in the current stream, and waits for the copy."""
    if not host:
        return
    near = ctypes.c_uint64(ctypes.addressof((ctypes.c_char * len(host)).from_buffer(host)))
    far = ctypes.c_uint64(array.data.ptr)
    with array.device, driver(array.device.id) as call:
        stream = ctypes.c_void_p(get_current_stream().ptr)
        call("cuMemcpyAsync", *((near, far) if from_gpu else (far, near)), ctypes.c_size_t(len(host)), stream)
        call("cuStreamSynchronize", stream)


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """A new array on the current GPU, in memory for the current stream."""
    like = np.empty(shape, dtype)
    memory = _Memory(like.nbytes)
    return ndarray(memory, memory.address, like.shape, like.strides, like.dtype)


def asarray(values: Any) -> ndarray:
    """A copy on the current GPU."""
    source = np.array(values, order="C")
    out = empty(source.shape, source.dtype)
    _copy(out, bytearray(source.tobytes()), from_gpu=False)
    return out


def asnumpy(array: Any) -> Any:
    """A copy on the host."""
    if not isinstance(array, ndarray):
        return np.asarray(array)
    host = bytearray(array._extent())
    _copy(array, host, from_gpu=True)
    return np.ndarray(array.shape, array.dtype, bytes(host) or None, strides=array.strides).copy()


def ascontiguousarray(array: ndarray) -> ndarray:
    """A dense copy on the current GPU."""
    return asarray(asnumpy(array))


def broadcast_to(array: ndarray, shape: Any) -> ndarray:
    """A view whose elements share memory."""
    strides = (*[0] * (len(shape) - len(array.shape)), *array.strides)
    return ndarray(array._memory, array.data.ptr, shape, strides, array.dtype)


def install() -> ModuleType:
    """Makes this module the CuPy of this process."""
    module = ModuleType("cupy")
    for name in ("ndarray", "empty", "asarray", "asnumpy", "ascontiguousarray", "broadcast_to", "free_all_blocks"):
        setattr(module, name, globals()[name])
    module.cuda = ModuleType("cupy.cuda")  # type: ignore[attr-defined]
    for name in ("Device", "Stream", "get_current_stream"):
        setattr(module.cuda, name, globals()[name])
    sys.modules["cupy"] = module
    return module
