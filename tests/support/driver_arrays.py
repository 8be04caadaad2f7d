"""Arrays in GPU memory that need only the CUDA driver: the real one, or the fake one that HVDLITE_CUDA_LIBRARY names.

They have __cuda_array_interface__, like the arrays of other libraries (Numba, RAPIDS). Copies to and from NumPy arrays wait for
all earlier work in the array's stream.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

_BUSY = 600  # CUDA_ERROR_NOT_READY
_SCRATCH = 2 << 30  # the size of memory that is only written to, in bytes
_FILL_SECONDS = 0.7e-3  # the approximate time in which a new GPU fills this memory


class DriverError(Exception):
    """A call of the driver failed."""


class _Driver:
    """Calls the driver's functions, and turns errors into exceptions. In a ``with`` block, the primary context of GPU `device`
    is current in the calling thread.
    """

    def __init__(self, device: int) -> None:
        self._library = ctypes.CDLL(os.environ.get("HVDLITE_CUDA_LIBRARY") or "libcuda.so.1")
        self._context = ctypes.c_void_p()
        number = ctypes.c_int()
        self("cuInit", ctypes.c_uint(0))
        self("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        self.device = device
        self.is_fake = hasattr(self._library, "fake_busy")
        self._scratch = ctypes.c_uint64()

    def scratch(self) -> ctypes.c_uint64:
        """The address of memory that is written to in order to keep the GPU busy."""
        if not self._scratch.value:
            self("cuMemAlloc_v2", ctypes.byref(self._scratch), ctypes.c_size_t(_SCRATCH))
        return self._scratch

    def __call__(self, name: str, *arguments: Any, allowed: Sequence[int] = ()) -> int:
        status = int(getattr(self._library, name)(*arguments))
        if status and status not in allowed:
            raise DriverError(f"{name} returned {status}")
        return status

    def __enter__(self) -> "_Driver":
        self("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *error: object) -> None:
        self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@functools.cache
def driver(device: int = 0) -> _Driver:
    """The driver for a GPU."""
    return _Driver(device)


class Stream:
    """A stream that is not ordered with the legacy default stream."""

    def __init__(self, device: int = 0) -> None:
        self._device = device
        self._handle = ctypes.c_void_p()
        with driver(device) as call:
            call("cuStreamCreateWithPriority", ctypes.byref(self._handle), ctypes.c_uint(1), ctypes.c_int(0))

    @property
    def address(self) -> int:
        return self._handle.value or 0

    def synchronize(self) -> None:
        with driver(self._device) as call:
            call("cuStreamSynchronize", self._handle)

    def keep_busy(self, seconds: float) -> None:
        """Gives the stream work that takes about `seconds`."""
        with driver(self._device) as call:
            if call.is_fake:
                call("fake_busy", self._handle, ctypes.c_double(seconds))
                return
            for _ in range(max(1, round(seconds / _FILL_SECONDS))):
                call("cuMemsetD8Async", call.scratch(), ctypes.c_ubyte(0), ctypes.c_size_t(_SCRATCH), self._handle)

    def event(self) -> "Event":
        """An event after all work that the stream has now."""
        return Event(self)

    def wait_for(self, other: "Stream") -> None:
        """Orders later work of this stream after all work that the other stream has now."""
        event = ctypes.c_void_p()
        with driver(self._device) as call:
            call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(2))
            call("cuEventRecord", event, other._handle)
            call("cuStreamWaitEvent", self._handle, event, ctypes.c_uint(0))
            call("cuEventDestroy_v2", event)

    def close(self) -> None:
        with driver(self._device) as call:
            call("cuStreamDestroy_v2", self._handle)


class Event:
    """A point in a stream's work."""

    def __init__(self, stream: Stream) -> None:
        self._device = stream._device
        self._handle = ctypes.c_void_p()
        with driver(self._device) as call:
            call("cuEventCreate", ctypes.byref(self._handle), ctypes.c_uint(2))
            call("cuEventRecord", self._handle, stream._handle)

    def passed(self) -> bool:
        """Has the GPU reached the event?"""
        with driver(self._device) as call:
            return call("cuEventQuery", self._handle, allowed=(_BUSY,)) == 0


class DriverArray:
    """A contiguous array on a GPU, or a view of one.

    Attributes:
        shape, dtype: the shape and dtype, as in NumPy. bfloat16 is not possible, because the interface cannot describe it.
        stream: the stream in which the array is written and read; None for the legacy default stream.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, stream: Stream | None = None, device: int = 0) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.stream = stream
        self.device = device
        self._address = ctypes.c_uint64()
        self._base: DriverArray | None = None
        self._written: list[Any] = []
        with driver(device) as call:
            call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, self.nbytes)))

    @classmethod
    def of(cls, array: Any, stream: Stream | None = None, device: int = 0) -> "DriverArray":
        """A copy of a NumPy array."""
        source = np.ascontiguousarray(array).reshape(np.shape(array))
        made = cls(source.shape, source.dtype, stream, device)
        made.write(source)
        return made

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def address(self) -> int:
        return int(self._address.value)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.nbytes else 0, False),
            "version": 3,
            "strides": None,
            "stream": (self.stream.address if self.stream else 1),
        }

    def tail(self, start: int) -> "DriverArray":
        """A view of a vector without its first `start` elements."""
        view = object.__new__(DriverArray)
        view.shape, view.dtype = (self.shape[0] - start,), self.dtype
        view.stream, view.device, view._base, view._written = self.stream, self.device, self, []
        view._address = ctypes.c_uint64(self.address + start * self.dtype.itemsize)
        return view

    def write(self, array: Any, wait: bool = True) -> None:
        """Copies a NumPy array of this shape and dtype into this array, in its stream."""
        source = np.ascontiguousarray(array, self.dtype)
        assert source.nbytes == self.nbytes
        self._written = [] if wait else [*self._written, source]  # the stream may still read these
        stream = ctypes.c_void_p(self.stream.address if self.stream else 0)
        if not self.nbytes:
            return
        with driver(self.device) as call:
            arguments = self._address, ctypes.c_uint64(source.ctypes.data), ctypes.c_size_t(self.nbytes)
            call("cuMemcpyAsync", *arguments, stream)
            if wait:
                call("cuStreamSynchronize", stream)

    def __del__(self) -> None:
        if getattr(self, "_base", self) is None and self._address.value:
            try:
                with driver(self.device) as call:
                    call("cuMemFree_v2", self._address)
            except DriverError:  # at the end of the process the driver may have ended
                pass


def read(holder: Any) -> Any:
    """A NumPy copy of an object with __cuda_array_interface__, made in the stream that the object names."""
    described = holder.__cuda_array_interface__
    array = np.empty(described["shape"], np.dtype(described["typestr"]))
    if not array.nbytes:
        return array
    stream = ctypes.c_void_p(described.get("stream") or 0)
    with driver(gpu_of(holder)) as call:
        source = ctypes.c_uint64(described["data"][0])
        call("cuMemcpyAsync", ctypes.c_uint64(array.ctypes.data), source, ctypes.c_size_t(array.nbytes), stream)
        call("cuStreamSynchronize", stream)
    return array


def gpu_of(holder: Any) -> int:
    """The driver's number of the GPU that has this object's memory; -1 for memory that is on no GPU."""
    if not hasattr(holder, "__cuda_array_interface__"):
        return -1
    memory, number = ctypes.c_int(-1), ctypes.c_int(-1)
    address = ctypes.c_uint64(holder.__cuda_array_interface__["data"][0])
    with driver() as call:
        if call("cuPointerGetAttribute", ctypes.byref(memory), ctypes.c_int(2), address, allowed=(1,)) or memory.value != 2:
            return -1  # page-locked host memory has the number of a GPU, too
        call("cuPointerGetAttribute", ctypes.byref(number), ctypes.c_int(9), address)
    return number.value
