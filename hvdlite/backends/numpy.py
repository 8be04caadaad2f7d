"""The backend for NumPy arrays, for objects with DLPack or the array interface in host memory, and for scalars and lists."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.backends.base import (
    CPU,
    RECYCLED_FROM,
    ROW_MAJOR,
    Exported,
    NewMemory,
    Plain,
    TensorBackend,
    require_own_elements,
)
from hvdlite.dtypes import DType, code_of_name, elements_of, numpy_dtype
from hvdlite.errors import InvalidArgumentError, UnsupportedError

Array = npt.NDArray[Any]

_DLPACK_HOST_DEVICES = (1, 3, 11)  # CPU, and host memory pinned for CUDA or ROCm
_DLPACK_CUDA_DEVICES = (2, 13)  # CUDA, and its managed memory

# Kinds of dtypes that may be moved as bytes if the engine does not know them: floats, complex numbers, dates, durations.
_MOVABLE = "fcMm"
_OF_A_PACKAGE = 2  # `numpy.dtype.isbuiltin` of a dtype that is not NumPy's own, such as those of ml_dtypes
# Dtypes of TensorFlow that are refused: DLPack ends the process for the first three; NumPy takes the others for integers.
_REFUSED = ("string", "resource", "variant", "qint8", "quint8", "qint16", "quint16", "qint32")


class NumpyBackend(TensorBackend):
    """The backend for NumPy arrays. C-contiguous arrays are used without a copy, and others are copied."""

    name = "numpy"

    def __init__(self) -> None:
        # The dtypes of native byte order; `export` adds dtypes of other packages. The keys are the objects that arrays have as
        # their dtype, because a lookup by another, equal object takes longer.
        own = (dtype for dtype in DType if dtype is not DType.BFLOAT16)
        self._codes: dict[np.dtype[Any], int] = {np.empty(0, dtype.label).dtype: int(dtype) for dtype in own}

    def adopt(self, value: Any) -> Array:
        """A view of the value if it has an array's memory; otherwise, for a scalar or a list, a new array."""
        if type(value) is np.ndarray:
            return value
        if isinstance(value, np.ma.MaskedArray):
            raise InvalidArgumentError("a masked array cannot be sent: its mask would be lost; pass .filled(value)")
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        if value is None:
            raise InvalidArgumentError(
                "None is no tensor: pass a tensor on every rank, or send any object with broadcast_object or allgather_object"
            )
        try:
            return _converted(value)
        except Exception as error:
            refusal = _refusal_of_traced(value)
            if refusal is not None:
                raise refusal from error
            raise

    def adopt_writable(self, value: Any) -> Array:
        """The array itself. Refuses objects that are no arrays, read-only arrays, and arrays whose elements share memory."""
        if type(value) is np.ndarray and value.flags.carray:  # C-contiguous, aligned and writable
            return value
        if not isinstance(value, np.ndarray):
            _refuse_device_memory(value)
            raise InvalidArgumentError(
                f"an in-place operation needs a NumPy array (or a torch tensor), got a {type(value).__name__}; use the "
                "function without the trailing underscore, or, for recv of a TensorFlow or JAX tensor, that of "
                "hvdlite.tensorflow or hvdlite.jax"
            )
        if not value.flags.writeable:
            raise InvalidArgumentError(
                "an in-place operation cannot write to a read-only array; pass a copy or use the function without the "
                "trailing underscore"
            )
        require_own_elements("a broadcast array", value.shape, value.strides, "copy")
        return self.adopt(value)

    def plain(self, kind: type) -> Plain | None:
        """The description of ``numpy.ndarray``, which has the buffer protocol; None for other types."""
        if kind is not np.ndarray:
            return None
        return Plain(np.empty_like, self.empty_like, self.wrap, RECYCLED_FROM, None, None, self._codes, None, b"", None)

    def export(self, tensor: Array, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the array. `any_layout` has no effect, because the only layout is row-major."""
        code = self._codes.get(tensor.dtype)
        if code is not None:
            flags = tensor.flags
            # carray, in one call: C-contiguous, aligned and writable.
            if flags.carray or (flags.c_contiguous and flags.aligned):
                return Exported(tensor, tensor.shape, code, CPU, ROW_MAJOR, tensor, 0)
        dtype = tensor.dtype.newbyteorder("=")
        any_dtype = any_dtype and (dtype.kind in _MOVABLE or dtype.isbuiltin == _OF_A_PACKAGE)
        code, layout = elements_of(dtype.name, dtype.itemsize, any_dtype, "NumPy array")
        if layout == ROW_MAJOR:
            self._codes.setdefault(dtype, code)
        if not (tensor.dtype.isnative and tensor.flags.c_contiguous and tensor.flags.aligned):
            tensor = np.array(tensor, dtype=dtype, order="C", copy=True, subok=False)
        return Exported(tensor, tensor.shape, code, CPU, layout, tensor, 0)

    def empty_like(self, owner: Array, new_memory: NewMemory) -> tuple[Array, Array]:
        """A new C-contiguous array."""
        size = owner.nbytes
        out: Array = np.ndarray(owner.shape, owner.dtype, new_memory(size) if size >= RECYCLED_FROM else None)
        return out, out

    def wrap(self, data: memoryview, shape: Sequence[int], like: Array) -> Array:
        """An array over memory of the engine."""
        out: Array = np.ndarray(shape, like.dtype.newbyteorder("="), data)
        return out

    def copy_back(self, dense: Array, tensor: Array) -> None:
        """Assigns all elements."""
        tensor[...] = dense

    def cast(self, tensor: Array, dtype_name: str) -> Array:
        """A converted copy."""
        return tensor.astype(numpy_dtype(code_of_name(dtype_name)))


def _converted(value: Any) -> Array:
    dtype = getattr(getattr(value, "dtype", None), "name", None)
    if dtype in _REFUSED:
        code_of_name(dtype)
    _refuse_device_memory(value)
    try:
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)
            except Exception:  # for a dtype that DLPack or NumPy does not have, such as TensorFlow's float8 or JAX's bfloat16
                if not hasattr(value, "__array__"):
                    raise
        return np.asarray(value)
    except (TypeError, ValueError, BufferError) as error:
        raise _not_converted(value, error) from error


def _not_converted(value: Any, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"hvdlite cannot convert a {type(value).__name__} to a tensor: {error}")


def _refusal_of_traced(value: Any) -> UnsupportedError | None:
    """The error for a value that has no elements, because JAX or TensorFlow is tracing the program; None for others."""
    jax, tensorflow = sys.modules.get("jax"), sys.modules.get("tensorflow")
    if isinstance(value, getattr(getattr(jax, "core", None), "Tracer", ())):
        return UnsupportedError(
            "this array has no elements yet, because JAX is tracing the function: call hvdlite outside of jax.jit and "
            "jax.grad, or use hvdlite.jax.grouped_allreduce or grouped_broadcast, which become a part of the compiled program"
        )
    is_symbolic = getattr(tensorflow, "is_symbolic_tensor", None)
    if is_symbolic is not None and is_symbolic(value):
        return UnsupportedError(
            "this tensor has no elements yet, because TensorFlow is building a graph: use the functions of "
            "hvdlite.tensorflow, which become operations of the graph, or call hvdlite outside of tf.function"
        )
    return None


def _refuse_device_memory(value: Any) -> None:
    if not hasattr(value, "__dlpack_device__"):
        return
    try:
        device = int(value.__dlpack_device__()[0])
    except Exception as error:  # of the framework, such as JAX's for an array on several devices
        raise _not_converted(value, error) from error
    if device not in _DLPACK_HOST_DEVICES:
        kind = type(value)
        advice = "copy it to host memory first, because hvdlite does not do so silently"
        if device in _DLPACK_CUDA_DEVICES:
            advice = (
                "in CUDA memory hvdlite supports PyTorch, CuPy, and objects with __cuda_array_interface__: pass "
                "torch.from_dlpack(x) or cupy.from_dlpack(x), which copy nothing"
            )
        raise UnsupportedError(
            f"this {kind.__module__}.{kind.__qualname__} is in the memory of a device (DLPack device type {device}); {advice}"
        )


BACKEND = NumpyBackend()
