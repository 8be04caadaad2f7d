"""The interface between hvdlite and the tensors of a framework.

`hvdlite.ops` is written once over `TensorBackend`. A backend answers questions about one framework's tensors and does
nothing else: it knows no engine, no rank and no name.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from hvdlite.errors import InvalidArgumentError

__all__ = [
    "CHANNELS_LAST",
    "CHANNELS_LAST_3D",
    "CPU",
    "RECYCLED_FROM",
    "ROW_MAJOR",
    "SOME_GPU",
    "Exported",
    "GpuMemory",
    "NewGpuMemory",
    "NewMemory",
    "Plain",
    "TensorBackend",
    "require_own_elements",
]

CPU = -1  # the engine's device number for host memory
SOME_GPU = -2  # of memory on a GPU that the backend cannot name: the engine finds it by the address

# Memory layouts; the engine only checks that all ranks have the same one. Those of `hvdlite.dtypes.elements_of` are row-major.
ROW_MAJOR = 0
CHANNELS_LAST = 2
CHANNELS_LAST_3D = 3

# Outputs of at least this many bytes lie in memory of the engine, which recycles it (OutputCache::kSmallest).
RECYCLED_FROM = 1 << 20

# Gives writable, uninitialised memory of this many bytes. Arrays over it keep it alive.
NewMemory = Callable[[int], memoryview]


class GpuMemory(Protocol):
    """Memory of the engine on a GPU. It is freed when no user holds this object any more."""

    @property
    def address(self) -> int:
        """The address of the first byte."""


# The same in the memory of the GPU that the operation's tensor is on, usable in the order of the tensor's stream.
NewGpuMemory = Callable[[int], GpuMemory]


class Exported(NamedTuple):
    """A tensor as the engine sees it.

    Attributes:
        pointer: address of the first element, where dense memory of the layout begins; or the tensor, if it has Python's
            buffer protocol: the engine finds the address itself, in less time than NumPy takes to tell it.
        shape: extents as the user sees them, in any layout.
        dtype: code of the element type (`hvdlite.dtypes.DType`).
        device: `CPU`, the number of a GPU, or `SOME_GPU`.
        layout: `ROW_MAJOR`, another code above, or what stands for a dtype that the engine does not know.
        owner: the tensor whose memory this is. If it is not the user's tensor it is a private dense copy of it.
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
    """A type whose values native code can describe by itself (`_engine.Engine.allreduce_now`): those of this very type.

    Attributes:
        new_like: a new one like this one, in memory of the framework's; for less than `RECYCLED_FROM` bytes. None where
            there is an ``exchange``: native code has the framework adopt its memory, which takes less time.
        empty_like: as `TensorBackend.empty_like`, for others.
        recycled_from: `RECYCLED_FROM`.
        mark_written: as `TensorBackend.mark_written`, and takes a list of a group's as well; None where that does nothing.
        unless: name of a method that tells whether a value differs from its memory; None if it never does.
        dtypes: the codes of those with Python's buffer protocol, by their attribute ``dtype``.
        exchange: of others, the capsule in ``__dlpack_c_exchange_api__``.
        codes: a table of `hvdlite.dtypes.dlpack_codes` for it; other dtypes are not plain.
        mode: a dict, a key and its usual value: while there is another object, any value may stand for more than its memory; or
            None.
    """

    new_like: Callable[[Any], Any] | None
    empty_like: Callable[[Any, Any], tuple[Any, Any]]
    recycled_from: int
    mark_written: Callable[[Any | list[Any]], None] | None
    unless: str | None
    dtypes: dict[Any, int] | None
    exchange: object
    codes: bytes
    mode: tuple[dict[str, Any], str, object] | None


def require_own_elements(tensor: str, shape: Sequence[int], strides: Sequence[int], copy: str) -> None:
    """Refuses a broadcast or expanded tensor, whose elements share memory and so cannot hold a result.

    Args:
        tensor: its name in the text, with the article.
        shape: its extents.
        strides: of its dimensions, in any unit.
        copy: the method that makes a tensor with elements of its own.

    Raises:
        InvalidArgumentError: several of its elements are one.
    """
    if any(step == 0 and extent > 1 for step, extent in zip(strides, shape, strict=True)):
        raise InvalidArgumentError(
            f"an in-place operation cannot write to {tensor} (shape {list(shape)}, strides {list(strides)}: several elements "
            f"are one); pass .{copy}() of it or use the function without the trailing underscore"
        )


class TensorBackend(Protocol):
    """The operations on the tensors of one framework that hvdlite needs. All tensors are of that framework's type."""

    @property
    def name(self) -> str:
        """The framework's name, for error texts."""

    def adopt(self, value: Any) -> Any:
        """The tensor that stands for an argument of an operation that does not write to it.

        Raises:
            UnsupportedError: the value is in the memory of a device that hvdlite cannot reach.
            InvalidArgumentError: the value is nothing like a tensor.
        """

    def adopt_writable(self, value: Any) -> Any:
        """The tensor that stands for an argument of an in-place operation.

        Raises:
            UnsupportedError: as `adopt`.
            InvalidArgumentError: the value cannot be written to.
        """

    def export(self, tensor: Any, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the tensor's memory, or that of a dense private copy.

        Args:
            tensor: what `adopt` or `adopt_writable` gave.
            any_layout: may the memory be dense in another order than row-major?
            any_dtype: may the elements be of a dtype that the engine does not know, since they are only moved?

        Raises:
            InvalidArgumentError: the engine does not know the dtype, and has to; or its elements cannot be moved as bytes.
        """

    def plain(self, kind: type) -> Plain | None:
        """The description by which native code uses values of this type directly; None if it cannot."""

    def empty_like(self, owner: Any, new_memory: Any) -> tuple[Any, Any]:
        """A new tensor with the shape, dtype and layout of an `Exported.owner`, and its pointer as in `Exported`.

        Args:
            owner: the tensor.
            new_memory: a `NewMemory`, for tensors from `RECYCLED_FROM` bytes on; or a `NewGpuMemory`, if the owner is on a
                GPU, for tensors that no framework's own memory can hold.
        """

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor over memory of the engine, without a copy: shape as given, dtype of the tensor `like`."""

    def empty_on_gpu(self, shape: Sequence[int], like: Any, new_memory: NewGpuMemory) -> tuple[Any, int]:
        """A new dense tensor of this shape, with the dtype and on the GPU of the tensor `like`, and its pointer."""

    def stream_now(self, exported: Exported) -> int:
        """The CUDA stream in whose order this thread uses a tensor on a GPU now; as `Exported.stream`."""

    def use_in_current_stream(self, tensor: Any) -> None:
        """Tells the framework's allocator that the current stream uses a tensor which was made in another one."""

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Writes the private copy that `export` made into the user's tensor."""

    def mark_written(self, tensor: Any) -> None:
        """Tells the framework that the engine wrote into the tensor's own memory."""

    def integers(self, values: Sequence[int]) -> Any:
        """A one-dimensional int32 tensor of these values."""

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name, such as ``"float32"``."""

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """The tensor converted to another dtype.

        Raises:
            UnsupportedError: the framework lacks that dtype.
        """
