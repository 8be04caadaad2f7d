"""Allgather: dtypes, first dimensions that differ between ranks, layouts."""

import numpy as np
import pytest
from support.cases import random_sizes
from support.seeds import seeds
from support.world import REPEATS, WORLD, distinct, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size


def gathered(shapes, dtype="float32", salt=0):
    return np.concatenate([distinct(rank, shape, dtype, salt) for rank, shape in enumerate(shapes)])


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.label)
def test_every_dtype(hvd, dtype):
    for repeat in REPEATS:
        shapes = [(4, 3)] * SIZE
        out = hvd.allgather(distinct(RANK, shapes[RANK], dtype, repeat), name=f"gather.{dtype.label}")
        wanted = gathered(shapes, dtype, repeat)
        assert out.dtype == wanted.dtype
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("seed", seeds(range(6)))
def test_first_dimensions_may_differ(hvd, seed):
    for repeat in REPEATS:
        shapes = [(rows, 5, 2) for rows in random_sizes(SIZE, seed + repeat)]
        out = hvd.allgather(distinct(RANK, shapes[RANK], salt=repeat), name=f"uneven.{seed}")
        np.testing.assert_array_equal(out, gathered(shapes, salt=repeat))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("rest", [(), (0,), (3, 1)], ids=str)
def test_rows_on_one_rank_only(hvd, rows, rest):
    for root in range(SIZE):
        shapes = [(rows if rank == root else 0, *rest) for rank in range(SIZE)]
        out = hvd.allgather(distinct(RANK, shapes[RANK], "int16"))
        np.testing.assert_array_equal(out, gathered(shapes, "int16"))
        assert out.shape == (rows, *rest)


def test_the_result_is_ours_to_write_to(hvd):
    out = hvd.allgather(np.full(3, RANK))
    out += 1
    assert out.tolist() == [rank + 1 for rank in range(SIZE) for _ in range(3)]


def test_named_in_any_order_and_other_layouts(hvd):
    names = [f"g{index}" for index in range(20)]
    for repeat in REPEATS:
        handles = {}
        for name in shuffled(names, repeat):
            rows = int(name[1:]) % 4 + RANK
            array = distinct(RANK, (rows, 6), salt=len(name))
            strided = np.repeat(array, 2, axis=1)[:, ::2] if RANK % 2 else np.asfortranarray(array)
            handles[name] = hvd.allgather_async(strided, name=name)
        for name in shuffled(names, repeat + 9):
            shapes = [(int(name[1:]) % 4 + rank, 6) for rank in range(SIZE)]
            np.testing.assert_array_equal(hvd.synchronize(handles[name]), gathered(shapes, salt=len(name)))


def test_a_group_with_the_name_of_an_operation_whose_rows_differed(hvd):
    hvd.allgather(distinct(RANK, (RANK + 1, 2)), name="pair_1of2")
    shapes = [[(2, 3), (rank + 1, 2)] for rank in range(SIZE)]
    outputs = hvd.grouped_allgather([distinct(RANK, shape) for shape in shapes[RANK]], name="pair")
    for place, out in enumerate(outputs):
        np.testing.assert_array_equal(out, gathered([each[place] for each in shapes]))


def test_a_group_with_more_rows_than_are_announced(hvd):
    large, small = hvd.grouped_allgather([np.empty((1 << 41, 0)), distinct(RANK, (RANK + 1, 2))])
    assert large.shape == (SIZE << 41, 0)
    np.testing.assert_array_equal(small, gathered([(rank + 1, 2) for rank in range(SIZE)]))


def test_megabytes(hvd):
    shapes = [(300_000 + 1000 * rank,) for rank in range(SIZE)]
    for repeat in REPEATS:
        out = hvd.allgather(distinct(RANK, shapes[RANK], "float64", repeat), name="large")
        np.testing.assert_array_equal(out, gathered(shapes, "float64", repeat))


def test_lists(hvd):
    assert hvd.allgather([[RANK]]).tolist() == [[rank] for rank in range(SIZE)]


def test_scalars_are_refused(hvd):
    with pytest.raises(ValueError, match="Allgather does not support scalar inputs"):
        hvd.allgather(np.float32(1))
