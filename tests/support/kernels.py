"""Calls of the reduction kernels, inputs of all kinds, and NumPy's results of single operations."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from support.cases import REDUCTIONS as ALL_REDUCTIONS
from support.cases import Op, Reduction, case_id, ufunc_of
from support.testing import native

from hvdlite import _engine, errors
from hvdlite.dtypes import DType, numpy_dtype

errors.install(_engine.set_error_classes)

LOAD, ACCUMULATE, COMBINE, STORE, FILL_IDENTITY = range(5)
SCALAR = 0
ISA_NAMES = ("scalar", "avx2", "avx512")
ISAS = [isa for isa in range(len(ISA_NAMES)) if native.isa_supported(isa)]
each_isa = pytest.mark.parametrize("isa", ISAS, ids=[ISA_NAMES[isa] for isa in ISAS])

# Numbers of elements around each register width. From 1024 elements on, kernels first align their stores.
COUNTS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 1040, 1100, 1301)

# The misalignments of out, lhs and rhs in bytes: with aligned elements but unaligned registers, with unaligned elements, and
# with equal misalignments.
OFFSETS = ((0, 0, 0), (1, 3, 5), (16, 48, 8), (63, 1, 2), (8, 0, 24), (40, 40, 40))

REDUCTIONS = [reduction for reduction in ALL_REDUCTIONS if not reduction.dtype.is_complex]

ACCUMULATORS = {
    **{reduction: reduction.dtype for reduction in REDUCTIONS},
    **{Reduction(dtype, op): DType.FLOAT32 for dtype in (DType.FLOAT16, DType.BFLOAT16) for op in Op},
    **{Reduction(dtype, Op.AVERAGE): DType.INT64 for dtype in DType if dtype <= DType.INT32},
}


class Placed:
    """An array at a chosen misalignment, with guard bytes around it that must not change."""

    GUARD = 64

    def __init__(self, values: np.ndarray, offset: int) -> None:
        self._raw = np.full(values.nbytes + 3 * self.GUARD + offset, 0xA5, dtype=np.uint8)
        address: int = self._raw.ctypes.data
        self._start = -address % self.GUARD + self.GUARD + offset
        self._end = self._start + values.nbytes
        self.address = address + self._start
        self.values = self._raw[self._start : self._end]
        self.values[...] = values

    def guards_intact(self) -> bool:
        around = self._raw[: self._start].tobytes() + self._raw[self._end :].tobytes()
        return around == b"\xa5" * len(around)


class Call(NamedTuple):
    """One kernel of one instruction set for one reduction."""

    which: int
    isa: int
    reduction: Reduction
    factor: float = 1.0
    divisor: int = 1

    def __call__(
        self,
        out_dtype: DType,
        lhs: np.ndarray,
        rhs: np.ndarray | None = None,
        old: np.ndarray | None = None,
        offsets: tuple[int, int, int] = (0, 0, 0),
    ) -> np.ndarray:
        """Runs the kernel and returns its results as a new array. ``old`` are the values of the output before."""
        nothing = np.zeros(lhs.size, dtype=numpy_dtype(out_dtype))
        out = Placed((nothing if old is None else old).view(np.uint8), offsets[0])
        left = Placed(lhs.view(np.uint8), offsets[1])
        right = left if rhs is None else Placed(rhs.view(np.uint8), offsets[2])
        dtype, op = self.reduction.dtype, self.reduction.op
        native.test_kernel(
            self.which, self.isa, dtype, op, out.address, left.address, right.address, lhs.size, self.factor, self.divisor
        )
        assert out.guards_intact(), f"{self} wrote outside its {lhs.size} elements"
        assert left.values.tobytes() == lhs.tobytes(), f"{self} changed its input"
        return out.values.copy().view(numpy_dtype(out_dtype))


@functools.cache
def sample(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Values of all sizes: integers over their whole range, floats with some infinities, NaNs, zeros and subnormals.

    Every caller gets the same array, which is read-only.
    """
    values = _draw_sample(dtype, count, seed)
    values.flags.writeable = False
    return values


def _draw_sample(dtype: DType, count: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng([int(dtype), count, seed])
    kind = numpy_dtype(dtype)
    if dtype is DType.BOOL:
        return draw.random(count) < 0.5
    if not dtype.is_float:
        limits = np.iinfo(kind)
        values = draw.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
        return np.where(draw.random(count) < 0.5, values, values % np.array(50, kind)).astype(kind)
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, 5.9e-8, -1e-40, 1e-310, 3e38])
    values = draw.standard_normal(count) * 2.0 ** draw.integers(-10, 10, count)
    with np.errstate(over="ignore"):
        return np.where(draw.random(count) < 0.2, special[draw.integers(0, special.size, count)], values).astype(kind)


def scaled(values: np.ndarray, accumulator: DType, factor: float) -> np.ndarray:
    """The elements in the accumulator's type, times the factor."""
    kind = numpy_dtype(accumulator)
    if factor == 1.0 or accumulator is DType.BOOL:
        return values.astype(kind)
    if accumulator.is_float:
        return (values.astype(np.float64) * np.float64(kind.type(factor))).astype(kind)
    return saturated(values.astype(np.float64) * factor, kind)


def saturated(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The values truncated toward zero and clipped to the integer type; NaN becomes 0."""
    low, high = _limits(kind)
    result = np.zeros(values.shape, kind)
    result[values <= low] = low
    result[values >= high] = high  # the largest 64-bit integer rounds to the next power of two
    inside = (values > low) & (values < high)
    result[inside] = values[inside].astype(kind)
    return result


def _limits(kind: np.dtype) -> tuple[int, int]:
    """The limits of an integer type as Python integers, because NumPy computes them again at each access."""
    limits = np.iinfo(kind)
    return int(limits.min), int(limits.max)


def reduced(op: Op, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The op of two arrays of accumulators, rounded to their type."""
    kind = lhs.dtype
    if kind == np.bool_:
        return lhs & rhs if op in (Op.MIN, Op.PRODUCT) else lhs | rhs
    if kind == np.float32:
        lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    result: np.ndarray = ufunc_of(op)(lhs, rhs).astype(kind)
    return result


def finished(values: np.ndarray, dtype: DType, factor: float, divisor: int) -> np.ndarray:
    """Accumulators divided, scaled and rounded to the element type."""
    kind = numpy_dtype(dtype)
    if dtype is DType.BOOL:
        return values
    if dtype.is_float:
        return scaled(values, DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32, factor / divisor).astype(kind)
    if factor != 1.0:
        return saturated(values.astype(np.float64) * factor / divisor, kind)
    low, high = _limits(kind)
    quotients = [abs(value) // divisor * (1 if value >= 0 else -1) for value in values.tolist()]
    return np.array([min(max(value, low), high) for value in quotients], dtype=kind)


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def assert_equal(actual: np.ndarray, expected: np.ndarray, what: object) -> None:
    """Fails unless both arrays have one dtype and equal values, with NaN where NaN is expected."""
    assert actual.dtype == expected.dtype
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    assert same.all(), f"{what}: element {np.argmin(same)} is {actual[np.argmin(same)]!r}, not {expected[np.argmin(same)]!r}"


def assert_exact(actual: np.ndarray, expected: np.ndarray, what: object = "") -> None:
    """Fails unless both arrays have one dtype and the same bits, with any NaN where NaN is expected."""
    assert actual.dtype == expected.dtype
    same = (bits_of(actual) == bits_of(expected)) | ((actual != actual) & (expected != expected))
    assert same.all(), f"{what}: element {np.argmin(same)} is {actual[np.argmin(same)]!r}, not {expected[np.argmin(same)]!r}"


def assert_scalar_bits(actual: np.ndarray, call: Call, scalar: np.ndarray) -> None:
    same = bits_of(actual) == bits_of(scalar)
    assert same.all(), f"{call}: element {np.argmin(same)} has other bits than scalar's"


def identity(reduction: Reduction, count: int) -> np.ndarray:
    kind = numpy_dtype(ACCUMULATORS[reduction])
    if kind == np.bool_:
        value = reduction.op in (Op.MIN, Op.PRODUCT)
    elif reduction.op in (Op.SUM, Op.AVERAGE):
        value = -0.0 if kind.kind == "f" else 0
    elif reduction.op is Op.PRODUCT:
        value = 1
    elif kind.kind == "f":
        value = np.inf if reduction.op is Op.MIN else -np.inf
    else:
        value = np.iinfo(kind).max if reduction.op is Op.MIN else np.iinfo(kind).min
    return np.full(count, value, dtype=kind)


HALVES = [DType.FLOAT16, DType.BFLOAT16]
each_half = pytest.mark.parametrize("dtype", HALVES, ids=case_id)
