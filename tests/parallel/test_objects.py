"""Python objects of any kind and size from one rank or from all."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD, on_all_ranks

RANK, SIZE = WORLD.rank, WORLD.size


class Unpicklable:
    """Says why."""

    def __reduce__(self):
        raise TypeError("this one cannot travel")


def test_broadcast(hvd):
    for root in range(SIZE):
        for repeat in REPEATS:
            obj = {"rank": RANK, "list": [1, (2, "three")], "array": np.arange(RANK + repeat)}
            got = hvd.broadcast_object(obj, root)
            assert got["rank"] == root
            assert got["list"] == [1, (2, "three")]
            np.testing.assert_array_equal(got["array"], np.arange(root + repeat))
            assert (got is obj) == (root == RANK)


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_broadcast_of_many_sizes(hvd, size):
    payload = np.random.default_rng(size).bytes(size)
    assert hvd.broadcast_object(payload if RANK == 0 else None, 0, name=f"bytes.{size}") == payload


def test_types_may_differ_between_ranks(hvd):
    assert hvd.broadcast_object([None, {}, "text", 3.5][RANK % 4]) is None


def test_allgather(hvd):
    for repeat in REPEATS:
        got = hvd.allgather_object({"rank": RANK, "data": "x" * (RANK * 1000 + repeat)}, name="objects")
        assert [entry["rank"] for entry in got] == list(range(SIZE))
        assert [len(entry["data"]) for entry in got] == [rank * 1000 + repeat for rank in range(SIZE)]
    assert hvd.allgather_object(None) == [None] * SIZE


def test_local_functions_travel_where_cloudpickle_is_installed(hvd):
    pytest.importorskip("cloudpickle")
    offset = RANK + 10
    assert hvd.broadcast_object(lambda: offset, SIZE - 1)() == SIZE - 1 + 10
    assert [function() for function in hvd.allgather_object(lambda: offset)] == [rank + 10 for rank in range(SIZE)]


def test_an_object_that_cannot_be_pickled_fails_everywhere_and_says_on_which_rank(hvd):
    with pytest.raises(hvd.InvalidArgumentError, match="cannot travel") as caught:
        hvd.broadcast_object(Unpicklable() if RANK == SIZE - 1 else None, SIZE - 1)
    assert f"rank {SIZE - 1} could not pickle its Unpicklable: TypeError" in str(caught.value)
    on_all_ranks(str(caught.value))
    with pytest.raises(hvd.InvalidArgumentError, match="cannot travel") as caught:
        hvd.allgather_object(Unpicklable() if RANK == 0 else 1)
    assert "rank 0 could not pickle its Unpicklable" in str(caught.value)
    on_all_ranks(str(caught.value))
    assert hvd.allgather_object(RANK) == list(range(SIZE))
