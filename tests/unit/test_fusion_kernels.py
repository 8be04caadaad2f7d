"""The fusion kernels' source compiled for the host: values, alignments, many tensors, and not a byte beside them.

What a GPU makes of the same source is for tests/gpu; what stands around the kernels is tested in test_kernel_images.py
and test_kernel_launches.py.
"""

import mmap

import ml_dtypes
import numpy as np
import pytest
from support import fusion
from support.cases import REDUCTIONS, Op, Reduction
from support.fusion import Conversion, Guarded, Way, convert, move
from support.testing import native

from hvdlite.dtypes import DType, numpy_dtype

if fusion.missing():
    pytest.skip(str(fusion.missing()), allow_module_level=True)

FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
INTEGERS = tuple(dtype for dtype in DType if dtype <= DType.INT64)
WAYS = (Way(), Way(table=True), Way(multiprocessors=1, backwards=True), Way(table=True, multiprocessors=100000))
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 61, 127, 129, 1021, 2047, 2049, 4095, 4096, 4097, 4133, 16385)
SCALAR, LOAD, STORE, FILL_IDENTITY = 0, 0, 3, 4
label = {"ids": lambda value: value.label if isinstance(value, DType) else None}


def random_bits(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Any bits at all: NaNs, infinities and subnormal numbers among them."""
    draw = np.random.default_rng([int(dtype), count, seed])
    values = draw.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return values.view(numpy_dtype(dtype)) if dtype is not DType.BOOL else values % 2 == 1


def ordinary(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of very different size, of which some are special or become so when they are rounded."""
    draw = np.random.default_rng([int(dtype), count, seed])
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, 65519.0, 65520.0, 5.9e-8, 2.9e-8, 1e-40, 3.39e38, 3.5e38])
    values = draw.standard_normal(count) * 2.0 ** draw.integers(-30, 30, count)
    chosen = np.where(draw.random(count) < 0.2, special[draw.integers(0, special.size, count)], values)
    # Halfway between two numbers of 8 or 11 bits, and next to it.
    halfway = np.round(chosen * 2.0**8) / 2.0**8 * (1 + 2.0 ** -draw.choice([8, 9, 11, 12], count))
    halfway = halfway * (1 + draw.choice([0.0, 2.0**-52, -(2.0**-52), 2.0**-23], count))
    with np.errstate(all="ignore"):
        return np.where(draw.random(count) < 0.5, chosen, halfway).astype(numpy_dtype(dtype))


def rounded(values: np.ndarray, target: DType) -> np.ndarray:
    """float64 rounded once to the nearest, ties to even, found by looking at the neighbours of a guess."""
    kind = numpy_dtype(target)
    with np.errstate(all="ignore"):
        if target is not DType.BFLOAT16:
            return values.astype(kind)
        guess = values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int64)
        ways = [np.clip(guess & 0x7FFF, 0, 0x7F80) + step for step in (-1, 0, 1)]
        ways = [np.clip(way, 0, 0x7F80) for way in ways]
        magnitudes = [way.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.longdouble) for way in ways]
        # Infinity stands where the next number would be.
        magnitudes = [np.where(np.isinf(one), np.longdouble(2.0) ** 128, one) for one in magnitudes]
        errors = [np.abs(one - np.abs(values.astype(np.longdouble))) for one in magnitudes]
    best, error = ways[0], errors[0]
    for way, other in zip(ways[1:], errors[1:], strict=True):
        better = (other < error) | ((other == error) & (way % 2 == 0) & (best != way))
        best, error = np.where(better, way, best), np.where(better, other, error)
    best = np.where(np.isinf(values), 0x7F80, best) | np.where(np.signbit(values), 0x8000, 0)
    return np.where(np.isnan(values), 0x7FC0, best).astype(np.uint16).view(ml_dtypes.bfloat16)


def assert_same(actual: np.ndarray, wanted: np.ndarray) -> None:
    """The same bits, but any NaN for a NaN."""
    actual = actual.view(wanted.dtype)
    with np.errstate(all="ignore"):
        nan = np.isnan(wanted.astype(np.float64))
        assert np.array_equal(np.isnan(actual.astype(np.float64)), nan)
    bits = np.dtype(f"u{wanted.dtype.itemsize}")
    different = np.flatnonzero((actual.view(bits) != wanted.view(bits)) & ~nan)
    assert not different.size, f"element {different[0]}: {actual[different[0]]!r}, not {wanted[different[0]]!r}"


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 1 / 3, 4.0, 1e-9])
@pytest.mark.parametrize("target", FLOATS, **label)
@pytest.mark.parametrize("source", FLOATS, **label)
def test_floats_are_scaled_and_rounded_once(source, target, factor):
    values = ordinary(source, 5003)
    wide = np.float64 if DType.FLOAT64 in (source, target) else np.float32
    with np.errstate(all="ignore"):
        product = values.astype(wide) * wide(factor)
    wanted = rounded(product.astype(np.float64), target)
    for unpack in (False, True):
        actual = convert(values, Conversion(source, target, factor), unpack=unpack)
        assert_same(actual, wanted)


@pytest.mark.parametrize("dtype", FLOATS, **label)
def test_a_float_has_the_bits_that_the_processor_gives_it(dtype):
    """To the accumulator's type and back, quiet NaNs with their payload: what csrc/kernels does."""
    values = random_bits(dtype, 70001)
    quiet = {DType.FLOAT16: 1 << 9, DType.BFLOAT16: 1 << 6, DType.FLOAT32: 1 << 22, DType.FLOAT64: 1 << 51}[dtype]
    with np.errstate(invalid="ignore"):
        values.view(f"u{dtype.itemsize}")[np.isnan(values)] |= quiet
    reduction = Reduction(dtype, Op.SUM)
    accumulator = DType(native.accumulator_of(dtype, Op.SUM))
    for factor, divisor in ((1.0, 1), (0.37, 1), (-2.5, 3)):
        loaded = np.zeros(values.size, numpy_dtype(accumulator))
        native.test_kernel(LOAD, SCALAR, dtype, reduction.op, loaded.ctypes.data, values.ctypes.data, 0, values.size, factor, 1)
        packed = convert(values, Conversion(dtype, accumulator, factor))
        assert packed.tobytes() == loaded.tobytes()
        stored = np.zeros_like(values)
        native.test_kernel(
            STORE, SCALAR, dtype, reduction.op, stored.ctypes.data, loaded.ctypes.data, 0, values.size, factor, divisor
        )
        assert convert(loaded, Conversion(accumulator, dtype, factor, divisor), unpack=True).tobytes() == stored.tobytes()


@pytest.mark.parametrize("dtype", INTEGERS, **label)
def test_an_integer_has_the_value_that_the_processor_gives_it(dtype):
    values = random_bits(dtype, 4099)
    accumulator = DType(native.accumulator_of(dtype, Op.AVERAGE))
    for factor, divisor in ((1.0, 1), (1.0, 7), (0.37, 1), (-2.5, 3), (1e30, 1), (float("nan"), 1)):
        loaded = np.zeros(values.size, numpy_dtype(accumulator))
        native.test_kernel(LOAD, SCALAR, dtype, Op.AVERAGE, loaded.ctypes.data, values.ctypes.data, 0, values.size, factor, 1)
        assert convert(values, Conversion(dtype, accumulator, factor)).tobytes() == loaded.tobytes()
        sums = random_bits(accumulator, 4099, seed=1)
        sums[::3] = loaded[::3]
        stored = np.zeros_like(values)
        native.test_kernel(
            STORE, SCALAR, dtype, Op.AVERAGE, stored.ctypes.data, sums.ctypes.data, 0, values.size, factor, divisor
        )
        assert convert(sums, Conversion(accumulator, dtype, factor, divisor), unpack=True).tobytes() == stored.tobytes()


@pytest.mark.parametrize("target", [*INTEGERS, DType.BOOL], **label)
@pytest.mark.parametrize("source", [*INTEGERS, DType.BOOL], **label)
def test_integers_of_all_widths_are_clamped(source, target):
    values = random_bits(source, 1001)
    if source is not DType.BOOL:
        values[:9] = [np.iinfo(values.dtype).min, np.iinfo(values.dtype).max, 0, 1, 2, 3, 4, 5, 6]
    if (source, target) == (DType.UINT8, DType.BOOL):
        values %= 2  # bytes are copied
    whole = [int(value) for value in values]
    limits = (0, 1) if target is DType.BOOL else (np.iinfo(numpy_dtype(target)).min, np.iinfo(numpy_dtype(target)).max)
    wanted = (
        [value != 0 for value in whole] if target is DType.BOOL else [min(max(value, limits[0]), limits[1]) for value in whole]
    )
    actual = convert(values, Conversion(source, target)).view(numpy_dtype(target))
    assert actual.tolist() == wanted


@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128], **label)
def test_a_complex_number_is_two_floats(dtype):
    real = DType.FLOAT32 if dtype is DType.COMPLEX64 else DType.FLOAT64
    values = ordinary(real, 2002)
    pairs = values.view(numpy_dtype(dtype))
    conversion = Conversion(dtype, dtype, 0.3, 2)
    assert convert(pairs, conversion).tobytes() == convert(values, Conversion(real, real, 0.3, 2)).tobytes()


def test_other_pairs_of_types_are_refused():
    values = np.zeros(1, np.float32)
    for source, target in ((DType.FLOAT32, DType.INT32), (DType.BOOL, DType.FLOAT16), (DType.COMPLEX64, DType.FLOAT32)):
        with pytest.raises(ValueError, match=f"a GPU tensor of {source.label} cannot travel as {target.label}"):
            convert(values, Conversion(source, target))


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_bytes_are_copied_whatever_their_alignment(way):
    for source in range(16):
        for target in range(16):
            for size in SIZES if source in (0, 5, 12) and target in (0, 8, 13) else (33, 4133):
                values = random_bits(DType.UINT8, size, seed=source)
                conversion = Conversion(DType.UINT8, DType.UINT8)
                assert convert(values, conversion, (source, target), way).tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", DType, **label)
def test_every_type_is_copied_bit_by_bit(dtype):
    for size in SIZES:
        values = random_bits(dtype, size)
        for misfits in ((0, 0), (1, 6), (dtype.itemsize, 0)):
            assert convert(values, Conversion(dtype, dtype), misfits).tobytes() == values.tobytes()


@pytest.mark.parametrize("target", FLOATS, **label)
@pytest.mark.parametrize("source", FLOATS, **label)
def test_floats_are_cast_wherever_they_lie(source, target):
    """Every alignment that numbers can have, and every size around a vector and a tile."""
    conversion = Conversion(source, target, 0.5)
    for way in WAYS:
        for size in SIZES if way in WAYS[:2] else (33, 9001):
            values = ordinary(source, size)
            wanted = convert(values, conversion)
            for misfits in ((a, b) for a in range(0, 16, source.itemsize) for b in range(0, 16, target.itemsize)):
                if size in (0, 31, 33, 4133) or misfits in ((0, 0), (8, 0), (0, 8)):
                    assert convert(values, conversion, misfits, way).tobytes() == wanted.tobytes()


def test_integers_are_scaled_wherever_they_lie():
    for dtype in INTEGERS:
        for size in SIZES:
            values = random_bits(dtype, size)
            wanted = convert(values, Conversion(dtype, dtype, 1.0, 3))
            signed = [int(value) for value in values]
            assert wanted.view(values.dtype).tolist() == [abs(value) // 3 * (1 if value >= 0 else -1) for value in signed]
            for way in WAYS:
                assert convert(values, Conversion(dtype, dtype, 1.0, 3), (dtype.itemsize, 0), way).tobytes() == wanted.tobytes()


def test_a_tensor_may_be_its_own_place_in_the_buffer():
    values = ordinary(DType.FLOAT32, 5003)
    for misfit in (0, 4, 12):
        memory = Guarded.of(values, misfit)
        move([memory.address], [(0, values.size)], memory.address, Conversion(DType.FLOAT32, DType.FLOAT32, 0.25))
        memory.check()
        assert memory.bytes.tobytes() == convert(values, Conversion(DType.FLOAT32, DType.FLOAT32, 0.25)).tobytes()


def test_a_buffer_may_have_more_elements_than_32_bits_can_count():
    """Such a piece does not fit into the launch, whatever its size."""
    size = (1 << 32) + 4096
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    view = np.frombuffer(buffer, np.uint8)
    values = random_bits(DType.UINT8, 100)
    conversion = Conversion(DType.UINT8, DType.UINT8)
    places = [(5, 100), ((1 << 32) + 5, 100)]
    move([values.ctypes.data] * 2, places, view.ctypes.data, conversion)
    for offset, count in places:
        assert np.array_equal(view[offset : offset + count], values)
    assert not view[105:4096].any()
    assert not view[(1 << 32) + 105 :].any()


# --- many pieces ------------------------------------------------------------------------------------------------------


class Many:
    """Tensors of random sizes and alignments, with gaps between their places in the buffer."""

    def __init__(self, number: int, conversion: Conversion, seed: int, largest: int = 3000) -> None:
        draw = np.random.default_rng([number, seed])
        width = conversion.source.itemsize
        sizes = np.where(draw.random(number) < 0.1, 0, draw.integers(0, largest, number) ** 2 // largest).tolist()
        misfits = (draw.integers(0, 16 // width, number) * width).tolist()
        self.conversion = conversion
        self.values = [ordinary(conversion.source, size, seed=i) for i, size in enumerate(sizes)]
        self.tensors = [Guarded.of(*pair) for pair in zip(self.values, misfits, strict=True)]
        self.wanted = [convert(value, conversion).tobytes() for value in self.values]
        self.places = [(0, 0)] * number
        self.size = 3
        for i in draw.permutation(number).tolist():  # the buffer's order is not that of the list
            self.places[i] = (self.size, sizes[i])
            self.size += sizes[i] + int(draw.integers(0, 40))

    def check(self, memory: Guarded, fill: int) -> None:
        """All is in its place, and the gaps are as they were."""
        size = self.conversion.target.itemsize
        written = np.zeros(self.size * size, bool)
        for (offset, count), wanted in zip(self.places, self.wanted, strict=True):
            assert memory.bytes[offset * size : (offset + count) * size].tobytes() == wanted
            written[offset * size : (offset + count) * size] = True
        assert np.all(memory.bytes[~written] == fill)
        memory.check()


@pytest.mark.parametrize("number", [1, 2, 7, 191, 192, 193, 500])
def test_any_number_of_tensors_goes_there_and_back(number):
    same = Conversion(DType.FLOAT32, DType.FLOAT32)
    for conversion in (same, Conversion(DType.FLOAT32, DType.BFLOAT16, 0.5), Conversion(DType.FLOAT16, DType.FLOAT32)):
        many = Many(number, conversion, seed=int(conversion.target))
        back = Conversion(conversion.target, conversion.source, 2.0)
        packed = [np.frombuffer(wanted, numpy_dtype(conversion.target)) for wanted in many.wanted]
        unpacked = [convert(values, back).tobytes() for values in packed]
        left_out = number // 2  # has no tensor on the way back
        for way in WAYS:
            buffer = Guarded(many.size * conversion.target.itemsize, fill=0x77)
            move([tensor.address for tensor in many.tensors], many.places, buffer.address, conversion, way=way)
            many.check(buffer, 0x77)
            results = [Guarded(values.nbytes, misfit=8) for values in many.values]
            addresses = [None if i == left_out else result.address for i, result in enumerate(results)]
            move(addresses, many.places, buffer.address, back, unpack=True, way=way)
            for i, (result, wanted) in enumerate(zip(results, unpacked, strict=True)):
                result.check()
                assert np.all(result.bytes == 0x5A) if i == left_out else result.bytes.tobytes() == wanted


def test_one_large_tensor_is_moved_by_as_many_blocks_as_many_small_ones():
    """The work of a launch is cut into equal tiles, whatever the pieces."""
    conversion = Conversion(DType.FLOAT32, DType.FLOAT32)
    values = np.arange(1 << 20, dtype=np.float32)
    target = Guarded(values.nbytes)
    cut = [(i << 12, 1 << 12) for i in range(256)]
    addresses = [values.ctypes.data + 4 * offset for offset, _ in cut]
    blocks = move(addresses, cut, target.address, conversion)
    assert move([values.ctypes.data], [(0, values.size)], target.address, conversion) == blocks == 512
    assert move([values.ctypes.data], [(0, values.size)], target.address, conversion, way=Way(multiprocessors=8)) == 256


# --- absent tensors and numbers that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_an_absent_tensor_gives_the_identity(reduction):
    dtype, op = reduction.dtype, reduction.op
    accumulator = DType(native.accumulator_of(dtype, op))
    for target in {dtype, accumulator}:
        wanted = np.zeros(2500, numpy_dtype(target))
        if target is accumulator:
            native.test_kernel(FILL_IDENTITY, SCALAR, dtype, op, wanted.ctypes.data, 0, 0, wanted.size, 1.0, 1)
        else:
            bound = np.iinfo(wanted.dtype) if target <= DType.INT64 else None
            least, most = (bound.min, bound.max) if bound else (-np.inf, np.inf)
            wanted[:] = {Op.MIN: most, Op.MAX: least, Op.PRODUCT: 1}.get(op, 0 if bound else -0.0)
        value = ordinary(dtype, 5) if dtype.is_float else random_bits(dtype, 5)
        for offset, count in ((0, 0), (1, 1), (3, 17), (5, 2411)):
            buffer = Guarded((offset + count + 5) * target.itemsize)
            places = [(offset, count), (offset + count, 5)]
            move([None, value.ctypes.data], places, buffer.address, Conversion(dtype, target, op=op))
            size = target.itemsize
            assert buffer.bytes[offset * size : (offset + count) * size].tobytes() == wanted[:count].tobytes()
            assert np.all(buffer.bytes[: offset * size] == 0x5A)
            buffer.check()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("target", FLOATS, **label)
@pytest.mark.parametrize("source", FLOATS, **label)
def test_what_is_not_finite_is_flagged_in_its_own_piece(source, target, way):
    """Wherever it stands in a tensor; of absent tensors nothing, even if the identity is infinite."""
    kind = numpy_dtype(source)
    count, bad = 301, {3: (0, np.nan), 9: (300, np.inf), 20: (150, -np.inf), 21: (7, np.nan), 199: (299, np.inf)}
    tensors = [np.full(count, 1.5 + i / 256, kind) for i in range(200)]
    for piece, (place, value) in bad.items():
        tensors[piece][place] = value
    addresses = [None if i == 50 else tensor.ctypes.data for i, tensor in enumerate(tensors)]
    buffer = Guarded(len(tensors) * 310 * target.itemsize)
    places = [(310 * i + i % 3, count) for i in range(len(tensors))]
    nonfinite = np.full(len(tensors), 0, np.int32)
    nonfinite[4] = 77  # left alone
    move(addresses, places, buffer.address, Conversion(source, target, op=Op.MIN), nonfinite=nonfinite, way=way)
    assert nonfinite[4] == 77
    nonfinite[4] = 0
    assert set(np.flatnonzero(nonfinite).tolist()) == set(bad)
    assert set(nonfinite[nonfinite != 0].tolist()) == {1}
    size = target.itemsize
    for (offset, _), tensor, address in zip(places, tensors, addresses, strict=True):
        if address is not None:
            actual = buffer.bytes[offset * size : (offset + count) * size]
            assert_same(actual, tensor.astype(np.float64).astype(numpy_dtype(target)))


def test_a_number_that_its_wire_cannot_hold_is_flagged():
    values = np.array([1.0, 65519.0, 65520.0], np.float32)
    buffer = Guarded(64)
    for count, wanted in ((2, 0), (3, 1)):
        nonfinite = np.zeros(1, np.int32)
        move([values.ctypes.data], [(0, count)], buffer.address, Conversion(DType.FLOAT32, DType.FLOAT16), nonfinite=nonfinite)
        assert nonfinite.tolist() == [wanted]


def test_integers_have_no_flags():
    values = np.full(100, -1, np.int32)
    buffer, nonfinite = Guarded(400), np.zeros(1, np.int32)
    move([values.ctypes.data], [(0, 100)], buffer.address, Conversion(DType.INT32, DType.INT32), nonfinite=nonfinite)
    assert nonfinite.tolist() == [0]
    assert buffer.bytes.tobytes() == values.tobytes()
