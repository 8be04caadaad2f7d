"""What reduction kernels make of special values: every 16-bit float, ties, NaNs, infinities, zeros, limits of integers."""

import ml_dtypes
import numpy as np
import pytest
from support.cases import Op, Reduction, case_id
from support.kernels import (
    ACCUMULATE,
    ACCUMULATORS,
    COMBINE,
    LOAD,
    SCALAR,
    STORE,
    Call,
    assert_exact,
    bits_of,
    each_half,
    each_isa,
    reduced,
    saturated,
)

from hvdlite.dtypes import DType, numpy_dtype

# --- 16-bit floats -------------------------------------------------------------------------------------------------------

ALL_PATTERNS = np.arange(2**16, dtype=np.uint16)


@each_isa
@each_half
def test_every_half_widens(isa, dtype):
    halves = ALL_PATTERNS.view(numpy_dtype(dtype))
    call = Call(LOAD, isa, Reduction(dtype, Op.SUM))
    widened = call(DType.FLOAT32, halves)
    assert_exact(widened, halves.astype(np.float32))
    assert widened.tobytes() == call._replace(isa=SCALAR)(DType.FLOAT32, halves).tobytes()


@each_isa
@each_half
def test_every_half_survives_widening_and_rounding(isa, dtype):
    halves = ALL_PATTERNS.view(numpy_dtype(dtype))
    reduction = Reduction(dtype, Op.SUM)
    back = Call(STORE, isa, reduction)(dtype, Call(LOAD, isa, reduction)(DType.FLOAT32, halves)).view(np.uint16)
    quiet = np.uint16(1 << (9 if dtype is DType.FLOAT16 else 6))
    with np.errstate(invalid="ignore"):  # ml_dtypes reports signalling NaNs
        assert np.array_equal(back, np.where(np.isnan(halves), ALL_PATTERNS | quiet, ALL_PATTERNS))


@each_isa
@each_half
def test_rounding_around_every_half(isa, dtype):
    """Every half, the ties between neighbours, and the float32 on either side of both; both signs, zero and overflow."""
    kind = numpy_dtype(dtype)
    halves = ALL_PATTERNS.view(kind)
    with np.errstate(invalid="ignore"):
        finite = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    step = finite[-1] - finite[-2]
    ties = np.concatenate([(finite[:-1] + finite[1:]) / 2, [finite[-1] + step / 2, finite[0] - step / 2]])
    exact = np.concatenate([finite, ties]).astype(np.float32)
    with np.errstate(all="ignore"):
        values = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))])
        expected = values.astype(kind)
    assert_exact(Call(STORE, isa, Reduction(dtype, Op.SUM))(dtype, values), expected)


@each_isa
@each_half
def test_rounding_of_random_floats(isa, dtype):
    values = np.random.default_rng(7).integers(0, 2**32, 2**18, dtype=np.uint32).view(np.float32)
    call = Call(STORE, isa, Reduction(dtype, Op.SUM))
    rounded = call(dtype, values)
    with np.errstate(all="ignore"):
        assert_exact(rounded, values.astype(numpy_dtype(dtype)))
    assert rounded.tobytes() == call._replace(isa=SCALAR)(dtype, values).tobytes()


@each_isa
def test_overflow_of_float16_is_infinite(isa):
    call = Call(STORE, isa, Reduction(DType.FLOAT16, Op.SUM))
    values = np.array([65504, 65519.996, 65520, 1e30, -65519.996, -65520, np.inf] * 9, dtype=np.float32)
    expected = np.array([65504, 65504, np.inf, np.inf, -65504, -np.inf, np.inf] * 9, dtype=np.float16)
    assert_exact(call(DType.FLOAT16, values), expected)


@each_isa
@each_half
def test_sums_are_rounded_once(isa, dtype):
    """512 bfloat16 ones are 512, not 256, and an Average of the largest float16 does not overflow on the way."""
    reduction = Reduction(dtype, Op.AVERAGE)
    kind = numpy_dtype(dtype)
    for value, ranks in ((1.0, 4096), (float(ml_dtypes.finfo(kind).max) if dtype is DType.FLOAT16 else 1e30, 64)):
        mine = np.full(33, value, dtype=kind)
        total = Call(LOAD, isa, reduction)(DType.FLOAT32, mine)
        for _ in range(ranks - 1):
            total = Call(ACCUMULATE, isa, reduction)(DType.FLOAT32, mine, None, total)
        assert np.all(total == np.float32(mine[0]) * ranks)
        assert np.all(Call(STORE, isa, reduction, 1.0, ranks)(dtype, total) == mine)


# --- special values ------------------------------------------------------------------------------------------------------


@each_isa
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float], ids=case_id)
@pytest.mark.parametrize("op", [Op.MIN, Op.MAX], ids=["min", "max"])
def test_extremes_order_zeros_pass_on_nan_and_commute(isa, dtype, op):
    accumulator = ACCUMULATORS[Reduction(dtype, op)]
    kind = numpy_dtype(accumulator)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, -1e-40], dtype=kind)
    lhs, rhs = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(special, special))
    call = Call(COMBINE, isa, Reduction(dtype, op))
    result = call(accumulator, lhs, rhs)
    assert result.tobytes() == call(accumulator, rhs, lhs).tobytes()
    assert np.array_equal(result, (np.minimum if op is Op.MIN else np.maximum)(lhs, rhs), equal_nan=True)
    zeros = (lhs == 0) & (rhs == 0)
    signs = np.signbit(lhs) | np.signbit(rhs) if op is Op.MIN else np.signbit(lhs) & np.signbit(rhs)
    assert np.array_equal(np.signbit(result)[zeros], signs[zeros])


@each_isa
def test_nan_and_infinity_through_sums(isa):
    reduction = Reduction(DType.FLOAT32, Op.SUM)
    lhs = np.array([np.inf, np.inf, np.nan, 1, -0.0, -0.0, 3e38] * 5, dtype=np.float32)
    rhs = np.array([1, -np.inf, 1, np.nan, -0.0, 0.0, 3e38] * 5, dtype=np.float32)
    expected = np.array([np.inf, np.nan, np.nan, np.nan, -0.0, 0.0, np.inf] * 5, dtype=np.float32)
    assert_exact(Call(COMBINE, isa, reduction)(DType.FLOAT32, lhs, rhs), expected)


@each_isa
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=case_id)
@pytest.mark.parametrize("op", Op, ids=str)
def test_nans_do_not_depend_on_the_order_of_operands(isa, dtype, op):
    """Else two ranks that add in opposite orders would end with different bits."""
    bits = np.random.default_rng(8).integers(0, 2**32, (2, 999 * 2), dtype=np.uint32)
    bits[bits % 4 == 0] |= 0x7FF80000  # many NaNs, quiet and signalling, of either sign
    lhs, rhs = (row.view(numpy_dtype(dtype)) for row in bits)
    call = Call(COMBINE, isa, Reduction(dtype, op))
    result = call(dtype, lhs, rhs)
    assert result.tobytes() == call(dtype, rhs, lhs).tobytes()
    assert result.tobytes() == call._replace(isa=SCALAR)(dtype, lhs, rhs).tobytes()
    if op not in (Op.MIN, Op.MAX):
        nans = np.isnan(result)
        assert nans.any()
        assert np.all(bits_of(result)[nans] == bits_of(np.array([np.nan], dtype=result.dtype)))


@each_isa
def test_a_product_is_not_contracted_with_a_sum(isa):
    """Fused, 1/3 * 3 - 1 would not be zero."""
    reduction = Reduction(DType.FLOAT32, Op.SUM)
    threes, minus_ones = np.full(67, 3, np.float32), np.full(67, -1, np.float32)
    total = Call(ACCUMULATE, isa, reduction, 1 / 3)(DType.FLOAT32, threes, None, minus_ones)
    assert np.all(total == 0)


# --- integers and bool ---------------------------------------------------------------------------------------------------

INTEGERS = [dtype for dtype in DType if dtype <= DType.INT64]
each_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=case_id)


@each_isa
@each_integer
@pytest.mark.parametrize("factor", [0.5, -1.0, 1e300, -1e300, float("nan"), float("inf")])
def test_scaled_integers_truncate_and_saturate(isa, dtype, factor):
    kind = numpy_dtype(dtype)
    limits = np.iinfo(kind)
    values = np.array([limits.min, limits.max, 0, 1, 2, 3, 7, limits.max // 2] * 5, dtype=kind)
    with np.errstate(all="ignore"):
        expected = saturated(values.astype(np.float64) * factor, kind)
    reduction = Reduction(dtype, Op.SUM)
    assert np.array_equal(Call(LOAD, isa, reduction, factor)(dtype, values), expected)
    assert np.array_equal(Call(STORE, isa, reduction, factor)(dtype, values), expected)


@each_isa
@each_integer
def test_integer_average_does_not_wrap(isa, dtype):
    kind = numpy_dtype(dtype)
    limits = np.iinfo(kind)
    reduction = Reduction(dtype, Op.AVERAGE)
    accumulator = ACCUMULATORS[reduction]
    ranks = 2 if accumulator is dtype else 100
    largest = limits.max // ranks if accumulator is dtype else limits.max
    values = np.array([largest, limits.min // ranks if accumulator is dtype else limits.min, 1, 5] * 9, dtype=kind)
    total = Call(LOAD, isa, reduction)(accumulator, values)
    for _ in range(ranks - 1):
        total = Call(ACCUMULATE, isa, reduction)(accumulator, values, None, total)
    assert np.array_equal(Call(STORE, isa, reduction, 1.0, ranks)(dtype, total), values)


@each_isa
@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if dtype <= DType.INT32], ids=case_id)
def test_wide_accumulator_saturates(isa, dtype):
    kind = numpy_dtype(dtype)
    limits = np.iinfo(kind)
    total = np.array([2**62, -(2**62), limits.max + 1, limits.min - 1, limits.max, limits.min] * 7, dtype=np.int64)
    expected = np.clip(total, limits.min, limits.max).astype(kind)
    assert np.array_equal(Call(STORE, isa, Reduction(dtype, Op.AVERAGE))(dtype, total), expected)


@each_isa
@pytest.mark.parametrize("op", [Op.SUM, Op.MAX, Op.MIN, Op.PRODUCT], ids=str)
def test_any_nonzero_byte_is_true(isa, op):
    reduction = Reduction(DType.BOOL, op)
    lhs = np.tile(np.array([0, 1, 2, 128, 255], dtype=np.uint8), 40)
    rhs = np.roll(np.repeat(np.array([0, 1, 2, 128, 255], dtype=np.uint8), 40), 7)
    expected = reduced(op, lhs != 0, rhs != 0).view(np.uint8)
    for factor in (1.0, 0.25):
        loaded = Call(LOAD, isa, reduction, factor)(DType.BOOL, lhs).view(np.uint8)
        assert np.array_equal(loaded, lhs != 0)
        total = Call(ACCUMULATE, isa, reduction, factor)(DType.BOOL, rhs, None, loaded).view(np.uint8)
        assert np.array_equal(total, expected)
    combined = Call(COMBINE, isa, reduction)(DType.BOOL, lhs, rhs).view(np.uint8)
    assert np.array_equal(Call(STORE, isa, reduction)(DType.BOOL, combined).view(np.uint8), expected)
