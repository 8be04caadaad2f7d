"""The backend for CuPy arrays. It is imported only after the program has imported CuPy, and never imports CuPy itself."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdlite.backends.base import ROW_MAJOR, Exported, NewGpuMemory, TensorBackend, require_own_elements
from hvdlite.dtypes import code_of_name, elements_of, numpy_dtype


class _ExternalStream(int):
    """A raw handle that keeps CuPy's stream object alive, because an operation may outlast the user's ``with`` statement."""

    owner: Any


class CupyBackend(TensorBackend):
    """The backend for cupy.ndarray.

    C-contiguous arrays are used without a copy, and others are copied. Results are arrays in memory of CuPy's pool.
    """

    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._codes: dict[np.dtype[Any], int] = {}

    def adopt(self, value: Any) -> Any:
        """The array itself."""
        return value

    def adopt_writable(self, value: Any) -> Any:
        """The array itself. Refuses an array whose elements share memory (``broadcast_to``)."""
        require_own_elements("a broadcast array", value.shape, value.strides, "copy")
        return value

    def export(self, tensor: Any, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the array. `any_layout` has no effect, because the only layout is row-major."""
        code, layout = self._codes.get(tensor.dtype), ROW_MAJOR
        if code is None:
            code, layout = elements_of(tensor.dtype.name, tensor.dtype.itemsize, any_dtype, "CuPy array")
            if layout == ROW_MAJOR:
                self._codes[tensor.dtype] = code
        if not tensor.flags.c_contiguous:
            with tensor.device:
                tensor = self._cupy.ascontiguousarray(tensor)
        device = int(tensor.device.id)
        return Exported(tensor.data.ptr, tensor.shape, code, device, layout, tensor, self._stream(device))

    def _stream(self, device: int) -> int:
        with self._cupy.cuda.Device(device):
            stream = self._cupy.cuda.get_current_stream()
        handle = _ExternalStream(stream.ptr)
        handle.owner = stream
        return handle

    def empty_on_gpu(self, shape: Sequence[int], like: Any, new_memory: NewGpuMemory) -> tuple[Any, int]:
        """A new C-contiguous array."""
        with like.device:
            out = self._cupy.empty(tuple(shape), dtype=like.dtype)
        return out, out.data.ptr

    def stream_now(self, exported: Exported) -> int:
        """CuPy's current stream on the array's GPU."""
        return self._stream(exported.device)

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Assigns all elements."""
        with tensor.device:
            tensor[...] = dense

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """A converted copy."""
        with tensor.device:
            return tensor.astype(numpy_dtype(code_of_name(dtype_name)))


BACKEND = CupyBackend(sys.modules["cupy"])
