"""Broadcast: dtypes, shapes, roots, in place and not."""

import numpy as np
import pytest
from support.cases import SHAPES
from support.world import REPEATS, WORLD, distinct, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.label)
def test_every_dtype_from_every_root(hvd, dtype):
    for root in range(SIZE):
        for repeat in REPEATS:
            mine = distinct(RANK, (5, 3), dtype, repeat)
            out = hvd.broadcast(mine, root, name=f"b.{dtype.label}.{root}")
            np.testing.assert_array_equal(out, distinct(root, (5, 3), dtype, repeat))
            assert out.dtype == mine.dtype
            np.testing.assert_array_equal(mine, distinct(RANK, (5, 3), dtype, repeat))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_in_place(hvd, shape):
    for repeat in REPEATS:
        mine = distinct(RANK, shape, salt=repeat)
        assert hvd.broadcast_(mine, SIZE - 1, name="shape") is mine
        np.testing.assert_array_equal(mine, distinct(SIZE - 1, shape, salt=repeat))


def test_megabytes(hvd):
    for repeat in REPEATS:
        mine = distinct(RANK, (1_000_003,), "float32", repeat)
        hvd.broadcast_(mine, 0, name="large")
        np.testing.assert_array_equal(mine, distinct(0, (1_000_003,), "float32", repeat))


def test_named_in_any_order_with_roots_of_their_own(hvd):
    names = [f"p{index}" for index in range(24)]
    for repeat in REPEATS:
        tensors = {name: distinct(RANK, (index,), salt=index + repeat) for index, name in enumerate(names)}
        handles = {
            name: hvd.broadcast_async_(tensors[name], int(name[1:]) % SIZE, name=name) for name in shuffled(names, repeat)
        }
        for name in shuffled(names, repeat + 3):
            handles[name].synchronize()
        for index, name in enumerate(names):
            np.testing.assert_array_equal(tensors[name], distinct(index % SIZE, (index,), salt=index + repeat))


def test_layouts(hvd):
    mine = np.asfortranarray(distinct(RANK, (4, 6)))
    strided = np.repeat(distinct(RANK, (4, 6)), 2, axis=1)[:, ::2]
    for tensor in (mine, strided):
        hvd.broadcast_(tensor, 0)
        np.testing.assert_array_equal(tensor, distinct(0, (4, 6)))


def test_async_and_scalars(hvd):
    assert int(hvd.broadcast_async(RANK, SIZE - 1).synchronize()) == SIZE - 1


@pytest.mark.parametrize("root", [-1, 99, None, "0"])
def test_a_root_that_is_no_rank_is_refused(hvd, root):
    with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root!r} for provided process set"):
        hvd.broadcast(np.ones(1), root)
