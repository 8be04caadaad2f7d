"""What hvdlite must know of a tensor, whatever framework made it.

`hvdlite.ops` is written once over `TensorBackend`. A backend answers questions about one framework's tensors and does
nothing else: it knows no engine, no rank and no name.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = [
    "CHANNELS_LAST",
    "CHANNELS_LAST_3D",
    "CPU",
    "RECYCLED_FROM",
    "ROW_MAJOR",
    "Exported",
    "NewMemory",
    "TensorBackend",
]

CPU = -1  # the engine's device number for host memory

# Memory layouts; the engine only checks that all ranks have the same one.
ROW_MAJOR = 0
CHANNELS_LAST = 2
CHANNELS_LAST_3D = 3

# Outputs of so many bytes lie in memory of the engine, which recycles it (OutputCache::kSmallest).
RECYCLED_FROM = 1 << 20

# Memory of so many bytes, writable and not initialised. Whatever is made over it keeps it.
NewMemory = Callable[[int], memoryview]


class Exported(NamedTuple):
    """A tensor as the engine sees it.

    Attributes:
        pointer: address of the first element, where dense memory of the layout begins; or the tensor, if it has Python's
            buffer protocol: the engine finds the address itself, in less time than NumPy takes to tell it.
        shape: extents as the user sees them, whatever the layout.
        dtype: code of the element type (`hvdlite.dtypes.DType`).
        device: `CPU`, or the number of a GPU.
        layout: `ROW_MAJOR` or another code above.
        owner: the tensor whose memory this is. If it is not the user's tensor it is a private dense copy of it.
    """

    pointer: Any
    shape: tuple[int, ...]
    dtype: int
    device: int
    layout: int
    owner: Any


class TensorBackend(Protocol):
    """The questions about a tensor, answered for one framework. Tensors are that framework's type throughout."""

    @property
    def name(self) -> str:
        """The framework's name, for messages."""

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

    def export(self, tensor: Any, any_layout: bool) -> Exported:
        """Describes the tensor's memory, or that of a dense private copy.

        Args:
            tensor: what `adopt` or `adopt_writable` gave.
            any_layout: may the memory be dense in another order than row-major?

        Raises:
            InvalidArgumentError: the engine does not know the dtype.
        """

    def empty_like(self, owner: Any, new_memory: NewMemory) -> tuple[Any, Any]:
        """A new tensor with the shape, dtype and layout of an `Exported.owner`, and its pointer as in `Exported`.

        From `RECYCLED_FROM` bytes on it lies in memory from `new_memory`.
        """

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor over memory of the engine, without a copy: shape as given, dtype of the tensor `like`."""

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
