"""The interface between hvdlite and the tensors of a framework.

`hvdlite.ops` uses `TensorBackend` for the tensors of every framework. A backend only describes, makes and converts tensors of
one framework: it knows no engine, no rank and no name.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hvdlite.errors import InternalError, InvalidArgumentError

CPU = -1  # the engine's device number for host memory
SOME_GPU = -2  # the backend does not know which GPU has the memory: the engine finds it by the address

# Memory layouts. The engine only checks that all ranks have the same layout. Other codes come from
# `hvdlite.dtypes.elements_of`, for row-major tensors of dtypes that the engine does not know.
ROW_MAJOR = 0
CHANNELS_LAST = 2
CHANNELS_LAST_3D = 3

# Outputs of at least this number of bytes are in memory of the engine, which reuses the memory (OutputCache::kSmallest).
RECYCLED_FROM = 1 << 20

# A function that allocates a given number of bytes of writable, uninitialized memory. Arrays over the memory keep it alive.
NewMemory = Callable[[int], memoryview]


class GpuMemory(Protocol):
    """Memory of the engine on a GPU. It is freed when no user holds this object any more."""

    @property
    def address(self) -> int:
        """The address of the first byte."""


# A function that allocates a given number of bytes on the GPU of the operation's tensor. The memory may be used in the order of
# the tensor's stream.
NewGpuMemory = Callable[[int], GpuMemory]


class Exported(NamedTuple):
    """A tensor as the engine sees it.

    Attributes:
        pointer: address of the first element, or the tensor itself if it has Python's buffer protocol. (The engine finds the
            address from the buffer in less time than NumPy needs to return it.) The memory is dense in `layout`.
        shape: the tensor's shape as the user sees it, in any layout.
        dtype: code of the dtype (`hvdlite.dtypes.DType`).
        device: `CPU`, the number of a GPU, or `SOME_GPU`.
        layout: `ROW_MAJOR`, `CHANNELS_LAST`, `CHANNELS_LAST_3D`, or a code of `elements_of` for a dtype that the engine does
            not know.
        owner: the tensor whose memory this is: the user's tensor, or a private dense copy of it.
        stream: on a GPU, the raw handle of the CUDA stream in whose order the memory is ready; 0 is the legacy default stream.
    """

    pointer: Any
    shape: tuple[int, ...]
    dtype: int
    device: int
    layout: int
    owner: Any
    stream: int = 0


class Plain(NamedTuple):
    """Describes a type whose values native code can read by itself (`_engine.Engine.allreduce`). Subclasses do not count.

    Attributes:
        new_like: a function that makes a tensor like the given one in memory of the framework, for less than `RECYCLED_FROM`
            bytes. None if there is an `exchange`: then native code allocates the memory, and the framework wraps this memory,
            which takes less time.
        empty_like: `TensorBackend.empty_like`, for larger tensors.
        wrap: `TensorBackend.wrap`. Native code calls it only if there is no `exchange`, or no element.
        recycled_from: `RECYCLED_FROM`.
        mark_written: as `TensorBackend.mark_written`, and also takes a list of the tensors of a group; None: nothing to do.
        unless: name of a method that returns True if a tensor's value is not what its memory holds, so that native code does
            not handle it; None if there are no such tensors.
        dtypes: for types with Python's buffer protocol, the codes of dtypes by the value's attribute ``dtype``.
        exchange: for other types, the capsule in ``__dlpack_c_exchange_api__``.
        codes: for `exchange`, a table of `hvdlite.dtypes.dlpack_codes`. Native code does not handle other dtypes.
        mode: a dict, a key, and the key's usual value. While the dict has another value at this key, native code handles no
            tensors, because tensors may then mean more than their memory. None: there is no such mode.
    """

    new_like: Callable[[Any], Any] | None
    empty_like: Callable[[Any, Any], tuple[Any, Any]]
    wrap: Callable[[memoryview, Sequence[int], Any], Any]
    recycled_from: int
    mark_written: Callable[[Any | list[Any]], None] | None
    unless: str | None
    dtypes: dict[Any, int] | None
    exchange: object
    codes: bytes
    mode: tuple[dict[str, Any], str, object] | None


def require_own_elements(tensor: str, shape: Sequence[int], strides: Sequence[int], copy: str) -> None:
    """Refuses a broadcast or expanded tensor, because its elements share memory, so that it cannot take a result.

    Args:
        tensor: a noun for the tensor, with its article, for the error text.
        shape: the tensor's shape.
        strides: the strides of the tensor's dimensions, in any unit.
        copy: name of the method that makes a copy with separate elements.

    Raises:
        InvalidArgumentError: several elements have the same address.
    """
    if any(step == 0 and extent > 1 for step, extent in zip(strides, shape, strict=True)):
        raise InvalidArgumentError(
            f"an in-place operation cannot write to {tensor} (shape {list(shape)}, strides {list(strides)}: several elements "
            f"share memory); pass its .{copy}() or use the function without the trailing underscore"
        )


class TensorBackend(Protocol):
    """The operations on the tensors of one framework that hvdlite needs. All tensors have that framework's type.

    The methods with a body are defaults, for backends that do not define these methods.

    Attributes:
        name: the framework's name, for error texts.
    """

    name: str

    def adopt(self, value: Any) -> Any:
        """Converts an argument to a tensor, without a copy if possible. For operations that do not write to the argument.

        Raises:
            UnsupportedError: the value is in the memory of a device that hvdlite cannot reach.
            InvalidArgumentError: the value cannot be converted to a tensor.
        """

    def adopt_writable(self, value: Any) -> Any:
        """Converts an argument of an in-place operation to a tensor with the same memory.

        Raises:
            UnsupportedError: as for `adopt`.
            InvalidArgumentError: the value cannot be written to.
        """

    def export(self, tensor: Any, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the memory of the tensor, or of a dense private copy of the tensor.

        Args:
            tensor: a result of `adopt` or `adopt_writable`.
            any_layout: True: the memory may be dense in an order other than row-major.
            any_dtype: True: the operation only moves the elements, so the engine need not know their dtype.

        Raises:
            InvalidArgumentError: the engine does not know the dtype, and must know it or cannot move the elements as bytes.
            UnsupportedError: the tensor has no memory, as inside of ``torch.func`` transformations.
        """

    def plain(self, kind: type) -> Plain | None:
        """The description of this type for native code; None if native code does not handle it."""
        return None

    def empty_like(self, owner: Any, new_memory: Any) -> tuple[Any, Any]:
        """Makes a tensor with the shape, dtype and layout of `owner`. Returns the tensor and its pointer (`Exported.pointer`).

        Args:
            owner: an `Exported.owner`.
            new_memory: a `NewMemory`, for tensors of at least `RECYCLED_FROM` bytes. If the owner is on a GPU, a
                `NewGpuMemory`, for backends without an allocator of their own.
        """
        return self.empty_on_gpu(owner.shape, owner, new_memory)

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor of this shape over memory of the engine, without a copy. It has the dtype of the tensor `like`."""
        raise InternalError(f"a result in host memory for a tensor of {self.name}")

    def empty_on_gpu(self, shape: Sequence[int], like: Any, new_memory: NewGpuMemory) -> tuple[Any, int]:
        """Makes a dense tensor of this shape with the dtype and the GPU of the tensor `like`. Returns it with its pointer."""
        raise InternalError(f"a result on a GPU for a tensor of {self.name}")

    def stream_now(self, exported: Exported) -> int:
        """The CUDA stream in whose order this thread uses the tensor now, in the form of `Exported.stream`."""
        return exported.stream

    def use_in_current_stream(self, tensor: Any) -> None:
        """Tells the framework's allocator that the current stream uses a tensor that was made in another stream.

        It does nothing in host memory, with CUDA arrays (whose only stream is their own), and with CuPy, where a program must
        order its streams itself if a stream uses an array of another stream.
        """
        return

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Copies the elements of `dense`, a private copy that `export` made, back to the user's tensor."""
        raise InternalError(f"a private copy of a tensor of {self.name}")

    def mark_written(self, tensor: Any) -> None:
        """Tells the framework that the engine has written to the tensor's memory. Does nothing if writes are not recorded."""
        return

    def integers(self, values: Sequence[int]) -> Any:
        """A one-dimensional int32 tensor of these numbers of rows, in host memory, because programs read them there."""
        return np.array(values, dtype=np.int32)

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name, such as ``"float32"``."""
        return str(tensor.dtype.name)

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """The tensor converted to another dtype.

        Raises:
            UnsupportedError: the framework cannot convert to that dtype.
        """
