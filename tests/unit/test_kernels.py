"""The reduction kernels alone: every instruction set this processor has, element type, operator, count and alignment.

Expected values are numpy's, computed one operation at a time in float64 (exact for float32 operands, so one rounding is
left) or in wrapping integers; every instruction set must give the bits of the scalar one.
"""

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from support.cases import Op, Reduction, case_id
from support.kernels import (
    ACCUMULATE,
    ACCUMULATORS,
    COMBINE,
    COUNTS,
    FILL_IDENTITY,
    LOAD,
    OFFSETS,
    REDUCTIONS,
    SCALAR,
    STORE,
    Call,
    Placed,
    assert_equal,
    assert_exact,
    assert_scalar_bits,
    bits_of,
    each_half,
    each_isa,
    finished,
    identity,
    reduced,
    sample,
    scaled,
)
from support.testing import native

from hvdlite import errors
from hvdlite.dtypes import DType, numpy_dtype

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


def test_the_processor_is_asked_once_for_its_features():
    """Every operation looks for its kernels, and under a hypervisor an answer takes 25 microseconds: what runs once asks."""
    source = (Path(__file__).parents[2] / "csrc" / "kernels" / "dispatch.cc").read_text()
    source = re.sub(r"bool has_f16c\(\) \{.*?\n\}", "", re.sub(r"//.*", "", source), flags=re.DOTALL)
    asking = [statement for statement in source.split(";") if re.search(r"cpu_supports|cpuid\(|has_f16c", statement)]
    assert len(asking) == 2
    assert all("static const bool" in statement for statement in asking)


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
def test_in_place(isa, reduction):
    for offset in (0, 1, 16):
        check_in_place(isa, reduction, offset)


def check_in_place(isa, reduction, offset):
    dtype, op = reduction.dtype, reduction.op
    accumulator = ACCUMULATORS[reduction]
    lhs, rhs = (scaled(sample(dtype, 1301, seed), accumulator, 1.0) for seed in (5, 6))

    def run(which: int, out: np.ndarray, inputs: list[np.ndarray | None], *factors: float) -> np.ndarray:
        place = Placed(out.view(np.uint8), offset)
        others = [None if array is None else Placed(array.view(np.uint8), 0) for array in inputs]
        left, right = (place.address if other is None else other.address for other in others)
        native.test_kernel(which, isa, dtype, op, place.address, left, right, out.size, *factors)
        assert place.guards_intact()
        return place.values.copy().view(out.dtype)

    separate = Call(COMBINE, isa, reduction)(accumulator, lhs, rhs)
    assert_equal(run(COMBINE, lhs, [None, rhs]), separate, f"out is lhs, offset {offset}")
    assert_equal(run(COMBINE, rhs, [lhs, None]), separate, f"out is rhs, offset {offset}")
    if accumulator is not dtype:
        return
    for factors in ((1.0, 1), (1.0, 3), (0.1, 3)):
        separate = Call(STORE, isa, reduction, *factors)(dtype, lhs)
        assert_equal(run(STORE, lhs, [None, None], *factors), separate, f"store in place {factors}, offset {offset}")
        separate = Call(LOAD, isa, reduction, factors[0])(dtype, lhs)
        assert_equal(run(LOAD, lhs, [None, None], factors[0]), separate, f"load in place {factors}, offset {offset}")
        separate = Call(ACCUMULATE, isa, reduction, factors[0])(dtype, lhs, None, lhs)
        assert_equal(
            run(ACCUMULATE, lhs, [None, None], factors[0]), separate, f"accumulate in place {factors}, offset {offset}"
        )


# --- fold: all of a reduction in one pass --------------------------------------------------------------------------------

# Around the packs that are in flight together (64 to 256 elements), and pieces of what is not folded in registers.
FEW = (0, 1, 7, 15, 63, 64, 65, 127, 129, 255)
MANY = (256, 257, 513, 1023, 1025, 1301, 4097, 5003)
SCALINGS = ((1.0, 1.0, 1), (1.0, 1.0, 3), (1.0, 0.25, 1), (-1 / 3, 1.0, 1), (1.7, -0.3, 5))  # prescale, postscale, divisor


@functools.cache
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
            native.test_fold(
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
    native.test_fold(isa, dtype, Op.SUM, [out.ctypes.data], [values.ctypes.data for values in inputs], out.size)
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
        native.test_fold(isa, dtype, op, [out.ctypes.data], [ones.ctypes.data] * 2, out.size, *scaling)
        assert np.isnan(out).all()


# --- look-ups and refusals -----------------------------------------------------------------------------------------------


def test_accumulator_of():
    assert {each: native.accumulator_of(each.dtype, each.op) for each in REDUCTIONS} == {
        each: ACCUMULATORS[each] for each in REDUCTIONS
    }


@each_isa
def test_no_elements_need_no_buffers(isa):
    for reduction, which in itertools.product(REDUCTIONS, range(5)):
        native.test_kernel(which, isa, reduction.dtype, reduction.op, 0, 0, 0, 0)
    for reduction in REDUCTIONS:
        native.test_fold(isa, reduction.dtype, reduction.op, [0], [0, 0], 0)


@each_isa
@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE])
@pytest.mark.parametrize(("dtype", "real"), [(DType.COMPLEX64, DType.FLOAT32), (DType.COMPLEX128, DType.FLOAT64)], ids=case_id)
def test_complex_numbers_are_pairs_of_floats(isa, op, dtype, real):
    pairs, floats = Reduction(dtype, op), Reduction(real, op)
    assert native.accumulator_of(dtype, int(op)) == dtype
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
        native.test_fold(isa, dtype, int(op), [out.ctypes.data], inputs, count, 0.5, 2.0, 3)
        wanted = np.zeros(2 * count, numpy_dtype(real))
        native.test_fold(isa, real, int(op), [wanted.ctypes.data], inputs, 2 * count, 0.5, 2.0, 3)
        assert_exact(out.view(numpy_dtype(real)), wanted, f"{pairs} fold {count}")
        identity = Call(4, isa, pairs)(dtype, lhs.view(numpy_dtype(dtype)))
        assert_exact(identity.view(numpy_dtype(real)), np.full(2 * count, -0.0, numpy_dtype(real)))


@pytest.mark.parametrize("dtype", DType, ids=case_id)
def test_adasum_has_no_kernels(dtype):
    with pytest.raises(errors.UnsupportedError, match=rf"Adasum of {dtype.label} is not supported.*use Average"):
        native.accumulator_of(dtype, 2)


@pytest.mark.parametrize("op", [Op.MIN, Op.MAX, Op.PRODUCT])
@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128], ids=case_id)
def test_complex_numbers_have_sums_only(dtype, op):
    with pytest.raises(errors.UnsupportedError, match=rf"{op.name.title()} of {dtype.label} .*Sum and Average only"):
        native.accumulator_of(dtype, int(op))


def test_average_of_bool_is_refused():
    with pytest.raises(errors.UnsupportedError, match=r"Average of bool is not supported.*Max \(any\) or Min \(all\)"):
        native.test_kernel(LOAD, SCALAR, DType.BOOL, Op.AVERAGE, 0, 0, 0, 0)


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
        native.test_kernel(*arguments)


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
        native.test_fold(SCALAR, DType.INT8, Op.SUM, *arguments)
