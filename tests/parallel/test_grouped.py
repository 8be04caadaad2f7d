"""Grouped operations: one call, one handle, members agreed on and sent together."""

import numpy as np
import pytest
from support.cases import Op, Reduction, assert_same_bits
from support.world import REPEATS, WORLD, check, distinct, inputs, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)
SHAPES = ((3,), (2, 5), (), (0,), (1031,))


def members(repeat=0):
    """For each shape every rank's contribution."""
    return [inputs(FLOAT_SUM, shape, repeat * 10 + index) for index, shape in enumerate(SHAPES)]


def test_allreduce(hvd):
    for repeat in REPEATS:
        everyone = members(repeat)
        outputs = hvd.grouped_allreduce([arrays[RANK] for arrays in everyone], name="group", op=hvd.Sum)
        for out, arrays in zip(outputs, everyone, strict=True):
            check(out, arrays, FLOAT_SUM, f"group member of shape {arrays[0].shape}")


def test_allreduce_in_place(hvd):
    for repeat in REPEATS:
        everyone = members(repeat)
        mine = [arrays[RANK].copy() for arrays in everyone]
        outputs = hvd.grouped_allreduce_(mine, name="group", op=hvd.Sum)
        assert all(out is own for out, own in zip(outputs, mine, strict=True))
        for own, arrays in zip(mine, everyone, strict=True):
            check(own, arrays, FLOAT_SUM, "in-place group")


@pytest.mark.parametrize("op", [Op.AVERAGE, Op.MIN, Op.PRODUCT], ids=str)
def test_members_of_different_dtypes(hvd, op):
    dtypes = (DType.FLOAT16, DType.INT64, DType.FLOAT64, DType.UINT8, DType.FLOAT16)
    for repeat in REPEATS:
        reductions = [Reduction(dtype, op) for dtype in dtypes]
        everyone = [inputs(reduction, (13 + index,), repeat) for index, reduction in enumerate(reductions)]
        outputs = hvd.grouped_allreduce([arrays[RANK] for arrays in everyone], op=int(op))
        for out, arrays, reduction in zip(outputs, everyone, reductions, strict=True):
            check(out, arrays, reduction, str(reduction))


def test_a_name_with_a_nul_is_refused(hvd):
    """The engine's names end at it, so several names would be one."""
    array = np.ones(SIZE, np.float32)
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_async):
        with pytest.raises(ValueError, match="has a null character"):
            call(array, name="a\0b")
    for tensors in ([array, array], [array.tolist()]):
        with pytest.raises(ValueError, match="has a null character"):
            hvd.grouped_allreduce(tensors, name="a\0b")
    with pytest.raises(ValueError, match="has a null character"):
        hvd.broadcast(array, 0, name="a\0b")


def test_several_groups_in_any_order(hvd):
    names = ["a", "b", "c", "d"]
    for repeat in REPEATS:
        everyone = {
            name: [inputs(FLOAT_SUM, (7 + i,), repeat + i) for i in range(len(name) + index)]
            for index, name in enumerate(names)
        }
        handles = {
            name: hvd.grouped_allreduce_async([arrays[RANK] for arrays in everyone[name]], name=name, op=hvd.Sum)
            for name in shuffled(names, repeat)
        }
        lone = hvd.allreduce_async(np.ones(3), name="lone", op=hvd.Sum)
        for name in shuffled(names, repeat + 5):
            handles[name].poll()
            handles[name] = hvd.synchronize(handles[name])
        for name in names:
            for out, arrays in zip(handles[name], everyone[name], strict=True):
                check(out, arrays, FLOAT_SUM, f"group {name}")
        assert hvd.synchronize(lone).tolist() == [SIZE] * 3


def test_in_place_async_and_compression(hvd):
    everyone = members()
    mine = [arrays[RANK].copy() for arrays in everyone]
    handle = hvd.grouped_allreduce_async_(mine, name="again", op=hvd.Sum, prescale_factor=0.5)
    handle.synchronize()
    for own, arrays in zip(mine, everyone, strict=True):
        check(own, arrays, FLOAT_SUM, "scaled group", prescale=0.5)
    outputs = hvd.grouped_allreduce([np.ones(3), np.arange(3)], compression=hvd.Compression.fp16, op=hvd.Sum)
    assert [out.dtype for out in outputs] == [np.float64, np.int64]
    np.testing.assert_array_equal(outputs[0], [SIZE] * 3)
    np.testing.assert_array_equal(outputs[1], np.arange(3) * SIZE)


def test_a_tensor_that_is_in_a_group_in_place_twice_is_refused(hvd):
    tensor = np.full(3, RANK + 1.0)
    for function in (hvd.grouped_allreduce_, hvd.grouped_allreduce_async_):
        with pytest.raises(ValueError, match="grouped_allreduce_ of 'twice': a tensor is in the group twice"):
            function([tensor, np.ones(1), tensor], name="twice")
    assert tensor.tolist() == [RANK + 1.0] * 3
    hvd.grouped_allreduce_(rows := np.ones((4, 2)), op=hvd.Sum)  # the rows are tensors
    assert rows.tolist() == [[SIZE, SIZE]] * 4
    assert [out[0] for out in hvd.grouped_allreduce([np.ones(1)] * 2, op=hvd.Sum)] == [SIZE] * 2


def test_an_empty_group(hvd):
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allgather([]) == []


def test_allgather(hvd):
    for repeat in REPEATS:
        shapes = [[((r + i) % 3, 2 + i) for r in range(SIZE)] for i in range(4)]
        dtypes = ("float32", "int8", "bool", "float32")
        mine = [distinct(RANK, s[RANK], d, repeat) for s, d in zip(shapes, dtypes, strict=True)]
        outputs = hvd.grouped_allgather(mine, name="gather")
        for out, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
            wanted = np.concatenate([distinct(r, shape[r], dtype, repeat) for r in range(SIZE)])
            np.testing.assert_array_equal(out, wanted)
            assert out.dtype == wanted.dtype
    handle = hvd.grouped_allgather_async([np.full(1, RANK), np.full(2, RANK)])
    assert [out.size for out in handle.synchronize()] == [SIZE, 2 * SIZE]


def test_reducescatter(hvd):
    for repeat in REPEATS:
        everyone = [inputs(FLOAT_SUM, (rows, 3), repeat) for rows in (SIZE, 2 * SIZE + 1, 1)]
        outputs = hvd.grouped_reducescatter([arrays[RANK] for arrays in everyone], name="scatter", op=hvd.Sum)
        for out, arrays in zip(outputs, everyone, strict=True):
            rows = WORLD.allgather(out)
            whole = np.concatenate(rows)
            np.testing.assert_array_equal(whole, sum(arrays))
            assert_same_bits(WORLD.allgather(whole))
    handle = hvd.grouped_reducescatter_async([np.ones((SIZE, 2)), np.ones(SIZE)], op=hvd.Sum)
    assert [out.tolist() for out in handle.synchronize()] == [[[SIZE, SIZE]], [SIZE]]


def test_one_wrong_member_refuses_the_whole_group_before_anything_is_sent(hvd):
    if RANK == 0:
        with pytest.raises(ValueError, match="dtype str96 cannot be sent"):
            hvd.grouped_allreduce([np.ones(2), np.array(["abc"])], name="bad")
        with pytest.raises(ValueError, match="read-only"):
            hvd.grouped_allreduce_([np.ones(1), np.broadcast_to(1.0, 2)], name="bad")
    for _ in REPEATS:
        assert hvd.grouped_allreduce([np.ones(2), np.ones(1)], name="bad", op=hvd.Sum)[0].tolist() == [SIZE] * 2
