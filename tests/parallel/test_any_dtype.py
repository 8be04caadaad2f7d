"""What only moves bytes takes dtypes that the engine has no code for; reductions refuse them, and ranks must have the same."""

import ml_dtypes
import numpy as np
import pytest
from support.world import REPEATS, WORLD

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
RANKS = (2, 3)
MORE_RANKS = (4,)
OTHERS = "rank 0" if SIZE == 2 else "ranks 0, 1" if SIZE == 3 else f"ranks 0-{LAST - 1}"
DTYPES = ["float8_e4m3fn", "float8_e5m2", "int4", "float128", "datetime64[s]", ">m8[ms]"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def rows(rank, dtype, count, salt=0):
    """Numbers below 8, which all of these dtypes have."""
    return ((np.arange(2 * count) + 3 * rank + salt) % 8).astype("int64").astype(dtype).reshape(count, 2)


def check(found, expected):
    assert found.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", DTYPES)
def test_moved(hvd, name):
    dtype = dtype_of(name)
    for repeat in REPEATS:
        for root in range(SIZE):
            check(hvd.broadcast(rows(RANK, dtype, 3, repeat), root, name="b"), rows(root, dtype, 3, repeat))
        mine = np.concatenate([rows(RANK, dtype, 3, repeat)] * 2, 1)[:, ::2]  # not contiguous
        assert hvd.broadcast_(mine, LAST, name="in place") is mine
        np.testing.assert_array_equal(mine, np.concatenate([rows(LAST, dtype, 3, repeat)] * 2, 1)[:, ::2])
        everyone = [rows(rank, dtype, rank + 1, repeat) for rank in range(SIZE)]
        check(hvd.allgather(everyone[RANK], name="g"), np.concatenate(everyone))
        pair = hvd.grouped_allgather_async([everyone[RANK], np.full(1, RANK)], name="both").synchronize()
        check(pair[0], np.concatenate(everyone))
        assert pair[1].tolist() == list(range(SIZE))
        sent = [rows(rank, dtype, 2 * SIZE, repeat) for rank in range(SIZE)]
        check(hvd.alltoall(sent[RANK], name="a"), np.concatenate([part[2 * RANK : 2 * RANK + 2] for part in sent]))


def test_megabytes(hvd):
    dtype = np.dtype(ml_dtypes.float8_e5m2)
    check(hvd.broadcast(rows(RANK, dtype, 1_000_003), 0, name="large"), rows(0, dtype, 1_000_003))


@pytest.mark.parametrize(
    ("usual", "odd", "text"),
    [
        ("float8_e4m3fn", "float8_e5m2", ("float8_e4m3fn", "float8_e5m2")),
        ("float8_e4m3fn", "uint8", ("float8_e4m3fn", "uint8")),
        ("float32", "float8_e4m3fn", ("float32", "float8_e4m3fn")),
        ("datetime64[s]", "datetime64[ns]", ("datetime64[s]", "datetime64[ns]")),
        ("datetime64[s]", "datetime64[D]", ("datetime64[s]", "dtype number")),
    ],
)
def test_ranks_with_different_dtypes(hvd, usual, odd, text):
    mine = rows(RANK, dtype_of(odd if RANK == LAST else usual), 2)
    said = f"in process set 0: dtype differs: {text[0]} on {OTHERS}, {text[1]}"
    for call in (lambda: hvd.allgather(mine, name="t"), lambda: hvd.broadcast(mine, 0, name="t")):
        with pytest.raises(hvd.MismatchError) as raised:
            call()
        assert said in str(raised.value)
        assert len(set(WORLD.allgather(str(raised.value)))) == 1


REFUSED = [np.array(["a"]), np.array([b"ab"]), np.zeros(1, "i4,i4"), np.array([{}]), np.zeros(1, np.clongdouble)]


def test_refused_by_name(hvd):
    for value in REFUSED:
        with pytest.raises(hvd.InvalidArgumentError, match=f"broadcast of 'x' .*dtype {value.dtype.name} cannot be sent"):
            hvd.broadcast(value, 0, name="x")
    for call in (hvd.allreduce, hvd.allreduce_, hvd.reducescatter):
        with pytest.raises(hvd.InvalidArgumentError, match="dtype float8_e5m2 cannot be sent"):
            call(np.zeros(SIZE, ml_dtypes.float8_e5m2), name="x", op=hvd.Sum)
