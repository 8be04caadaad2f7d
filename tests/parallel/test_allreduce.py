"""Allreduce of NumPy arrays: every dtype and op, shapes, layouts, names, handles, factors, compression."""

import gc

import numpy as np
import pytest
from support.cases import COUNTS, REDUCTIONS, SHAPES, Op, Reduction
from support.world import REPEATS, WORLD, check, inputs, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)
FLOAT_AVERAGE = Reduction(DType.FLOAT32, Op.AVERAGE)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_every_dtype_and_op(hvd, reduction):
    for repeat in REPEATS:
        everyone = inputs(reduction, (1031,), repeat)
        before = everyone[RANK].copy()
        out = hvd.allreduce(everyone[RANK], name=f"t.{reduction}", op=int(reduction.op))
        check(out, everyone, reduction, str(reduction))
        np.testing.assert_array_equal(everyone[RANK], before)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("reduction", [FLOAT_SUM, Reduction(DType.INT8, Op.MAX)], ids=str)
def test_every_count(hvd, reduction, count):
    for repeat in REPEATS:
        everyone = inputs(reduction, (count,), repeat)
        check(hvd.allreduce(everyone[RANK], op=int(reduction.op)), everyone, reduction, f"count {count}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(hvd, shape):
    for repeat in REPEATS:
        everyone = inputs(FLOAT_AVERAGE, shape, repeat)
        check(hvd.allreduce(everyone[RANK]), everyone, FLOAT_AVERAGE, f"shape {shape}")


def test_many_megabytes(hvd):
    for repeat in REPEATS:
        everyone = inputs(FLOAT_SUM, (1_500_017,), repeat)  # multiples of 1/4: float32 sums them exactly
        out = hvd.allreduce(everyone[RANK], name="big", op=hvd.Sum)
        np.testing.assert_array_equal(out, sum(everyone))


def test_in_place_writes_into_the_argument_and_returns_it(hvd):
    for repeat in REPEATS:
        everyone = inputs(FLOAT_SUM, (17, 31), repeat)
        mine = everyone[RANK].copy()
        assert hvd.allreduce_(mine, name="inplace", op=hvd.Sum) is mine
        check(mine, everyone, FLOAT_SUM, "in place")


LAYOUTS = {
    "fortran": lambda a: np.asfortranarray(a),
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: a[::-1],
    "big-endian": lambda a: a.astype(">f4"),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_other_than_contiguous(hvd, layout):
    for repeat in REPEATS:
        own = inputs(FLOAT_SUM, (6, 5), repeat)[RANK]
        # Only the last rank's memory is unusual: in NumPy ranks need not have one layout.
        mine = LAYOUTS[layout](own) if RANK == SIZE - 1 else own
        everyone = WORLD.allgather(np.array(mine, dtype=np.float32, order="C"))
        out = hvd.allreduce(mine, name=layout, op=hvd.Sum)
        check(out, everyone, FLOAT_SUM, layout)
        assert hvd.allreduce_(mine, name=layout, op=hvd.Sum) is mine
        np.testing.assert_array_equal(mine, out)


@pytest.mark.parametrize("in_place", [False, True])
def test_named_tensors_in_any_order(hvd, in_place):
    names = [f"tensor.{index}" for index in range(40)]
    for repeat in REPEATS:
        everyone = {name: inputs(FLOAT_SUM, (index * 3,), repeat) for index, name in enumerate(names)}
        start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
        handles = {name: start(everyone[name][RANK].copy(), name=name, op=hvd.Sum) for name in shuffled(names, repeat)}
        outputs = {name: hvd.synchronize(handles[name]) for name in shuffled(names, repeat + 1)}
        for name in names:
            check(outputs[name], everyone[name], FLOAT_SUM, name)


def test_dtypes_ops_and_sizes_in_flight_together(hvd):
    for repeat in REPEATS:
        everyone = {str(r): inputs(r, (7 + 50 * int(r.dtype),), repeat) for r in REDUCTIONS}
        handles = {
            str(r): hvd.allreduce_async(everyone[str(r)][RANK], name=str(r), op=int(r.op)) for r in shuffled(REDUCTIONS, repeat)
        }
        for reduction in REDUCTIONS:
            check(handles[str(reduction)].synchronize(), everyone[str(reduction)], reduction, str(reduction))


def test_unnamed_tensors_pair_by_order(hvd):
    everyone = [inputs(FLOAT_SUM, (index + 1,), index) for index in range(5)]
    handles = [hvd.allreduce_async(arrays[RANK], op=hvd.Sum) for arrays in everyone]
    for handle, arrays in zip(handles, everyone, strict=True):
        check(hvd.synchronize(handle), arrays, FLOAT_SUM, "unnamed")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32, DType.UINT8], ids=str)
@pytest.mark.parametrize(("prescale", "postscale"), [(0.5, 1.0), (1.0, 2.0), (0.25, 3.0)])
def test_factors(hvd, dtype, prescale, postscale):
    for op in (Op.SUM, Op.AVERAGE):
        reduction = Reduction(dtype, op)
        everyone = inputs(reduction, (101,))
        out = hvd.allreduce(everyone[RANK], op=int(op), prescale_factor=prescale, postscale_factor=postscale)
        check(out, everyone, reduction, "scaled", prescale=prescale, postscale=postscale)


def test_integer_average_divides_exactly(hvd):
    for dtype in ("uint8", "int8", "int64"):
        out = hvd.allreduce(np.ones(5, dtype))
        np.testing.assert_array_equal(out, np.ones(5, dtype))


def test_sixteen_bit_floats_are_rounded_once(hvd):
    ones = np.full(3, 1.0, "float16")
    assert hvd.allreduce(ones * np.float16(65504)).tolist() == [65504.0] * 3  # the mean fits, the sum would not
    small = np.full(3, 1.0 if RANK == 0 else 2.0**-11, "float16")
    wanted = np.float16(1.0 + (SIZE - 1) * 2.0**-11)
    assert hvd.allreduce(small, op=hvd.Sum).tolist() == [wanted] * 3


def test_lists_and_numbers(hvd):
    out = hvd.allreduce([RANK, 1.0], op=hvd.Sum)
    np.testing.assert_array_equal(out, [sum(range(SIZE)), SIZE])
    number = hvd.allreduce(RANK + 1, op=hvd.Max)
    assert number.shape == ()
    assert int(number) == SIZE


@pytest.mark.parametrize("name", ["fp16", "bf16", "none"])
def test_compression(hvd, name):
    everyone = inputs(FLOAT_SUM, (33,))
    compression = getattr(hvd.Compression, name)
    out = hvd.allreduce(everyone[RANK], compression=compression, op=hvd.Sum)
    assert out.dtype == np.float32
    tolerance = {"fp16": 2.0**-10, "bf16": 2.0**-7, "none": 0}[name]
    np.testing.assert_allclose(out, sum(array.astype("float64") for array in everyone), rtol=tolerance)
    integers = np.arange(3)
    np.testing.assert_array_equal(hvd.allreduce(integers, compression=compression), integers)


def test_average_is_deprecated_but_works(hvd):
    everyone = inputs(FLOAT_SUM, (4,))
    for call in (hvd.allreduce, lambda *given, **named: hvd.synchronize(hvd.allreduce_async(*given, **named))):
        with pytest.warns(DeprecationWarning, match="average") as caught:
            out = call(everyone[RANK], average=False)
        assert caught[0].filename == __file__
        check(out, everyone, FLOAT_SUM, "average=False")
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(everyone[RANK], average=True, op=hvd.Sum)


def test_poll_is_false_while_another_rank_is_late(hvd):
    if SIZE == 1:
        pytest.skip("one rank is never late")
    handle = hvd.allreduce_async(np.ones(3), name="late", op=hvd.Sum) if RANK == 0 else None
    if handle is not None:
        assert not hvd.poll(handle)
    WORLD.Barrier()
    if handle is None:
        handle = hvd.allreduce_async(np.ones(3), name="late", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [SIZE] * 3
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is None


def test_a_dropped_handle_keeps_its_tensor_until_the_end(hvd):
    for repeat in REPEATS:
        mine = np.full(10_000, float(RANK + repeat))
        hvd.allreduce_async_(mine, name=f"dropped.{repeat}", op=hvd.Sum)
        gc.collect()
        check_in_between = hvd.allreduce(np.ones(3), op=hvd.Sum)
        assert check_in_between.tolist() == [SIZE] * 3


REFUSED = {
    "strings": (lambda hvd: hvd.allreduce(np.zeros(1, "U3")), "dtype str96 cannot be sent"),
    "bool average": (
        lambda hvd: hvd.allreduce(np.zeros(1, bool), name="flag"),
        "allreduce of 'flag' in process set 0: Average of bool is not supported: use Max",
    ),
    "complex product": (
        lambda hvd: hvd.allreduce(np.zeros(1, complex), op=hvd.Product, name="z"),
        "allreduce of 'z' in process set 0: Product of complex128 is not supported: complex numbers have Sum and Average only",
    ),
    "read-only": (lambda hvd: hvd.allreduce_(np.broadcast_to(1.0, 3)), "read-only"),
    "list in place": (lambda hvd: hvd.allreduce_([1.0]), "in-place operation needs a NumPy array"),
    "op": (lambda hvd: hvd.allreduce(np.zeros(1), op=17), "is no reduce operator"),
    "process set": (lambda hvd: hvd.allreduce(np.zeros(1), process_set=[0]), "is no ProcessSet"),
    "unregistered": (
        lambda hvd: hvd.allreduce(np.zeros(1), process_set=hvd.ProcessSet([0])),
        "has not been registered",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused_before_anything_is_sent(hvd, case):
    call, said = REFUSED[case]
    if RANK == 0:  # the other ranks are not involved
        with pytest.raises((hvd.InvalidArgumentError, hvd.UnsupportedError), match=said):
            call(hvd)
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="after").tolist() == [SIZE] * 2


def test_a_name_can_be_in_flight_only_once(hvd):
    if SIZE == 1:
        pytest.skip("nothing stays in flight on one rank")
    for _ in REPEATS:
        if RANK == 0:
            first = hvd.allreduce_async(np.ones(2), name="twice", op=hvd.Sum)
            with pytest.raises(ValueError, match=r"twice.*still in flight on this rank"):
                hvd.allreduce_async(np.ones(2), name="twice", op=hvd.Sum)
            WORLD.Barrier()
        else:
            WORLD.Barrier()
            first = hvd.allreduce_async(np.ones(2), name="twice", op=hvd.Sum)
        assert hvd.synchronize(first).tolist() == [SIZE] * 2
