"""The reduction kernels alone: every instruction set this processor has, element type, operator, count and alignment.

Expected values are numpy's, computed one operation at a time in float64 (exact for float32 operands, so one rounding is
left) or in wrapping integers; every instruction set must give the bits of the scalar one.
"""

import itertools
import timeit
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from support.cases import REDUCTIONS as ALL_REDUCTIONS
from support.cases import Op, Reduction, case_id

from hvdlite import _engine, errors
from hvdlite.dtypes import DType, numpy_dtype

errors.install(_engine.set_error_classes)

LOAD, ACCUMULATE, COMBINE, STORE, FILL_IDENTITY = range(5)
SCALAR = 0
ISA_NAMES = ("scalar", "avx2", "avx512")
ISAS = [isa for isa in range(len(ISA_NAMES)) if _engine.isa_supported(isa)]
each_isa = pytest.mark.parametrize("isa", ISAS, ids=[ISA_NAMES[isa] for isa in ISAS])

# Around every register width; from 1024 on, stores are aligned first.
COUNTS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 1040, 1100, 1301)

# Misaligned by how many bytes: out, lhs, rhs. Elements aligned and registers not, elements not aligned, all alike.
OFFSETS = ((0, 0, 0), (1, 3, 5), (16, 48, 8), (63, 1, 2), (8, 0, 24), (40, 40, 40))

REDUCTIONS = [reduction for reduction in ALL_REDUCTIONS if not reduction.dtype.is_complex]

ACCUMULATORS = {
    **{reduction: reduction.dtype for reduction in REDUCTIONS},
    **{Reduction(dtype, op): DType.FLOAT32 for dtype in (DType.FLOAT16, DType.BFLOAT16) for op in Op},
    **{Reduction(dtype, Op.AVERAGE): DType.INT64 for dtype in DType if dtype <= DType.INT32},
}


class Placed:
    """An array at a chosen misalignment, with guard bytes around it that must stay as they are."""

    GUARD = 64

    def __init__(self, values: np.ndarray, offset: int) -> None:
        self._raw = np.full(values.nbytes + 3 * self.GUARD + offset, 0xA5, dtype=np.uint8)
        self._start = -self._raw.ctypes.data % self.GUARD + self.GUARD + offset
        self._end = self._start + values.nbytes
        self.values[...] = values

    @property
    def bytes(self) -> np.ndarray:
        return self._raw[self._start : self._end]

    @property
    def address(self) -> int:
        return self._raw.ctypes.data + self._start

    @property
    def values(self) -> np.ndarray:
        return self.bytes

    def guards_intact(self) -> bool:
        return bool(np.all(self._raw[: self._start] == 0xA5) and np.all(self._raw[self._end :] == 0xA5))


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
        """A new array of the kernel's results; ``old`` is what the output holds before."""
        nothing = np.zeros(lhs.size, dtype=numpy_dtype(out_dtype))
        out = Placed((nothing if old is None else old).view(np.uint8), offsets[0])
        left = Placed(lhs.view(np.uint8), offsets[1])
        right = left if rhs is None else Placed(rhs.view(np.uint8), offsets[2])
        dtype, op = self.reduction.dtype, self.reduction.op
        _engine.test_kernel(
            self.which, self.isa, dtype, op, out.address, left.address, right.address, lhs.size, self.factor, self.divisor
        )
        assert out.guards_intact(), f"{self} wrote outside its {lhs.size} elements"
        assert left.values.tobytes() == lhs.tobytes(), f"{self} changed its input"
        return out.values.copy().view(numpy_dtype(out_dtype))


# --- inputs and expected values ------------------------------------------------------------------------------------------


def sample(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Values of all sizes: integers over their whole range, floats with some infinities, NaNs, zeros and subnormals."""
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
    return saturated([float(value) * factor for value in values.tolist()], kind)


def saturated(values: list[float], kind: np.dtype) -> np.ndarray:
    """Truncated toward zero and clipped to the integer type; NaN is 0."""
    limits = np.iinfo(kind)
    whole = [0 if value != value else int(min(max(value, -1e30), 1e30)) for value in values]
    return np.array([min(max(value, limits.min), limits.max) for value in whole], dtype=kind)


def reduced(op: Op, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The op of two arrays of accumulators, rounded to their type."""
    kind = lhs.dtype
    if kind == np.bool_:
        return lhs & rhs if op in (Op.MIN, Op.PRODUCT) else lhs | rhs
    if kind == np.float32:
        lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    operator = {Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}.get(op, np.add)
    result: np.ndarray = operator(lhs, rhs).astype(kind)
    return result


def finished(values: np.ndarray, dtype: DType, factor: float, divisor: int) -> np.ndarray:
    """Accumulators divided, scaled and rounded to the element type."""
    kind = numpy_dtype(dtype)
    if dtype is DType.BOOL:
        return values
    if dtype.is_float:
        return scaled(values, DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32, factor / divisor).astype(kind)
    if factor != 1.0:
        return saturated([float(value) * factor / divisor for value in values.tolist()], kind)
    limits = np.iinfo(kind)
    quotients = [abs(value) // divisor * (1 if value >= 0 else -1) for value in values.tolist()]
    return np.array([min(max(value, limits.min), limits.max) for value in quotients], dtype=kind)


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def assert_equal(actual: np.ndarray, expected: np.ndarray, what: object) -> None:
    """Equal values of one type, a NaN where a NaN is expected."""
    assert actual.dtype == expected.dtype
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    assert same.all(), f"{what}: element {np.argmin(same)} is {actual[np.argmin(same)]!r}, not {expected[np.argmin(same)]!r}"


def assert_exact(actual: np.ndarray, expected: np.ndarray, what: object = "") -> None:
    """The same bits, the signs of zeros too; a NaN where a NaN is expected."""
    assert actual.dtype == expected.dtype
    same = (bits_of(actual) == bits_of(expected)) | ((actual != actual) & (expected != expected))
    assert same.all(), f"{what}: element {np.argmin(same)} is {actual[np.argmin(same)]!r}, not {expected[np.argmin(same)]!r}"


def assert_scalar_bits(actual: np.ndarray, call: Call, scalar: np.ndarray) -> None:
    same = bits_of(actual) == bits_of(scalar)
    assert same.all(), f"{call}: element {np.argmin(same)} has other bits than scalar's"


# --- every instruction set, reduction, count and alignment ---------------------------------------------------------------


@each_isa
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_kernels(isa, reduction):
    dtype, op = reduction.dtype, reduction.op
    accumulator = ACCUMULATORS[reduction]
    for count, offsets in zip(COUNTS, itertools.cycle(OFFSETS), strict=False):
        values = sample(dtype, count, 1)
        with np.errstate(all="ignore"):
            lhs, rhs = (scaled(sample(dtype, count, seed), accumulator, 1.0) for seed in (2, 3))
            wanted = {
                Call(COMBINE, isa, reduction): (accumulator, lhs, rhs, None, reduced(op, lhs, rhs)),
                Call(FILL_IDENTITY, isa, reduction): (accumulator, lhs, None, None, identity(reduction, count)),
            }
            for factor in (1.0, 1 / 3, -2.5):
                own = scaled(values, accumulator, factor)
                wanted[Call(LOAD, isa, reduction, factor)] = (accumulator, values, None, None, own)
                wanted[Call(ACCUMULATE, isa, reduction, factor)] = (accumulator, values, None, lhs, reduced(op, lhs, own))
            for factor, divisor in ((1.0, 1), (1.0, 3), (0.1, 1), (-2.5, 7)):
                result = finished(lhs, dtype, factor, divisor)
                wanted[Call(STORE, isa, reduction, factor, divisor)] = (dtype, lhs, None, None, result)
        for call, (out_dtype, left, right, old, expected) in wanted.items():
            actual = call(out_dtype, left, right, old, offsets)
            if op in (Op.MIN, Op.MAX):  # numpy leaves the sign of a zero open
                assert_equal(actual, expected, (call, count, offsets))
            else:
                assert_exact(actual, expected, (call, count, offsets))
            if isa != SCALAR:
                assert_scalar_bits(actual, call, call._replace(isa=SCALAR)(out_dtype, left, right, old))


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


@each_isa
def test_the_processor_is_asked_once_for_its_features(isa):
    """Every operation looks for its kernels, and under a hypervisor an answer takes 25 microseconds."""
    asked, not_asked = (min(timeit.repeat(lambda s=s: _engine.isa_supported(s), number=500)) for s in (isa, SCALAR))
    assert asked < 10 * not_asked


@each_isa
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_identity_is_neutral(isa, reduction):
    accumulator = ACCUMULATORS[reduction]
    values = scaled(sample(reduction.dtype, 301, 4), accumulator, 1.0)
    values = values[values == values]
    neutral = Call(FILL_IDENTITY, isa, reduction)(accumulator, values)
    for left, right in ((neutral, values), (values, neutral)):
        assert Call(COMBINE, isa, reduction)(accumulator, left, right).tobytes() == values.tobytes()


@each_isa
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_in_place(isa, reduction, offset):
    dtype, op = reduction.dtype, reduction.op
    accumulator = ACCUMULATORS[reduction]
    lhs, rhs = (scaled(sample(dtype, 1301, seed), accumulator, 1.0) for seed in (5, 6))

    def run(which: int, out: np.ndarray, inputs: list[np.ndarray | None], *factors: float) -> np.ndarray:
        place = Placed(out.view(np.uint8), offset)
        others = [None if array is None else Placed(array.view(np.uint8), 0) for array in inputs]
        left, right = (place.address if other is None else other.address for other in others)
        _engine.test_kernel(which, isa, dtype, op, place.address, left, right, out.size, *factors)
        assert place.guards_intact()
        return place.values.copy().view(out.dtype)

    separate = Call(COMBINE, isa, reduction)(accumulator, lhs, rhs)
    assert_equal(run(COMBINE, lhs, [None, rhs]), separate, "out is lhs")
    assert_equal(run(COMBINE, rhs, [lhs, None]), separate, "out is rhs")
    if accumulator is not dtype:
        return
    for factors in ((1.0, 1), (1.0, 3), (0.1, 3)):
        separate = Call(STORE, isa, reduction, *factors)(dtype, lhs)
        assert_equal(run(STORE, lhs, [None, None], *factors), separate, f"store in place {factors}")
        separate = Call(LOAD, isa, reduction, factors[0])(dtype, lhs)
        assert_equal(run(LOAD, lhs, [None, None], factors[0]), separate, f"load in place {factors}")
        separate = Call(ACCUMULATE, isa, reduction, factors[0])(dtype, lhs, None, lhs)
        assert_equal(run(ACCUMULATE, lhs, [None, None], factors[0]), separate, f"accumulate in place {factors}")


# --- 16-bit floats -------------------------------------------------------------------------------------------------------

HALVES = [DType.FLOAT16, DType.BFLOAT16]
each_half = pytest.mark.parametrize("dtype", HALVES, ids=case_id)
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


# --- fold: all of a reduction in one pass --------------------------------------------------------------------------------

# Around the packs that are in flight together (64 to 256 elements), and pieces of what is not folded in registers.
FEW = (0, 1, 7, 15, 63, 64, 65, 127, 129, 255)
MANY = (256, 257, 513, 1023, 1025, 1301, 4097, 5003)
SCALINGS = ((1.0, 1.0, 1), (1.0, 1.0, 3), (1.0, 0.25, 1), (-1 / 3, 1.0, 1), (1.7, -0.3, 5))  # prescale, postscale, divisor


def raw_sample(dtype: DType, count: int, seed: int) -> np.ndarray:
    """`sample`, but a bool is any byte and floats are often NaNs of any payload, quiet or signalling."""
    values = sample(dtype, count, seed)
    noise = np.random.default_rng([int(dtype), count, seed, 1]).integers(0, 256, values.nbytes, dtype=np.uint8)
    if dtype is DType.BOOL:
        return (noise * (noise < 100)).view(values.dtype)
    if not dtype.is_float:
        return values
    bits = bits_of(values)
    infinity = bits_of(np.array([np.inf], dtype=values.dtype))
    return np.where(bits % 8 == 0, noise.view(bits.dtype) | infinity, bits).view(values.dtype)


def step_by_step(isa: int, reduction: Reduction, inputs: list[np.ndarray], scaling: tuple[float, float, int]) -> np.ndarray:
    """load, accumulate and store: what fold must give, bit by bit."""
    accumulator = ACCUMULATORS[reduction]
    prescale, postscale, divisor = scaling
    total = Call(LOAD, isa, reduction, prescale)(accumulator, inputs[0])
    for values in inputs[1:]:
        total = Call(ACCUMULATE, isa, reduction, prescale)(accumulator, values, None, total)
    return Call(STORE, isa, reduction, postscale, divisor)(reduction.dtype, total)


@each_isa
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_fold(isa, reduction):
    """One to five inputs, one to three outputs, apart and in the place of inputs, at any alignment."""
    dtype, op = reduction.dtype, reduction.op
    few, many = itertools.cycle(FEW), itertools.cycle(MANY)
    offsets = itertools.cycle((0, 0, 0, 1, 16, 40, 64, 8, 63, 5, 2))
    shapes = itertools.product(SCALINGS, range(1, 6), ((1, many), (2, many), (3, many), (2, few)))
    for scaling, num_in, (num_out, counts) in shapes:
        count = next(counts)
        inputs = [raw_sample(dtype, count, seed) for seed in range(num_in)]
        expected = bits_of(step_by_step(isa, reduction, inputs, scaling))
        for in_place in (0, min(num_in, num_out)):
            sources = [Placed(values.view(np.uint8), next(offsets)) for values in inputs]
            apart = [Placed(np.zeros_like(inputs[0]).view(np.uint8), next(offsets)) for _ in range(num_out - in_place)]
            shared = sources[num_in - in_place :]
            outputs = [*shared, *apart] if num_in % 2 else [*apart, *shared]
            _engine.test_fold(
                isa, dtype, op, [out.address for out in outputs], [source.address for source in sources], count, *scaling
            )
            what = (reduction, scaling, num_in, num_out, in_place, count)
            for index, out in enumerate(outputs):
                same = out.values.view(expected.dtype) == expected
                assert same.all(), f"{what}: output {index} has other bits at {np.argmin(same)}"
            for source, values in zip(sources[: num_in - in_place], inputs, strict=False):
                assert source.values.tobytes() == values.tobytes(), f"{what}: changed an input"
            assert all(place.guards_intact() for place in sources + outputs), f"{what}: wrote outside"


@each_isa
@each_half
def test_fold_rounds_once(isa, dtype):
    """The sum of 512 and eight ones in float32; in bfloat16 each one alone would be lost."""
    kind = numpy_dtype(dtype)
    inputs = [np.full(999, value, dtype=kind) for value in (512, *8 * [1])]
    out = np.zeros(999, dtype=kind)
    _engine.test_fold(isa, dtype, Op.SUM, [out.ctypes.data], [values.ctypes.data for values in inputs], out.size)
    assert np.all(out == kind.type(520))


@each_isa
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float], ids=case_id)
@pytest.mark.parametrize("op", [Op.SUM, Op.MIN], ids=str)
def test_fold_by_a_nan_is_nan(isa, dtype, op):
    """A factor whose mantissa is all ones: rounded to bfloat16 like a number it would become -0."""
    ones = np.ones(1300, dtype=numpy_dtype(dtype))
    factor = np.array([0x7FFFFFFFFFFFFFFF], dtype=np.uint64).view(np.float64).item()
    for scaling in ((factor, 1.0, 1), (1.0, factor, 2)):
        out = np.zeros_like(ones)
        _engine.test_fold(isa, dtype, op, [out.ctypes.data], [ones.ctypes.data] * 2, out.size, *scaling)
        assert np.isnan(out).all()


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
        expected = saturated((values.astype(np.float64) * factor).tolist(), kind)
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


# --- look-ups and refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_accumulator_of(reduction):
    assert _engine.accumulator_of(reduction.dtype, reduction.op) == ACCUMULATORS[reduction]


@each_isa
def test_no_elements_need_no_buffers(isa):
    for reduction, which in itertools.product(REDUCTIONS, range(5)):
        _engine.test_kernel(which, isa, reduction.dtype, reduction.op, 0, 0, 0, 0)
    for reduction in REDUCTIONS:
        _engine.test_fold(isa, reduction.dtype, reduction.op, [0], [0, 0], 0)


@each_isa
@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE])
@pytest.mark.parametrize(("dtype", "real"), [(DType.COMPLEX64, DType.FLOAT32), (DType.COMPLEX128, DType.FLOAT64)], ids=case_id)
def test_complex_numbers_are_pairs_of_floats(isa, op, dtype, real):
    pairs, floats = Reduction(dtype, op), Reduction(real, op)
    assert _engine.accumulator_of(dtype, int(op)) == dtype
    for count in COUNTS:
        lhs, rhs = (sample(real, 2 * count, seed) for seed in (1, 2))
        for which, factor, divisor in ((LOAD, 0.7, 1), (ACCUMULATE, 0.7, 1), (COMBINE, 1.0, 1), (STORE, 3.0, 7)):
            old = rhs if which == ACCUMULATE else None
            right = rhs.view(numpy_dtype(dtype)) if which == COMBINE else None
            found = Call(which, isa, pairs, factor, divisor)(
                dtype, lhs.view(numpy_dtype(dtype)), right, None if old is None else old.view(numpy_dtype(dtype))
            )
            wanted = Call(which, isa, floats, factor, divisor)(real, lhs, rhs if which == COMBINE else None, old)
            assert_exact(found.view(numpy_dtype(real)), wanted, f"{pairs} {which} {count}")
        out = np.zeros(count, numpy_dtype(dtype))
        inputs = [array.view(numpy_dtype(dtype)).ctypes.data for array in (lhs, rhs, lhs)]
        _engine.test_fold(isa, dtype, int(op), [out.ctypes.data], inputs, count, 0.5, 2.0, 3)
        wanted = np.zeros(2 * count, numpy_dtype(real))
        _engine.test_fold(isa, real, int(op), [wanted.ctypes.data], inputs, 2 * count, 0.5, 2.0, 3)
        assert_exact(out.view(numpy_dtype(real)), wanted, f"{pairs} fold {count}")
        identity = Call(4, isa, pairs)(dtype, lhs.view(numpy_dtype(dtype)))
        assert_exact(identity.view(numpy_dtype(real)), np.full(2 * count, -0.0, numpy_dtype(real)))


@pytest.mark.parametrize("dtype", DType, ids=case_id)
def test_adasum_has_no_kernels(dtype):
    with pytest.raises(errors.UnsupportedError, match=rf"Adasum of {dtype.label} is not supported.*use Average"):
        _engine.accumulator_of(dtype, 2)


@pytest.mark.parametrize("op", [Op.MIN, Op.MAX, Op.PRODUCT])
@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128], ids=case_id)
def test_complex_numbers_have_sums_only(dtype, op):
    with pytest.raises(errors.UnsupportedError, match=rf"{op.name.title()} of {dtype.label} .*Sum and Average only"):
        _engine.accumulator_of(dtype, int(op))


def test_average_of_bool_is_refused():
    with pytest.raises(errors.UnsupportedError, match=r"Average of bool is not supported.*Max \(any\) or Min \(all\)"):
        _engine.test_kernel(LOAD, SCALAR, DType.BOOL, Op.AVERAGE, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((LOAD, 3, DType.INT8, Op.SUM, 0, 0, 0, 0), "isa is 0"),
        ((LOAD, SCALAR, len(DType), Op.SUM, 0, 0, 0, 0), "unknown dtype"),
        ((LOAD, SCALAR, DType.INT8, 6, 0, 0, 0, 0), "unknown reduce op"),
        ((5, SCALAR, DType.INT8, Op.SUM, 0, 0, 0, 0), "which is 0"),
        ((LOAD, SCALAR, DType.INT8, Op.SUM, 0, 0, 0, 1), "out is null"),
        ((STORE, SCALAR, DType.INT8, Op.SUM, 0, 0, 0, 0, 1.0, 0), "divisor is at least 1"),
    ],
    ids=["isa", "dtype", "op", "which", "null", "divisor"],
)
def test_bad_arguments_are_refused(arguments, what):
    with pytest.raises(errors.InvalidArgumentError, match=what):
        _engine.test_kernel(*arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (([], [0], 0), "fold needs an output and an input"),
        (([0], [], 0), "fold needs an output and an input"),
        (([0], [64], 1), "an output is null"),
        (([64], [0], 1), "an input is null"),
        (([0], [0], 0, 1.0, 1.0, 0), "divisor is at least 1"),
    ],
    ids=["outputs", "inputs", "null_output", "null_input", "divisor"],
)
def test_bad_folds_are_refused(arguments, what):
    with pytest.raises(errors.InvalidArgumentError, match=what):
        _engine.test_fold(SCALAR, DType.INT8, Op.SUM, *arguments)
