"""Alltoall: even and uneven splits, dtypes, rows that stay behind."""

import numpy as np
import pytest
from support.cases import random_sizes
from support.seeds import seeds
from support.world import REPEATS, WORLD, distinct, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size


def exchanged(splits, rest=(), dtype="float32", salt=0):
    """What this rank receives when rank r sends splits[r][j] rows of its tensor to rank j."""
    parts = []
    for sender, counts in enumerate(splits):
        tensor = distinct(sender, (sum(counts), *rest), dtype, salt)
        start = sum(counts[:RANK])
        parts.append(tensor[start : start + counts[RANK]])
    return np.concatenate(parts)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.label)
def test_even_parts_of_every_dtype(hvd, dtype):
    splits = [[2] * SIZE] * SIZE
    for repeat in REPEATS:
        out = hvd.alltoall(distinct(RANK, (2 * SIZE, 3), dtype, repeat), name=f"a.{dtype.label}")
        wanted = exchanged(splits, (3,), dtype, repeat)
        np.testing.assert_array_equal(out, wanted)
        assert out.dtype == wanted.dtype


@pytest.mark.parametrize("seed", seeds(range(6)))
def test_uneven_splits(hvd, seed):
    for repeat in REPEATS:
        splits = [random_sizes(SIZE, 100 * seed + 10 * repeat + rank) for rank in range(SIZE)]
        tensor = distinct(RANK, (sum(splits[RANK]), 2), salt=repeat)
        out, received = hvd.alltoall(tensor, splits=splits[RANK], name=f"uneven.{seed}")
        np.testing.assert_array_equal(out, exchanged(splits, (2,), salt=repeat))
        assert received.tolist() == [counts[RANK] for counts in splits]
        assert received.dtype == np.int32


def test_rows_beyond_the_splits_are_not_sent(hvd):
    splits = [[1] * SIZE] * SIZE
    tensor = np.concatenate([distinct(RANK, (SIZE,)), np.full(3, np.nan, "float32")])
    out, _ = hvd.alltoall(tensor, splits=np.ones(SIZE, np.int32))
    np.testing.assert_array_equal(out, exchanged(splits))


def test_nothing_at_all(hvd):
    assert hvd.alltoall(np.empty((0, 4))).shape == (0, 4)
    out, received = hvd.alltoall(np.empty((5, 0)), splits=[0] * SIZE)
    assert out.shape == (0, 0)
    assert received.tolist() == [0] * SIZE


def test_the_async_form_always_gives_the_pair(hvd):
    names = [f"x{index}" for index in range(10)]
    for repeat in REPEATS:
        handles = {
            name: hvd.alltoall_async(np.asfortranarray(distinct(RANK, (SIZE, 4), salt=int(name[1:]))), name=name)
            for name in shuffled(names, repeat)
        }
        for name in shuffled(names, repeat + 1):
            out, received = hvd.synchronize(handles[name])
            np.testing.assert_array_equal(out, exchanged([[1] * SIZE] * SIZE, (4,), salt=int(name[1:])))
            assert received.tolist() == [1] * SIZE


def test_kinds_of_splits(hvd):
    for splits in ([1] * SIZE, (1,) * SIZE, np.ones(SIZE, np.int64), np.ones(SIZE, np.int32)):
        assert hvd.alltoall(np.full(SIZE, RANK), splits=splits)[0].tolist() == list(range(SIZE))


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ([1] * (SIZE + 1), "Number of entries in splits does not equal number of workers"),
        ([100] * SIZE, "Sum of splits entries is greater than the first dimension of tensor"),
        ([-1] * SIZE, "negative entry"),
        (np.ones((1, 1)), "alltoall expects a 1D splits tensor"),
        ([0.5] * SIZE, "alltoall expects splits to be integers"),
    ],
    ids=["count", "sum", "negative", "two-dimensional", "fractions"],
)
def test_wrong_splits_are_refused(hvd, splits, said):
    with pytest.raises(ValueError, match=said):
        hvd.alltoall(np.ones(SIZE), splits=splits)


def test_rows_that_cannot_be_divided_are_refused(hvd):
    if SIZE > 1:
        with pytest.raises(ValueError, match="not an even multiple of the number of workers"):
            hvd.alltoall(np.ones(SIZE + 1))
    with pytest.raises(ValueError, match="Alltoall does not support scalar inputs"):
        hvd.alltoall(1.0)
