"""Python objects of any kind and size from one rank or from all."""

import dataclasses
import sys

import numpy as np
import pytest
from support.world import REPEATS, WORLD, distinct, on_all_ranks

RANK, SIZE = WORLD.rank, WORLD.size


class Unpicklable:
    """Says why."""

    def __init__(self, why="this one cannot travel"):
        self.why = why

    def __reduce__(self):
        raise TypeError(self.why)


class Picky:
    """Can be unpickled on some ranks only."""

    def __init__(self, where):
        self.where = where

    def __setstate__(self, state):
        if RANK not in state["where"]:
            raise ModuleNotFoundError("No module named 'elsewhere'")
        self.where = state["where"]


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


def test_the_reason_why_an_object_cannot_be_pickled_may_be_any_text(hvd):
    with pytest.raises(hvd.InvalidArgumentError, match=r"rank 0 could not pickle its Unpicklable: TypeError: M\?ller"):
        hvd.allgather_object(Unpicklable("M\udcfcller") if RANK == 0 else 1)


def test_an_object_that_cannot_be_unpickled_fails_on_that_rank_alone(hvd):
    for victim in range(SIZE):
        others = [rank for rank in range(SIZE) if rank != victim]
        root = (victim + 1) % SIZE
        if RANK == victim != root:
            with pytest.raises(hvd.InvalidArgumentError, match="No module named 'elsewhere'") as caught:
                hvd.broadcast_object(None, root)
            assert f"rank {RANK} could not unpickle what rank {root} sent: ModuleNotFoundError" in str(caught.value)
        else:
            assert hvd.broadcast_object(Picky(others), root).where == others
        if victim == RANK:
            with pytest.raises(hvd.InvalidArgumentError, match=f"rank {RANK} could not unpickle what rank 0 sent"):
                hvd.allgather_object(Picky(others))
        else:
            assert [got.where for got in hvd.allgather_object(Picky(others))] == [others] * SIZE
    assert hvd.allgather_object(RANK) == list(range(SIZE))


def test_without_cloudpickle_the_error_says_what_would_help(hvd, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(hvd.InvalidArgumentError, match="with cloudpickle installed, functions and classes"):
        hvd.broadcast_object((lambda: RANK) if RANK == 0 else None)
    assert hvd.broadcast_object(RANK) == 0


def test_large_objects(hvd):
    """16 MiB from the root; parts of several MiB, different on each rank, from all."""
    root = SIZE - 1
    got = hvd.broadcast_object({"array": distinct(RANK, (2 << 20,), "float64")}, root)
    np.testing.assert_array_equal(got["array"], distinct(root, (2 << 20,), "float64"))
    everyone = hvd.allgather_object(distinct(RANK, ((RANK + 1) << 18,), "int64"))
    for rank, array in enumerate(everyone):
        np.testing.assert_array_equal(array, distinct(rank, ((rank + 1) << 18,), "int64"))


def test_in_a_process_set(hvd):
    if SIZE < 3:
        pytest.skip("needs a rank outside of the set")
    hvd.shutdown()
    hvd.init()
    members = list(range(1, SIZE))
    subset = hvd.add_process_set(members)
    if RANK in members:
        assert hvd.broadcast_object({"from": RANK}, members[-1], process_set=subset) == {"from": members[-1]}
        assert hvd.allgather_object(RANK, process_set=subset) == members
        with pytest.raises(hvd.InvalidArgumentError, match=f"rank {members[-1]} could not pickle .* cannot travel"):
            hvd.allgather_object(Unpicklable() if members[-1] == RANK else 1, process_set=subset)
        with pytest.raises(hvd.InvalidArgumentError, match="invalid root rank 0"):
            hvd.broadcast_object(1, 0, process_set=subset)
    else:
        with pytest.raises(hvd.InvalidArgumentError, match="is not a member"):
            hvd.allgather_object(None, process_set=subset)
        with pytest.raises(hvd.InvalidArgumentError, match="is not a member"):
            hvd.broadcast_object(None, members[0], process_set=subset)
    hvd.remove_process_set(subset)


def test_ranks_that_have_joined_give_none(hvd):
    if RANK > 0:
        assert hvd.allgather_object(RANK) == list(range(1, SIZE))
        assert hvd.broadcast_object(RANK, SIZE - 1) == SIZE - 1
    hvd.join()


def test_classes_of_the_script(hvd, monkeypatch):
    """They are found in `__main__` on every rank, and keep their identity."""
    local = dataclasses.make_dataclass("Local", ["rank"])
    local.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "Local", local, raising=False)
    assert hvd.broadcast_object(local(RANK), SIZE - 1) == local(SIZE - 1)
    assert hvd.allgather_object(local(RANK)) == [local(rank) for rank in range(SIZE)]
