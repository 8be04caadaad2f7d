"""Weighted means: each rank's value counts as its weight says, over every algorithm, and with whatever else may happen."""

import numpy as np
import pytest
from support.requests import allreduce
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, outcomes_of, run_ranks

from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.requests import Flag

WEIGHTS = [3.0, 0.0, 0.5, 6.25]
PLACES = {
    "auto": ({}, None),
    "inline": ({"allreduce_algorithm": "inline"}, None),
    "shm": ({"allreduce_algorithm": "shm"}, None),
    "ring": ({"allreduce_algorithm": "ring"}, [0, 1, 2, 3]),
    "recursive doubling": ({"allreduce_algorithm": "recursive_doubling"}, [0, 1, 2, 3]),
    "direct": ({"deterministic": True}, [0, 1, 2, 3]),
    "hierarchical": ({}, [0, 0, 1, 1]),
}


def values(rank, count, dtype="float64"):
    return np.random.default_rng(rank).standard_normal(count).astype(dtype)


def weighted(rank, name, array, weight, flags=0, **options):
    options.setdefault("op", AVERAGE)
    return rank.allreduce(name, array, flags=Flag.WEIGHTED | flags, weight=weight, **options)


def request(name, array, weight, index=0, size=0):
    """To reduce an array in place, as a member of a group if that has a size."""
    group = {"group": "g" if size else "", "group_size": size, "group_index": index}
    return (*allreduce(name, array, AVERAGE, flags=Flag.WEIGHTED, **group), 0, 0, 0, weight)


def mean(weights, count, dtype="float64", ranks=None):
    ranks = range(len(weights)) if ranks is None else ranks
    products = (weights[rank] / sum(weights) * values(rank, count, dtype).astype(np.float64) for rank in ranks)
    return sum(products, np.zeros(count))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-6), ("float16", 1e-3)])
def test_over_every_algorithm(place, dtype, tolerance):
    """The rank of weight 0 has nothing but nan. The others are scaled as float32 at least, and the mean is rounded once."""
    config, hosts = PLACES[place]

    def body(rank):
        outputs = []
        for count in (1, 7, 3000):
            mine = values(rank.rank, count, dtype)
            if WEIGHTS[rank.rank] == 0:
                mine[:] = np.nan
            out = weighted(rank, f"w{count}", mine, WEIGHTS[rank.rank], prescale=4.0, postscale=0.5)
            np.testing.assert_allclose(out, 2 * mean(WEIGHTS, count, dtype), rtol=tolerance, atol=tolerance)
            outputs.append(out.tobytes())
        return outputs

    with engines(4, config, hosts) as ranks:
        everyone = in_threads(ranks, body)
    assert all(outputs == everyone[0] for outputs in everyone)


def test_equal_weights_give_the_bits_of_the_plain_mean_and_none_gives_zero():
    def body(rank):
        mine = values(rank.rank, 5000, "float32")
        plain = rank.allreduce("plain", mine, op=AVERAGE)
        assert weighted(rank, "equal", mine, 0.1).tobytes() == plain.tobytes()
        mine[0] = np.inf
        assert not weighted(rank, "zero", mine, 0.0).any()

    run_ranks(3, body)


def test_weights_of_any_size():
    def body(rank):
        large, small = [1e308, 1.5e308, 0.5e308], [5e-324, 0.0, 1.5e-323]
        for weights in (large, small):
            out = weighted(rank, f"{weights}", values(rank.rank, 9), weights[rank.rank])
            shares = [weight / max(weights) for weight in weights]
            np.testing.assert_allclose(out, mean(shares, 9), rtol=1e-14)

    run_ranks(3, body)


def test_a_rank_without_a_value_counts_with_zeros_and_one_that_has_joined_not_at_all():
    def body(rank):
        mine = values(rank.rank, 11)
        out = weighted(rank, "absent", mine, WEIGHTS[rank.rank], Flag.ABSENT if rank.rank == 3 else 0)
        np.testing.assert_allclose(out, mean(WEIGHTS, 11, ranks=range(3)), rtol=1e-14)
        if rank.rank < 3:
            out = weighted(rank, "joined", mine, WEIGHTS[rank.rank])
            np.testing.assert_allclose(out, mean(WEIGHTS[:3], 11), rtol=1e-14)
        rank.join()

    run_ranks(4, body)


@pytest.mark.parametrize("place", ["auto", "ring", "hierarchical"])
def test_a_group_has_one_weight(place):
    """Prepared or not. Members are fused with their like only, and not with other weighted tensors."""
    config, hosts = PLACES[place]

    def body(rank):
        arrays = [values(rank.rank, count) for count in (3, 600, 10)]
        if WEIGHTS[rank.rank] == 0:
            for array in arrays:
                array[:] = np.nan
        requests = [request(f"g{index}", array, 0.0, index, 3) for index, array in enumerate(arrays)]
        group = rank.engine.prepare(requests)
        for weights in (WEIGHTS, [1.0, 2.0, 3.0, 4.0], WEIGHTS):
            sent = [np.where(np.isnan(array) & (weights[rank.rank] > 0), 0.0, array) for array in arrays]
            work = rank.engine.submit_prepared(group, [array.ctypes.data for array in sent], weight=weights[rank.rank])
            one = np.full(4, 1.0 + rank.rank)
            other = rank.engine.submit([request("other", one, float(rank.rank))])
            assert outcomes_of(rank.engine, [work, other]) == [4] * 4
            for array, count in zip(sent, (3, 600, 10), strict=True):
                present = [each for each in range(4) if WEIGHTS[each] > 0]
                np.testing.assert_allclose(array, mean(weights, count, ranks=present), rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(one, sum((1.0 + each) * each for each in range(4)) / 6)

    with engines(4, config, hosts) as ranks:
        in_threads(ranks, body)


@pytest.mark.parametrize("place", PLACES)
def test_every_rank_counts_an_operation_in_which_any_rank_gives_notice(place):
    """A rank of weight 0 may give notice, too. A notice changes neither the mean nor the number of operations."""
    config, hosts = PLACES[place]
    givers = [(), (1,), (), (0, 3), (2,)]  # the ranks that give notice, for each operation

    def body(rank):
        def notices():
            return rank.engine.counters()["notices"]

        group, counts = rank.engine.prepare([request("g", np.zeros(5), 0.0)]), []
        for turn, gives in enumerate(givers):
            before = notices()
            flag = Flag.NOTICE if rank.rank in gives else 0
            array = np.zeros(9) if WEIGHTS[rank.rank] == 0 else values(rank.rank, 9)
            found = weighted(rank, f"n{turn}", array, WEIGHTS[rank.rank], flag)
            np.testing.assert_allclose(found, mean(WEIGHTS, 9), rtol=1e-12)
            alone = notices() - before
            data = np.ones(5)
            work = rank.engine.submit_prepared(group, [data.ctypes.data], weight=WEIGHTS[rank.rank], notice=rank.rank in gives)
            outcomes_of(rank.engine, [work])
            counts.append((alone, notices() - before - alone))
        return counts

    with engines(4, config, hosts) as ranks:
        everyone = in_threads(ranks, body)
    assert everyone == [[(int(bool(gives)), int(bool(gives))) for gives in givers]] * 4


def test_tensors_of_one_call_have_weights_of_their_own():
    """What is fused has one weight, so they are not."""

    def body(rank):
        arrays = [values(rank.rank, 9) for _ in range(3)]
        weights = [[1.0 + rank.rank, 3.0, 2.0 - rank.rank][index] for index in range(3)]
        asked = [request(f"own{index}", array, weights[index]) for index, array in enumerate(arrays)]
        assert outcomes_of(rank.engine, [rank.engine.submit(asked)]) == [2] * 3
        for array, both in zip(arrays, ([1.0, 2.0], [3.0, 3.0], [2.0, 1.0]), strict=True):
            np.testing.assert_allclose(array, mean(both, 9), rtol=1e-14)

    run_ranks(2, body)


def test_bad_weights_are_refused_before_anything_is_sent():
    def body(rank):
        one = np.ones(2)
        for weight in (-1.0, np.nan, np.inf):
            with pytest.raises(InvalidArgumentError, match=r"allreduce of 'bad' .*: the weight is .*finite and 0 or more"):
                weighted(rank, "bad", one, weight)
            group = rank.engine.prepare([request("b", one, 0.0)])
            with pytest.raises(InvalidArgumentError, match="the weight is"):
                rank.engine.submit_prepared(group, [one.ctypes.data], weight=weight)
        with pytest.raises(InvalidArgumentError, match="belongs to an allreduce with op=Average, but this is op=Sum"):
            weighted(rank, "sum", one, 1.0, op=SUM)
        with pytest.raises(InvalidArgumentError, match="int64 would be cut to whole numbers; cast the tensor to a float"):
            weighted(rank, "whole", np.ones(2, np.int64), 1.0)
        requests = [request(f"g{index}", one, 1.0 + index, index, 2) for index in range(2)]
        for part in (requests, requests[:1]):
            with pytest.raises(InvalidArgumentError, match="submit all of them in one call, with one weight"):
                rank.engine.submit(part)
        plain = allreduce("p", one, op=AVERAGE)
        with pytest.raises(InvalidArgumentError, match="are weighted, or none; prepare one group for the weighted ones"):
            rank.engine.prepare([plain, request("q", one, 0.0)])

    run_ranks(1, body)


@pytest.mark.parametrize("config", [{}, {"shared_memory": "off"}], ids=["ledger", "messages"])
def test_some_ranks_weigh_and_others_do_not(config):
    def body(rank):
        for turn in range(3):  # the cache and the ledger compare it, too
            more = {"flags": Flag.WEIGHTED, "weight": 1.0 + turn} if rank.rank else {}
            with pytest.raises(MismatchError, match="weighting differs: without a weight on rank 0, weighted on rank 1; give"):
                rank.allreduce("some", np.ones(2), op=AVERAGE, **more)
        # What differs between calls is the weight, not the request.
        for turn in range(3):
            out = weighted(rank, "all", np.full(2, float(rank.rank)), [1.0, 1.0 + turn][rank.rank])
            np.testing.assert_allclose(out, (1.0 + turn) / (2.0 + turn))

    run_ranks(2, body, config)


@pytest.mark.parametrize("place", PLACES)
def test_many_at_a_time_begin_in_one_order_on_all_ranks(place):
    """Each begins two collectives, which take turns in memory that ranks share. Plain ones are among them."""
    config, hosts = PLACES[place]

    def body(rank):
        arrays = [values(rank.rank, count) for count in (40, 30000, 5, 9000, 20000, 1) * 4]
        weights = [1.0, 2.0, 3.0, 4.0]
        works = []
        for index, array in enumerate(arrays):
            name = f"m{index}"
            asked = request(name, array, weights[rank.rank]) if index % 3 else allreduce(name, array, AVERAGE)
            works.append(rank.engine.submit([asked]))
        assert outcomes_of(rank.engine, works) == [4] * len(arrays)
        for index, array in enumerate(arrays):
            np.testing.assert_allclose(array, mean(weights if index % 3 else [1.0] * 4, len(array)), rtol=1e-12, atol=1e-14)

    with engines(4, config, hosts) as ranks:
        in_threads(ranks, body)
