"""Every collective on GPU tensors of every kind, by each route: values, where they lie, and which way they went."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from support.cases import REDUCTIONS, SHAPES, Expected, Op, expected
from support.set_cases import FORMS, Members, check_form
from support.world import REPEATS, WORLD, check, distinct, inputs, shuffled

from hvdlite.dtypes import DType, numpy_dtype

STAND_INS = ("fakes", "host")
RANK, SIZE = WORLD.rank, WORLD.size
NARROW = (DType.FLOAT16, DType.BFLOAT16)


def members(salt=0):
    return Members(list(range(SIZE)), RANK, SIZE - 1, salt)


@pytest.mark.parametrize("name", FORMS)
def test_every_form(hvd, kind, taken, name):
    with taken():
        for repeat in REPEATS:
            check_form(FORMS[name], kind.door, hvd.global_process_set, members(repeat), kind.tensor, kind.host)


def check_by_route(actual, everyone, reduction, route, what, **factors):
    """As `check`. NCCL adds 16-bit floats as such: every addition and every factor is rounded to them."""
    if route != "nccl" or reduction.dtype not in NARROW or reduction.op in (Op.MIN, Op.MAX):
        check(actual, everyone, reduction, what, **factors)
        return
    flat = [array.ravel() for array in everyone]
    found = expected(flat, reduction, **factors)
    unit = float(ml_dtypes.finfo(numpy_dtype(reduction.dtype)).eps) / 2
    wide = np.abs(np.stack(flat).astype(np.float64)) * abs(factors.get("prescale", 1.0))
    size = wide.prod(axis=0) if reduction.op is Op.PRODUCT else wide.sum(axis=0)
    bound = (2 * SIZE + 3) * unit * size * abs(factors.get("postscale", 1.0))
    assert actual.dtype == everyone[0].dtype
    assert actual.shape == everyone[0].shape
    Expected(found.value, np.maximum(found.tolerance, bound)).check(actual.ravel(), what)


def skip_on_fakes(kind, mode, dtype):
    """Whose arrays have other kinds around them, and bfloat16 in torch's only."""
    if mode == "fakes" and (kind.name == "cupy" or (kind.name == "torch" and dtype is not DType.BFLOAT16)):
        pytest.skip("on the fakes one kind of array is enough")


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_every_reduction(kind, route, mode, reduction):
    """All element types and operators, in all shapes; what NCCL lacks goes through host memory."""
    skip_on_fakes(kind, mode, reduction.dtype)
    if not kind.has(numpy_dtype(reduction.dtype)):
        pytest.skip(f"{kind.name} has no {reduction.dtype.label}")
    number = REDUCTIONS.index(reduction)
    shapes = [*SHAPES, (257, 33)] if mode == "real" else [(17, 31), ((), (3, 0, 2))[number % 2]]
    for repeat, shape in enumerate(shapes):
        everyone = inputs(reduction, shape, salt=repeat)
        mine = kind.tensor(everyone[RANK])
        name = f"{kind.name}.{reduction}.{'x'.join(map(str, shape))}"
        for _ in REPEATS[: 3 if mode == "real" else 2]:
            out = kind.door.allreduce(mine, name=name, op=getattr(kind.door, reduction.op.name.capitalize()))
            check_by_route(kind.host(out), everyone, reduction, route, f"{reduction} {shape}")
        np.testing.assert_array_equal(kind.host(mine), everyone[RANK])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_factors(kind, route, dtype, op):
    dtype = DType[dtype.upper()]
    if not kind.has(numpy_dtype(dtype)):
        pytest.skip(f"{kind.name} has no {dtype.label}")
    reduction = next(row for row in REDUCTIONS if row.dtype is dtype and row.op.name == op.upper())
    everyone = inputs(reduction, (1031,), salt=5)
    for prescale, postscale in [(0.5, 1.0), (1.0, 3.0), (0.25, 0.125), (3.0, 1 / 3)]:
        factors = {"prescale_factor": prescale, "postscale_factor": postscale}
        out = kind.door.allreduce(kind.tensor(everyone[RANK]), op=getattr(kind.door, op), **factors)
        check_by_route(kind.host(out), everyone, reduction, route, f"{factors}", prescale=prescale, postscale=postscale)


@pytest.mark.parametrize("dtype", [dtype.label for dtype in DType])
def test_moving_elements_of_any_type(kind, mode, dtype):
    """The collectives that compute nothing."""
    skip_on_fakes(kind, mode, DType[dtype.upper()])
    if not kind.has(numpy_dtype(DType[dtype.upper()])):
        pytest.skip(f"{kind.name} has no {dtype}")
    door, host, root = kind.door, kind.host, SIZE - 1
    everyone = [distinct(rank, (rank + 1, 3), dtype) for rank in range(SIZE)]
    for repeat in REPEATS:
        gathered = door.allgather(kind.tensor(everyone[RANK]), name=f"{dtype}.gather")
        np.testing.assert_array_equal(host(gathered), np.concatenate(everyone))
        sent = door.broadcast(kind.tensor(distinct(RANK, (5, 7), dtype, repeat)), root, name=f"{dtype}.broadcast")
        np.testing.assert_array_equal(host(sent), distinct(root, (5, 7), dtype, repeat))
        rows = kind.tensor(distinct(RANK, (2 * SIZE, 3), dtype, repeat))
        swapped = door.alltoall(rows, name=f"{dtype}.alltoall")
        wanted = [distinct(rank, (2 * SIZE, 3), dtype, repeat)[2 * RANK : 2 * RANK + 2] for rank in range(SIZE)]
        np.testing.assert_array_equal(host(swapped), np.concatenate(wanted))


def test_results_are_where_the_inputs_are(kind, mode):
    import kinds

    gpu = -1 if mode == "host" else kinds.GPU
    door, tensor = kind.door, kind.tensor(np.ones((2 * SIZE, 2), np.float32))
    results = [door.allreduce(tensor), door.allgather(tensor), door.broadcast(tensor, 0), door.alltoall(tensor)]
    results += [door.reducescatter(tensor), *door.grouped_allreduce([tensor, tensor])]
    assert [kind.gpu_of(result) for result in results] == [gpu] * len(results)
    assert door.allreduce_(tensor, op=door.Sum) is tensor


def test_many_tensors_at_once(kind, route, mode):
    """160 sums and maxima of three types, of odd sizes and half of them at odd places in memory, in an order of each rank."""
    number, largest = (160, 5000) if mode == "real" else (24, 600)
    draw = np.random.default_rng(7)
    dtypes = [dtype for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT64) if kind.has(numpy_dtype(dtype))]
    sizes = [int(size) for size in draw.integers(0, largest, number)]
    wanted = {}
    for repeat in REPEATS:
        for place, size in enumerate(sizes):
            dtype, op = dtypes[place % len(dtypes)], (Op.SUM, Op.MAX)[place // 2 % 2]
            reduction = next(row for row in REDUCTIONS if (row.dtype, row.op) == (dtype, op))
            wanted[place] = reduction, inputs(reduction, (size + place % 2,), salt=place + repeat)
        tensors = {place: kind.tail(kind.tensor(everyone[RANK]), place % 2) for place, (_, everyone) in wanted.items()}
        handles = {
            place: kind.door.allreduce_async(
                tensors[place], name=f"many.{place}", op=getattr(kind.door, wanted[place][0].op.name.capitalize())
            )
            for place in shuffled(range(len(sizes)), repeat)
        }
        results = {place: kind.host(kind.door.synchronize(handles[place])) for place in shuffled(range(len(sizes)), 9)}
        for place, (reduction, everyone) in wanted.items():
            values = [array[place % 2 :] for array in everyone]
            check_by_route(results[place], values, reduction, route, f"tensor {place}")


def test_a_group_of_mixed_types(kind):
    arrays = [
        np.arange(size, dtype=dtype) + RANK for size, dtype in [(5, "float32"), (1, "float64"), (0, "int8"), (33, "float16")]
    ]
    for _ in REPEATS:
        results = kind.door.grouped_allreduce([kind.tensor(array) for array in arrays], op=kind.door.Sum, name="mixed")
        for array, result in zip(arrays, results, strict=True):
            wanted = sum((array - RANK + rank for rank in range(SIZE)), np.zeros_like(array))
            np.testing.assert_array_equal(kind.host(result), wanted)


def test_large_tensors(kind, mode):
    """Larger than a fusion buffer, and of no round size; without a GPU not so large."""
    count = (32 << 20) + 7 if mode == "real" else (1 << 18) + 7
    values = np.arange(count, dtype=np.float32) % 1021
    tensor = kind.tensor(values + RANK)
    for _ in REPEATS:
        out = kind.host(kind.door.allreduce(tensor, op=kind.door.Sum, name="large"))
        np.testing.assert_array_equal(out, SIZE * values + sum(range(SIZE)))


def test_bits_repeat(kind):
    """The same inputs give the same bits, and all ranks the same."""
    values = np.random.default_rng(RANK).standard_normal(100_003).astype(np.float32)
    first = kind.host(kind.door.allreduce(kind.tensor(values), name="bits"))
    for _ in range(5):
        np.testing.assert_array_equal(kind.host(kind.door.allreduce(kind.tensor(values), name="bits")), first)
    for theirs in WORLD.allgather(first):
        np.testing.assert_array_equal(theirs, first)


def test_dtypes_nccl_lacks_take_the_staged_route(hvd, kind, route, taken):
    """int16 by itself goes through host memory, and float32 beside it does not."""
    from hvdlite.runtime import RUNTIME

    before = RUNTIME.require().counters()
    mine = kind.tensor(np.arange(9, dtype=np.int16) + RANK)
    out = kind.host(kind.door.allreduce(mine, op=kind.door.Sum, name="int16"))
    np.testing.assert_array_equal(out, SIZE * np.arange(9) + sum(range(SIZE)))
    after = RUNTIME.require().counters()
    grown = {name: after[name] - before[name] for name in ("nccl_ops", "staged_ops")}
    assert grown == {"nccl_ops": 0, "staged_ops": 0 if route == "host" else 1}
    with taken():
        kind.door.allreduce(kind.tensor(np.ones(4, np.float32)), name="float32")


def test_members_describe_themselves():
    """The cases are not all alike: the second rank's inputs differ from the first's."""
    if SIZE > 1:
        first, second = members(), dataclasses.replace(members(), place=1)
        assert not np.array_equal(first.even(0), second.even(1))
