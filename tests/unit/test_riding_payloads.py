"""Prepared allreduces, whose payload rides with the announcement: up to which size, and that their bits are those of others."""

import numpy as np
import pytest
from support.thread_ranks import ALLREDUCE, AVERAGE, MAX, PRODUCT, SUM, run_ranks

from hvdlite.dtypes import DType, numpy_dtype

SHARED_BY_ALL = 64 << 10  # bytes, over the ranks of the host
LARGEST = 32 << 10
LONG = 40_000  # elements of any dtype that are too many to ride


def limit_of(size):
    return min(SHARED_BY_ALL // size // 64 * 64, LARGEST)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_they_ride_up_to_a_limit(size):
    def body(rank):
        rode, results = [], []
        for extra in (0, 1, 0):
            before = rank.engine.counters()["riding_ops"]
            results.append(rank.allreduce("x", np.full(limit_of(size) // 4 + extra, rank.rank + 1, np.float32)))
            rode.append(rank.engine.counters()["riding_ops"] - before)
        return rode, results

    for rode, results in run_ranks(size, body):
        assert rode == [1, 0, 1]
        assert all((result == size * (size + 1) // 2).all() for result in results)


@pytest.mark.parametrize(("algorithm", "rides"), [("inline", True), ("shm", False), ("ring", False)])
def test_an_algorithm_that_is_forced_decides_whether_they_do(algorithm, rides):
    """Inline serves every size: what is too large to ride, it exchanges when all have agreed."""

    def body(rank):
        small = rank.allreduce("small", np.full(16, rank.rank + 1, np.float32))
        rode = rank.engine.counters()["riding_ops"]
        large = rank.allreduce("large", np.arange(LONG, dtype=np.float32) * (rank.rank + 1))
        return rode, rank.engine.counters()["riding_ops"], small, large

    for rode, rode_later, small, large in run_ranks(3, body, config={"allreduce_algorithm": algorithm}):
        assert rode == rode_later == int(rides)
        assert (small == 6).all()
        assert (large == np.arange(LONG) * 6).all()


def test_what_not_all_have_prepared_is_exchanged_when_all_have_agreed():
    """A rank with something else under way prepares nothing."""

    def body(rank):
        other = np.ones(4, np.float32)
        if rank.rank == 1:
            handle = rank.start(ALLREDUCE, "other", other, other)
        result = rank.allreduce("x", np.full(8, rank.rank + 1, np.float32))
        rode = rank.engine.counters()["riding_ops"]
        if rank.rank == 0:
            handle = rank.start(ALLREDUCE, "other", other, other)
        handle.result()
        return rode, result, other

    found = run_ranks(2, body)
    assert found[0][0] == 0  # rank 0 had nothing else before
    for _, result, other in found:
        assert (result == 3).all()
        assert (other == 2).all()


def test_only_what_is_alone_rides():
    def body(rank):
        arrays = [np.full(8, rank.rank + 1.0) for _ in range(2)]
        outputs = [np.empty_like(array) for array in arrays]
        handles = [rank.start(ALLREDUCE, f"x{i}", arrays[i], outputs[i], wake=False) for i in range(2)]
        for handle in handles:
            handle.result()
        return rank.engine.counters()["riding_ops"], outputs

    for rode, outputs in run_ranks(2, body, config={"cycle_time": 10_000.0}):
        assert rode == 0
        assert all((output == 3).all() for output in outputs)


@pytest.mark.parametrize("prescale", [1.0, 0.3])
@pytest.mark.parametrize(
    ("name", "op"),
    [
        *((name, op) for name in ("FLOAT16", "FLOAT32", "FLOAT64", "INT8", "INT64") for op in (AVERAGE, SUM, MAX, PRODUCT)),
        ("COMPLEX64", AVERAGE),
        ("COMPLEX64", SUM),
    ],
)
def test_their_bits_are_those_of_the_other_way(name, op, prescale):
    dtype = numpy_dtype(DType[name])

    def body(rank):
        values = np.random.default_rng(rank.rank).normal(0, 3, LONG).astype(dtype)
        some = np.ascontiguousarray(values[:1000])
        ridden = rank.allreduce("some", some, op=op, prescale=prescale, postscale=prescale)
        moved = rank.allreduce("all", values, op=op, prescale=prescale, postscale=prescale)
        return ridden.tobytes(), moved[:1000].tobytes()

    found = run_ranks(3, body)
    for ridden, moved in found:
        assert ridden == moved == found[0][0]
