"""Arrays in GPU memory of any library with ``__cuda_array_interface__``, such as Numba.

The engine uses the memory of the arrays without a copy, so they must be C-contiguous. New results are `DeviceArray` objects.
These libraries can view such results without a copy (``numba.cuda.as_cuda_array``, ``cupy.asarray``, ``torch.as_tensor``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from hvdlite.backends.base import SOME_GPU, Exported, NewGpuMemory, TensorBackend
from hvdlite.dtypes import elements_of
from hvdlite.errors import InvalidArgumentError, UnsupportedError


class DeviceArray:
    """A C-contiguous array in the memory of a GPU. It exports ``__cuda_array_interface__``, version 3.

    The memory is freed when the last reference to the array is gone. Views that other libraries make hold a reference.

    Attributes:
        shape: the shape, a tuple of ints.
        dtype: NumPy's dtype of the elements.
        pointer: address of the first element.
        stream: raw handle of the CUDA stream in whose order the array is ready; 0 is the legacy default stream.
        readonly: True: in-place operations refuse the array.
    """

    __slots__ = ("_memory", "dtype", "pointer", "readonly", "shape", "stream")

    def __init__(
        self, memory: Any, pointer: int, shape: tuple[int, ...], dtype: "np.dtype[Any]", stream: int, readonly: bool = False
    ) -> None:
        self._memory = memory
        self.pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.stream = stream
        self.readonly = readonly

    @property
    def nbytes(self) -> int:
        """The size of all elements, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, self.readonly),
            "strides": None,
            "stream": int(self.stream) or _LEGACY_STREAM,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"<hvdlite.DeviceArray {self.dtype.name} {list(self.shape)} in CUDA memory>"


_LEGACY_STREAM = 1  # the number of the legacy default stream in the interface; in the driver it is 0


class CudaArrayBackend(TensorBackend):
    """The backend for all objects with ``__cuda_array_interface__``. A tensor is a `DeviceArray` over the object's memory."""

    name = "CUDA array"

    def adopt(self, value: Any) -> DeviceArray:
        """A view of the value."""
        if type(value) is DeviceArray:
            return value
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        interface = value.__cuda_array_interface__
        shape = tuple(interface["shape"])
        dtype = np.dtype(interface["typestr"])
        if interface.get("mask") is not None:
            raise InvalidArgumentError(f"this {kind} has a mask, which would be lost: pass an array without a mask")
        if not dtype.isnative:
            raise InvalidArgumentError(
                f"the elements of this {kind} ({interface['typestr']}) do not have the machine's byte order"
            )
        _require_contiguous(kind, shape, interface.get("strides"), dtype.itemsize)
        pointer, readonly = interface["data"]
        return DeviceArray(value, pointer or 0, shape, dtype, _stream_of(interface), bool(readonly))

    def adopt_writable(self, value: Any) -> DeviceArray:
        """As `adopt`, but refuses a read-only array."""
        adopted = self.adopt(value)
        if adopted.readonly:
            raise InvalidArgumentError(
                "an in-place operation cannot write to a read-only array; pass a copy or use the function without the trailing "
                "underscore"
            )
        return adopted

    def export(self, tensor: DeviceArray, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the array. The interface does not say which GPU has the array; the engine finds it by the address."""
        code, layout = elements_of(tensor.dtype.name, tensor.dtype.itemsize, any_dtype, "CUDA array")
        return Exported(tensor.pointer, tensor.shape, code, SOME_GPU, layout, tensor, tensor.stream)

    def empty_on_gpu(self, shape: Sequence[int], like: DeviceArray, new_memory: NewGpuMemory) -> tuple[DeviceArray, int]:
        """An array in memory of the engine."""
        nbytes = math.prod(shape) * like.dtype.itemsize
        memory = new_memory(nbytes) if nbytes else None
        pointer = 0 if memory is None else memory.address
        return DeviceArray(memory, pointer, tuple(shape), like.dtype, like.stream), pointer

    def cast(self, tensor: DeviceArray, dtype_name: str) -> NoReturn:
        """Raises UnsupportedError, because hvdlite has no code that converts dtypes on a GPU."""
        raise UnsupportedError(
            f"hvdlite cannot convert an array in CUDA memory from {tensor.dtype.name} to {dtype_name}: convert it yourself, or "
            "pass an array of CuPy or a tensor of PyTorch"
        )


def _require_contiguous(kind: str, shape: tuple[int, ...], strides: Sequence[int] | None, itemsize: int) -> None:
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if extent > 1 and stride != expected and 0 not in shape:
            raise InvalidArgumentError(
                f"this {kind} of shape {list(shape)} is not C-contiguous (its strides are {list(strides or ())} bytes): pass a "
                "contiguous copy, because hvdlite cannot make one"
            )
        expected *= extent


def _stream_of(interface: Mapping[str, Any]) -> int:
    """The driver's handle of the stream in whose order the array is ready.

    If the interface has no stream (it is None, or the version is too old), the array is ready already, or its work is in the
    default stream. Then the result is 0, the legacy default stream, in whose order the array is ready in both cases.
    """
    stream = interface.get("stream")
    return 0 if stream in (None, _LEGACY_STREAM) else int(stream)


BACKEND = CudaArrayBackend()
