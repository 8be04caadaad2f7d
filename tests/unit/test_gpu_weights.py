"""Weighted means of GPU tensors, by each route: they go through host memory, where the members exchange their weights."""

import ml_dtypes
import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import gpu_engines
from support.thread_ranks import ALLREDUCE, in_threads

from hvdlite.requests import Average, Flag, Request

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

WEIGHTS = ([3.0, 1.0, 2.0], [0.0, 4.0, 1.0], [5.0, 5.0, 5.0], [0.0, 0.0, 0.0])
ROUTES = ("staged", "nccl")


def values(rank, salt, count, weight):
    """nan where nobody may look."""
    return np.random.default_rng([rank, salt]).standard_normal(count) if weight else np.full(count, np.nan)


def mean(weights, salt, count):
    total = sum(weights)
    return sum(weight * values(rank, salt, count, weight) for rank, weight in enumerate(weights) if weight) / (total or 1)


def weighted(weight, **options):
    return {"op": Average, "flags": Flag.WEIGHTED, "weight": weight, **options}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_weighted_mean(fake_gpus, route, dtype):  # noqa: F811
    tolerance = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 1e-2}[dtype]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype

    def body(rank):
        for salt, weights in enumerate(WEIGHTS):
            for count in (3, 40_000):
                mine = values(rank.rank, salt, count, weights[rank.rank]).astype(kind)
                gives_notice = rank.rank == 1 and count == 3
                how = weighted(weights[rank.rank], flags=Flag.WEIGHTED | (Flag.NOTICE if gives_notice else 0))
                if dtype == "bfloat16":  # NumPy's fakes have it as bits
                    found = rank.allreduce(f"mean{count}", mine.view(np.uint16), dtype=dtype, **how)
                    found = found.view(kind).astype(float)
                else:
                    found = rank.allreduce(f"mean{count}", mine, **how)
                np.testing.assert_allclose(found, mean(weights, salt, count), rtol=tolerance, atol=tolerance)
        return rank.counters()

    with gpu_engines(fake_gpus, 3, {"gpu_route": route}) as ranks:
        for counters in in_threads(ranks, body):
            assert counters["staged_ops"] == 2 * len(WEIGHTS)
            assert counters["notices"] == len(WEIGHTS)


@pytest.mark.parametrize("route", ROUTES)
def test_many_in_flight_with_others_and_a_rank_that_has_joined(fake_gpus, route):  # noqa: F811
    """Weighted ones and plain ones take turns in shared memory, two for each weighted one."""
    fake_gpus.set(seed=5, delay=200)
    rounds = 8

    def body(rank):
        works = []
        for number in range(rounds * (1 if rank.rank == 2 else 2)):
            arrays = [rank.array(np.full(9000 + number, rank.rank + 1.0 + place)) for place in (0, 1)]
            how = weighted(rank.rank + 2.0)
            works.append((number, arrays, rank.start(ALLREDUCE, f"weighted{number}", arrays[0], arrays[0], **how)))
            works.append((None, arrays, rank.start(ALLREDUCE, f"plain{number}", arrays[1], arrays[1], op=Average)))
        if rank.rank == 2:
            rank.host.join()
        for number, arrays, work in works:
            rank.wait(work)
            if number is None:
                continue
            present = [0, 1, 2] if number < rounds else [0, 1]
            wanted = sum((member + 1.0) * (member + 2.0) for member in present) / sum(member + 2.0 for member in present)
            np.testing.assert_allclose(arrays[0].numpy(), wanted, rtol=1e-12)
        if rank.rank != 2:
            rank.host.join()

    with gpu_engines(fake_gpus, 3, {"gpu_route": route}) as ranks:
        in_threads(ranks, body)


@pytest.mark.parametrize("route", ROUTES)
def test_a_prepared_group_with_a_narrower_wire(fake_gpus, route):  # noqa: F811
    weights = [0.0, 3.0]

    def body(rank):
        weight = weights[rank.rank]
        arrays = [rank.array(values(rank.rank, salt, 700, weight).astype(np.float32)) for salt in (1, 2)]
        how = {"op": Average, "flags": Flag.WEIGHTED | Flag.WIRE_BFLOAT16, "group": "group", "group_size": 2}
        requests = [
            Request(**rank.request(ALLREDUCE, f"member{place}", array, array, group_index=place, **how))
            for place, array in enumerate(arrays)
        ]
        group = rank.engine.prepare(requests)
        streams = (rank.stream.handle,)
        work = rank.engine.submit_prepared(group, [array.ptr for array in arrays], streams=streams, weight=weight)
        work.wait(streams=streams)
        assert [type(result).__name__ for result in work.results()] == ["Result"] * 2
        for salt, array in zip((1, 2), arrays, strict=True):
            np.testing.assert_allclose(array.numpy(), values(1, salt, 700, 3.0), rtol=2e-2, atol=2e-2)

    with gpu_engines(fake_gpus, 2, {"gpu_route": route}) as ranks:
        in_threads(ranks, body)
