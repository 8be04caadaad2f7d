"""The inputs for tests of collectives, and the expected results.

The tables have element types, operators, counts and shapes. A new row is covered by every test that uses the table. Inputs
differ between ranks. Those of `contribution` have exact results in any order of additions; those of `random_contribution` are
floats whose sums depend on the order, for tests of error bounds.

Expected values (`expected`) are computed with exact integers, or for floats in extended precision, with the error that the
algorithms may make: half a unit in the last place of the element type for the rounding of the result, and one rounding of the
accumulator type for each addition and each factor.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import ml_dtypes
import numpy as np

from hvdlite.dtypes import DType, numpy_dtype

__all__ = [
    "COUNTS",
    "REDUCTIONS",
    "SHAPES",
    "Expected",
    "Op",
    "Reduction",
    "assert_same_bits",
    "case_id",
    "contribution",
    "counts_around",
    "expected",
    "random_contribution",
    "random_sizes",
]


class Op(IntEnum):
    """Reduction operators on elements: the numbers of csrc/base/types.h, without Adasum."""

    AVERAGE = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True)
class Reduction:
    """An element type and an operator that the engine supports together."""

    dtype: DType
    op: Op

    def __str__(self) -> str:
        return f"{self.dtype.label}-{self.op.name.lower()}"


# All supported pairs: the Average of bool is refused, and complex numbers have only Sum and Average.
REDUCTIONS = tuple(
    Reduction(dtype, op)
    for dtype, op in itertools.product(DType, Op)
    if (dtype, op) != (DType.BOOL, Op.AVERAGE) and (op in (Op.SUM, Op.AVERAGE) or not dtype.is_complex)
)

# The type of the two parts of a complex number.
_REAL = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}

# Element counts of a flat tensor: none, one, a prime, around a cache line and a page, and more than some segments of a test.
COUNTS = (0, 1, 2, 13, 63, 64, 65, 1023, 1024, 1031, 5003)

# Shapes for tests above the engine: scalars, empty dimensions, odd sizes.
SHAPES = ((), (0,), (1,), (7,), (3, 0, 2), (2, 3), (5, 3, 2), (17, 31), (4, 1, 1, 33))


def counts_around(ranks: int, segment: int) -> tuple[int, ...]:
    """Element counts at which errors are likely when a buffer is cut for `ranks` ranks and segments of `segment` elements."""
    edges = {0, 1, 2, 13, ranks - 1, ranks, ranks + 1, segment - 1, segment, segment + 1}
    block = ranks * segment
    return tuple(sorted(edges | {block - 1, block, block + 1, 3 * block + 7, 9 * block + 5}))


def case_id(*parts: object) -> str:
    """A readable test id: the parts joined by dashes, with the names of types."""
    return "-".join(part.label if isinstance(part, DType) else str(part) for part in parts)


def random_sizes(parts: int, seed: int, largest: int = 40) -> list[int]:
    """Uneven sizes of `parts` parts: some are zero, and one is far larger than the others."""
    draw = np.random.default_rng([parts, seed])
    sizes = draw.integers(0, largest, parts)
    sizes[draw.random(parts) < 0.3] = 0
    sizes[draw.integers(parts)] = 5 * largest + 3
    return [int(size) for size in sizes]


# --- inputs --------------------------------------------------------------------------------------------------------------


def contribution(rank: int, count: int, dtype: DType, op: Op, salt: int = 0) -> np.ndarray:
    """A rank's input. It differs between ranks and places, and every order of operations gives the same result.

    Args:
        rank: the rank.
        count: the number of elements.
        dtype: the type of the elements.
        op: the operator: sums of the elements stay small, and products stay near 1.
        salt: a number that selects other values.
    """
    if dtype.is_complex:
        return contribution(rank, 2 * count, _REAL[dtype], op, salt).view(numpy_dtype(dtype))
    place = np.arange(count, dtype=np.int64)
    mixed = (place * 7919 + rank * 104729 + salt * 1299709 + (place * (rank + 3)) % 23) % 1000003
    if dtype is DType.BOOL:
        return mixed % 5 < 2
    if op is Op.PRODUCT:
        values = np.where(mixed % 3 == 0, -1.0, 1.0)
        if dtype.is_float:  # powers of two that come in pairs over the ranks
            values = values * np.where((place + rank) % 2 == 0, 2.0, 0.5)
        elif mixed.size:
            values = np.where(mixed % 7 == 0, 2.0, values)
    elif dtype.is_float:
        values = (mixed % 65 - 32) / 4  # multiples of 1/4: sums of a few dozen are exact in every accumulator
    else:
        values = (mixed % 7 - (0 if "uint" in dtype.label else 3)).astype(np.float64)
    if "uint" in dtype.label:
        values = np.abs(values)
    return values.astype(numpy_dtype(dtype))


def random_contribution(rank: int, count: int, dtype: DType, seed: int) -> np.ndarray:
    """Normally distributed floats of mixed magnitude; rank and seed determine them."""
    draw = np.random.default_rng([rank, seed])
    return (draw.standard_normal(count) * 2.0 ** draw.integers(-3, 4, count)).astype(numpy_dtype(dtype))


# --- expected values -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """The expected result, and the largest error of each element.

    Attributes:
        value: the expected elements. Complex numbers are given as their real and imaginary parts, one after the other.
        tolerance: the largest error of each element; zero if only one value is right.
    """

    value: np.ndarray
    tolerance: np.ndarray

    def check(self, actual: np.ndarray, what: str = "result") -> None:
        """Fails unless every element has at most its largest error. The message names the worst element."""
        if actual.dtype.kind == "c":
            actual = actual.view(actual.real.dtype)
        assert actual.shape == self.value.shape, f"{what}: shape {actual.shape} instead of {self.value.shape}"
        if np.array_equal(actual, self.value):
            return
        if self.value.dtype.kind in "iub":
            error = (actual != self.value).astype(np.float64)
        else:
            error = np.abs(actual.astype(np.longdouble) - self.value.astype(np.longdouble)) - self.tolerance
        worst = int(np.argmax(error))
        assert error[worst] <= 0, (
            f"{what}: element {worst} is {actual[worst]} instead of {self.value[worst]} "
            f"+- {self.tolerance[worst]}; {int((error > 0).sum())} of {error.size} elements are wrong"
        )


# The relative error of one rounding: half a unit in the last place.
_ROUNDING = {
    DType.FLOAT16: 2.0**-11,
    DType.BFLOAT16: 2.0**-8,
    DType.FLOAT32: 2.0**-24,
    DType.FLOAT64: 2.0**-53,
}


def expected(
    inputs: Sequence[np.ndarray | None],
    reduction: Reduction,
    prescale: float = 1.0,
    postscale: float = 1.0,
    divisor: int | None = None,
) -> Expected:
    """The expected result of postscale / divisor * (op over all ranks of prescale * input), rounded to the element type.

    Args:
        inputs: one array for each rank, or None for a rank without a value; there is at least one array.
        reduction: the element type and the operator.
        prescale: the factor of each input.
        postscale: the factor of the result.
        divisor: the divisor of the result; by default the number of ranks for an Average, otherwise 1.
    """
    if divisor is None:
        divisor = len(inputs) if reduction.op is Op.AVERAGE else 1
    present = [array for array in inputs if array is not None]
    if reduction.dtype.is_complex:
        real = _REAL[reduction.dtype]
        pairs = [array.view(numpy_dtype(real)) for array in present]
        return _expected_floats(pairs, Reduction(real, reduction.op), prescale, postscale / divisor)
    if reduction.dtype is DType.BOOL:
        logical = np.logical_and if reduction.op in (Op.MIN, Op.PRODUCT) else np.logical_or
        value = logical.reduce(present)
        return Expected(value, np.zeros(value.shape))
    if reduction.dtype.is_float:
        return _expected_floats(present, reduction, prescale, postscale / divisor)
    return _expected_integers(present, reduction, prescale, postscale, divisor)


def _expected_floats(present: list[np.ndarray], reduction: Reduction, prescale: float, factor: float) -> Expected:
    wide = np.stack([array.astype(np.longdouble) * np.longdouble(prescale) for array in present])
    # A factor other than 1 makes two roundings: of the factor to the accumulator type, and of the product.
    roundings = (2 if prescale != 1.0 else 0) + (3 if factor != 1.0 else 0)
    match reduction.op:
        case Op.SUM | Op.AVERAGE:
            exact, magnitude = wide.sum(axis=0), np.abs(wide).sum(axis=0)
            if roundings or not _sums_exactly(wide, reduction.dtype):
                roundings += len(present) - 1
        case Op.PRODUCT:
            exact = wide.prod(axis=0)
            magnitude = np.abs(exact)
            if roundings or not np.all(np.abs(np.frexp(wide)[0]) == 0.5):  # powers of two multiply exactly
                roundings = (roundings + 1) * len(present)
        case Op.MIN | Op.MAX:
            exact = wide.min(axis=0) if reduction.op is Op.MIN else wide.max(axis=0)
            magnitude = np.abs(exact)
    exact = exact * np.longdouble(factor)
    value = exact.astype(numpy_dtype(reduction.dtype))
    if roundings == 0:
        return Expected(value, np.zeros(value.shape))  # only the rounding at the end remains
    accumulator = _ROUNDING[_accumulator(reduction.dtype)]
    smallest = float(ml_dtypes.finfo(value.dtype).smallest_subnormal)
    # Both the result and the expected value were rounded once.
    error = roundings * accumulator * magnitude * abs(factor) + 2 * _ROUNDING[reduction.dtype] * np.abs(exact) + smallest
    return Expected(value, np.asarray(error, dtype=np.float64))


def _accumulator(dtype: DType) -> DType:
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


def _sums_exactly(wide: np.ndarray, dtype: DType) -> bool:
    """Are all partial sums of these multiples of 1/4 exact in the accumulator, in any order?"""
    digits = 52 if _accumulator(dtype) is DType.FLOAT64 else 23
    return bool(np.all(wide * 4 == np.round(wide * 4)) and np.all(np.abs(wide).sum(axis=0) * 4 < 2.0**digits))


def _expected_integers(
    present: list[np.ndarray], reduction: Reduction, prescale: float, postscale: float, divisor: int
) -> Expected:
    if prescale == postscale == 1.0 and divisor == 1:  # NumPy's integers wrap around as well
        value = ufunc_of(reduction.op).reduce(present, dtype=present[0].dtype)
        return Expected(value, np.zeros(value.shape))
    columns: Iterable[tuple[int, ...]] = zip(*(_scaled(array, prescale) for array in present), strict=True)
    match reduction.op:
        case Op.SUM | Op.AVERAGE:
            exact = [sum(column) for column in columns]
        case Op.PRODUCT:
            exact = [int(np.prod(np.array(column, dtype=object))) for column in columns]
        case Op.MIN:
            exact = [min(column) for column in columns]
        case Op.MAX:
            exact = [max(column) for column in columns]
    if postscale == 1.0:
        exact = [_divide(value, divisor) for value in exact]
    else:
        exact = [int(value * postscale / divisor) for value in exact]
    dtype = numpy_dtype(reduction.dtype)
    bits = 8 * dtype.itemsize
    wrapped = np.array([value % 2**bits for value in exact], dtype=np.uint64).astype(f"uint{bits}").view(dtype)
    return Expected(wrapped, np.zeros(wrapped.shape))


def ufunc_of(op: Op) -> np.ufunc:
    """NumPy's function for two operands of a Sum, an Average (which adds), a Product, a Min or a Max."""
    return {Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}.get(op, np.add)


def _scaled(array: np.ndarray, prescale: float) -> list[int]:
    return [int(value) if prescale == 1.0 else int(float(value) * prescale) for value in array.tolist()]


def _divide(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)  # toward zero


def assert_same_bits(arrays: Sequence[np.ndarray], what: str = "result") -> None:
    """Fails unless all arrays have the same bits. The message names the ranks whose bits differ from rank 0's."""
    first = arrays[0].tobytes()
    different = [rank for rank, array in enumerate(arrays) if array.tobytes() != first]
    assert not different, f"{what}: ranks {different} have other bits than rank 0"


assert np.dtype(ml_dtypes.bfloat16).itemsize == 2  # imported so that NumPy knows bfloat16
