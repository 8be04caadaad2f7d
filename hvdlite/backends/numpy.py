"""NumPy arrays, and whatever NumPy can view without a copy: DLPack and array-interface objects, scalars, lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.backends.base import CPU, RECYCLED_FROM, ROW_MAJOR, Exported, NewMemory
from hvdlite.dtypes import code_of_name, numpy_dtype
from hvdlite.errors import InvalidArgumentError, UnsupportedError

__all__ = ["BACKEND", "NumpyBackend"]

Array = npt.NDArray[Any]

_DLPACK_HOST_DEVICES = (1, 3, 11)  # CPU, and host memory pinned for CUDA or ROCm


class NumpyBackend:
    """Answers for NumPy arrays. C-contiguous arrays are used as they are, others through a copy."""

    name = "numpy"

    def __init__(self) -> None:
        self._codes: dict[np.dtype[Any], int] = {}

    def adopt(self, value: Any) -> Array:
        """A view of the value where it has an array's memory; a new array of a scalar or a list."""
        if type(value) is np.ndarray:
            return value
        if isinstance(value, np.ma.MaskedArray):
            raise InvalidArgumentError("a masked array cannot be sent: its mask would be lost; pass .filled(value)")
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        _refuse_device_memory(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"a {type(value).__name__} is not a tensor that hvdlite knows: {error}") from error

    def adopt_writable(self, value: Any) -> Array:
        """The array itself; nothing else can be written to in place."""
        if not isinstance(value, np.ndarray):
            _refuse_device_memory(value)
            raise InvalidArgumentError(
                f"an in-place operation needs a NumPy array (or a torch tensor), got a {type(value).__name__}; "
                "use the function without the trailing underscore"
            )
        if not value.flags.writeable:
            raise InvalidArgumentError(
                "an in-place operation cannot write to a read-only array; pass a copy or use the function without the "
                "trailing underscore"
            )
        return self.adopt(value)

    def export(self, tensor: Array, any_layout: bool) -> Exported:
        """Describes the array; `any_layout` makes no difference, the only layout used is row-major."""
        code = self._codes.get(tensor.dtype)
        if code is None:
            code = self._codes.setdefault(tensor.dtype, code_of_name(tensor.dtype.name, "NumPy array"))
        flags = tensor.flags
        if not (flags.c_contiguous and flags.aligned and tensor.dtype.isnative):
            tensor = np.array(tensor, dtype=tensor.dtype.newbyteorder("="), order="C", copy=True, subok=False)
        return Exported(tensor, tensor.shape, code, CPU, ROW_MAJOR, tensor)

    def empty_like(self, owner: Array, new_memory: NewMemory) -> tuple[Array, Array]:
        """A new C-contiguous array."""
        size = owner.nbytes
        out: Array = np.ndarray(owner.shape, owner.dtype, new_memory(size) if size >= RECYCLED_FROM else None)
        return out, out

    def wrap(self, data: memoryview, shape: Sequence[int], like: Array) -> Array:
        """An array over the engine's bytes."""
        if 0 in shape:
            return np.empty(shape, like.dtype)
        return np.frombuffer(data, dtype=like.dtype.newbyteorder("=")).reshape(shape)

    def copy_back(self, dense: Array, tensor: Array) -> None:
        """Assigns all elements."""
        tensor[...] = dense

    def mark_written(self, tensor: Array) -> None:
        """NumPy keeps no books about writes."""

    def integers(self, values: Sequence[int]) -> Array:
        """An int32 array."""
        return np.array(values, dtype=np.int32)

    def dtype_name(self, tensor: Array) -> str:
        """NumPy's name of the dtype."""
        return str(tensor.dtype.name)

    def cast(self, tensor: Array, dtype_name: str) -> Array:
        """A converted copy."""
        return tensor.astype(numpy_dtype(code_of_name(dtype_name)))


def _refuse_device_memory(value: Any) -> None:
    kind = type(value)
    where = ""
    if hasattr(value, "__cuda_array_interface__"):
        where = "CUDA memory"
    elif hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) not in _DLPACK_HOST_DEVICES:
        where = f"the memory of a device (DLPack device type {int(value.__dlpack_device__()[0])})"
    if where:
        raise UnsupportedError(
            f"this {kind.__module__}.{kind.__qualname__} is in {where}, which hvdlite cannot send yet (GPU tensors "
            "come with a later version); copy it to host memory first, which hvdlite does not do silently"
        )


BACKEND = NumpyBackend()
