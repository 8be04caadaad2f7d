"""Leaves: tensors of any framework in the form that ranks compare: a name, a shape, a dtype, and the bytes.

Ranks compare digests (csrc/base/digest.h), which they exchange in small sums of rows (`RankRows`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite._engine import digest
from hvdlite.errors import InvalidArgumentError
from hvdlite.ops import allreduce
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Sum


@dataclass(frozen=True)
class Leaf:
    """One tensor that the ranks compare.

    Attributes:
        name: the user's name for the tensor.
        shape: the tensor's extents.
        dtype: the name of the tensor's dtype.
        epsilon: the distance from 1 to the next number of the dtype; 0 for a dtype that is no float of 16 bits or more.
        memory: a function that returns the bytes in host memory, in row-major order of the elements.
        numbers: a function that returns a slice of the elements as float64, in the same order; two numbers for each complex
            element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    epsilon: float
    memory: Callable[[], npt.NDArray[np.uint8]]
    numbers: Callable[[slice], npt.NDArray[np.float64]]

    @classmethod
    def of_array(cls, name: str, array: npt.NDArray[Any]) -> "Leaf":
        """The leaf of an array with a dtype of NumPy or ml_dtypes. An array that is not in row-major order is copied."""
        flat = np.ascontiguousarray(array).reshape(-1)
        kind = flat.dtype.kind
        real = flat.view(flat.real.dtype) if kind == "c" else flat
        if kind in "fc" and flat.dtype.itemsize > 1:  # ml_dtypes gives the kind f to float8_e5m2, which np.finfo does not know
            epsilon = float(np.finfo(real.dtype).eps)
        else:
            epsilon = 2.0**-7 if kind == "V" and flat.dtype.itemsize == 2 else 0.0  # bfloat16: ml_dtypes gives it the kind V
        return cls(
            name,
            array.shape,
            flat.dtype.name,
            epsilon,
            lambda: flat.view(np.uint8),
            lambda part: real[part].astype(np.float64),
        )

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def digest(self, part: slice = slice(None)) -> int:
        """A hash of the content, or of a part of its bytes."""
        memory = self.memory()[part]
        return int(digest(memory.ctypes.data, memory.nbytes))


# A function that gives the leaves of an object of a framework, from the object and its path, which is part of the leaves'
# names. It returns None for any other object.
FindLeaves = Callable[[Any, str], Iterable[Leaf] | None]


def path_to(path: str, key: Any) -> str:
    """The path to an item of the container at `path`."""
    return f"{path}.{key}" if path else f"{key}"


def leaves_in(value: Any, path: str, find: FindLeaves) -> Iterator[Leaf]:
    """The leaves of a value and of what it contains, in an order that is the same on all ranks.

    Args:
        value: an object that `find` knows; an array, or an object that NumPy converts to one, such as a number or a text;
            None, which has no leaves; or a mapping, list or tuple of all these.
        path: the path to the value.
        find: gives the leaves of the objects of a framework.

    Raises:
        InvalidArgumentError: the value is or contains another object.
    """
    found = find(value, path)
    if found is not None:
        yield from found
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves_in(value[key], path_to(path, key), find)
    elif isinstance(value, list | tuple):
        for key, item in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from leaves_in(item, path_to(path, key), find)
    elif value is not None:
        yield Leaf.of_array(path, _as_array(value, path))


def _as_array(value: Any, path: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as error:  # __array__ of another library raises any exception
        raise InvalidArgumentError(f"{_described(value, path)} cannot be read: {type(error).__name__}: {error}") from error
    if array.dtype.hasobject:
        raise InvalidArgumentError(
            f"{_described(value, path)} has no bytes to compare. Pass arrays, numbers, or dicts, lists and tuples of these; "
            "for a framework's models and optimizers import that framework's door, such as hvdlite.torch"
        )
    return array


def _described(value: Any, path: str) -> str:
    return f"check_consistency: an object of type {type(value).__name__}" + (f" at {path!r}" if path else "")


class RankRows:
    """Collects one row of numbers from each rank of a process set, by an allreduce (Sum): each rank fills in only its own row.

    The rows of ranks that have joined are zeros.

    Attributes:
        ranks: the members' ranks in the job.
        place: this rank's index in `ranks`.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        """`name` is the name of the operations, the same on all ranks."""
        self._name = name
        self._process_set = process_set
        self.ranks: Sequence[int] = process_set.ranks or range(process_set.size() or 1)
        self.place = process_set.rank() or 0

    def new(self, columns: int, dtype: Any = np.int64) -> Any:
        """An array of zeros with one row for each rank."""
        return np.zeros((len(self.ranks), columns), dtype)

    def gather(self, values: Sequence[int | float], what: str, dtype: Any = np.int64) -> Any:
        """The rows of all ranks; `values` are this rank's row. Collective over the process set."""
        rows = self.new(len(values), dtype)
        rows[self.place] = values
        return allreduce(rows, op=Sum, name=f"{self._name}.{what}", process_set=self._process_set)


def digest_of(digests: Iterable[int]) -> int:
    """One digest of many."""
    return Leaf.of_array("", np.array([*digests, 1], np.uint64)).digest()


def digest_of_text(text: str) -> int:
    """The digest of a text."""
    return Leaf.of_array("", np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)).digest()


def index_of(place: int, shape: Sequence[int]) -> list[int]:
    """The index of the element at a place in row-major order."""
    return [int(index) for index in np.unravel_index(place, shape)]


def signed(value: int) -> int:
    """The same 64 bits as an int64, and never 0, because 0 means that there is no digest."""
    return (value - (1 << 64) if value >= 1 << 63 else value) or 1
