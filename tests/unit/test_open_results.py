"""Results in memory that all ranks of the host map: every rank stores what it has reduced straight into the others'."""

import functools
import gc
import itertools
import os
import threading

import numpy as np
import pytest
from support.limits import DEADLINE
from support.mappings import mapping_at
from support.thread_ranks import ABSENT, ALLREDUCE, AVERAGE, SUM, engines, run_ranks

from hvdlite.errors import HorovodInternalError
from hvdlite.requests import Flag

MIB = 1 << 20


def new_result(engine, like):
    """Room for a result, as the adapters make it for one of at least 1 MiB."""
    return np.ndarray(like.shape, like.dtype, engine.new_output(like.nbytes))


def where(array):
    return mapping_at(array.ctypes.data)


def reduce_into(rank, output, array, name=None, **options):
    rank.start(ALLREDUCE, name, array, output, op=SUM, **options).result()
    rank._kept.clear()
    return output


def open_results(rank):
    return rank.engine.counters()["open_results"]


def contribution(rank, count, dtype=np.float32):
    return values(rank, count).astype(dtype)


@functools.cache
def values(rank, count):
    return ((np.arange(count) * 7 + 31 * rank) % 97).astype(np.float32)


@functools.cache
def total(ranks, count, dtype=np.float32):
    found = sum(values(rank, count) for rank in range(ranks)).astype(dtype)
    found.flags.writeable = False  # all who ask get this one
    return found


QUICK = ((2, np.float16), (3, np.float32), (4, np.int64))


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in itertools.product((2, 3, 4), (np.float32, np.float16, np.int64))
    ],
)
def test_everybody_stores_into_the_results_of_all(ranks, dtype):
    counts = [MIB // 2 + 1, MIB - 77, 3 * MIB // 2]

    def body(rank):
        for turn, count in enumerate(counts):
            mine = contribution(rank.rank, count, dtype)
            for _ in range(3):
                output = reduce_into(rank, new_result(rank.engine, mine), mine, f"x{turn}")
                assert np.array_equal(output, total(ranks, count, dtype))
            assert np.array_equal(mine, contribution(rank.rank, count, dtype))
        return open_results(rank)

    assert run_ranks(ranks, body) == [9] * ranks


def test_results_of_weighted_means_count_too():
    def body(rank):
        mine, output = contribution(rank.rank, MIB), new_result(rank.engine, contribution(rank.rank, MIB))
        rank.start(ALLREDUCE, "x", mine, output, op=AVERAGE, flags=Flag.WEIGHTED, weight=0.5).result()
        assert np.array_equal(output, total(2, MIB) / 2)
        return open_results(rank)

    assert run_ranks(2, body) == [1, 1]


@pytest.mark.parametrize("private", [{0}, {2}, {0, 2}, {0, 1, 2}])
def test_results_of_some_ranks_may_lie_elsewhere(private):
    count = MIB + 5

    def body(rank):
        mine = contribution(rank.rank, count)
        for step in range(6):
            output = np.empty_like(mine) if rank.rank in private else new_result(rank.engine, mine)
            assert np.array_equal(reduce_into(rank, output, mine, f"x{step}"), total(3, count))
        return open_results(rank)

    assert run_ranks(3, body) == [0 if rank in private else 6 for rank in range(3)]


def test_ranks_may_take_turns_in_where_their_results_lie():
    """What was told of one operation does not hold for another: private and open ones follow each other without a pause."""
    count = MIB // 2

    def body(rank):
        mine = contribution(rank.rank, count)
        for step in range(60):
            output = new_result(rank.engine, mine) if (step // (rank.rank + 1)) % 2 else np.zeros_like(mine)
            assert np.array_equal(reduce_into(rank, output, mine, "x"), total(3, count)), step
        return open_results(rank) > 0

    assert all(run_ranks(3, body))


def test_a_result_may_be_reduced_in_place():
    count = MIB

    def body(rank):
        output = new_result(rank.engine, np.empty(count, np.float32))
        output[:] = contribution(rank.rank, count)
        for factor in (1, 3, 9):  # what it holds is the same on all ranks after the first
            assert np.array_equal(reduce_into(rank, output, output, "x"), factor * total(3, count))
        return open_results(rank)

    assert run_ranks(3, body) == [3, 3, 3]


def test_scales_and_those_who_have_nothing_to_give():
    count = MIB + 3

    def body(rank):
        mine = contribution(rank.rank, count)
        scaled = reduce_into(rank, new_result(rank.engine, mine), mine, "scaled", prescale=0.5, postscale=4.0)
        assert np.array_equal(scaled, 2 * total(3, count))
        flags = ABSENT if rank.rank == 1 else 0
        partly = reduce_into(rank, new_result(rank.engine, mine), mine, "partly", flags=flags)
        assert np.array_equal(partly, contribution(0, count) + contribution(2, count))
        return open_results(rank)

    assert run_ranks(3, body) == [2, 2, 2]


def test_only_where_it_helps():
    """Not in a group of several, not past the caches, not in small ones, not if switched off, not with a rank alone."""

    def body(rank):
        small = contribution(rank.rank, 1000)
        reduce_into(rank, new_result(rank.engine, small), small, "small")
        pair = [contribution(rank.rank, MIB), contribution(rank.rank + 1, MIB)]
        outputs = [new_result(rank.engine, array) for array in pair]
        handles = [
            rank.start(ALLREDUCE, f"g.{place}", array, output, op=SUM, group="g", group_size=2, group_index=place)
            for place, (array, output) in enumerate(zip(pair, outputs, strict=True))
        ]
        for handle in handles:
            handle.result()
        assert np.array_equal(outputs[0], total(rank.size, MIB))
        large = contribution(rank.rank, 4 * MIB)
        assert np.array_equal(reduce_into(rank, new_result(rank.engine, large), large, "large"), total(rank.size, 4 * MIB))
        return open_results(rank)

    assert run_ranks(2, body) == [1, 1]
    assert run_ranks(2, body, {"streaming_bytes": 16 * MIB}) == [0, 0]
    assert run_ranks(2, body, {"shared_outputs": False}) == [0, 0]
    assert run_ranks(2, body, {"output_cache_bytes": 0}) == [0, 0]
    assert run_ranks(2, body, {"shared_memory": "off"}) == [0, 0]
    assert run_ranks(1, body) == [0]


def test_more_results_than_there_is_room_for():
    """In a fabric of threads 64 MiB a rank: what does not fit lies in private memory, and room that comes back is used."""

    def body(rank):
        mine = contribution(rank.rank, 4 * MIB)
        held = [reduce_into(rank, new_result(rank.engine, mine), mine, f"a{step}") for step in range(6)]
        assert open_results(rank) == 4
        assert all(np.array_equal(output, total(2, 4 * MIB)) for output in held)
        while held:  # those that lie elsewhere come back last
            held.pop(0)
        gc.collect()
        for step in range(3):
            reduce_into(rank, new_result(rank.engine, mine), mine, f"b{step}")
        return open_results(rank)

    assert run_ranks(2, body, {"output_cache_bytes": 32 * MIB}) == [7, 7]


def test_what_is_given_back_is_cut_and_joined_again():
    """Blocks of all sizes in any order never overlap, and when all are back the largest fits again."""
    with engines(2, {"output_cache_bytes": 1}) as ranks:  # keeps none: all go back
        engine = ranks[0].engine
        draw = np.random.default_rng(5)
        live = {}
        for step in range(75):
            if live and draw.random() < 0.5:
                stamp = draw.choice(list(live))
                assert (live.pop(stamp)[::512] == stamp % 251).all()  # blocks lie on whole pages
            block = np.ndarray(int(draw.integers(MIB, 9 * MIB)), np.uint8, engine.new_output(9 * MIB))
            block = block[: int(draw.integers(MIB, 9 * MIB))]
            block[:] = step % 251
            live[step] = block
            if len(live) > 6:
                live.pop(next(iter(live)))
        live.clear()
        del block
        whole = np.ndarray(32 * MIB, np.uint8, engine.new_output(32 * MIB))
        assert not whole.any()  # fresh pages


def reduce_all(ranks, name, count, kept):
    """Every rank's contribution, in a thread each."""

    def work(rank):
        mine = contribution(rank.rank, count)
        kept[rank.rank] = reduce_into(rank, new_result(rank.engine, mine), mine, name)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("keep", [1, 64 * MIB], ids=["pages go back", "memory is used again"])
def test_a_forked_child_has_a_copy(keep):
    """Whatever its parent does with a result afterwards, and whatever the child does."""
    count, kept = 2 * MIB, {}
    with engines(2, {"output_cache_bytes": keep}) as ranks:
        for step in range(3):
            reduce_all(ranks, f"x{step}", count, kept)
            wake, tell = os.pipe()
            child = os.fork()
            if not child:
                os.close(tell)
                os.read(wake, 1)  # until the parent has let go of it and done something else
                same = all(np.array_equal(output, total(2, count)) for output in kept.values())
                for output in kept.values():
                    output[:] = -1
                grandchild = os.fork()
                if not grandchild:
                    os._exit(0 if all((output == -1).all() for output in kept.values()) else 1)
                same = same and os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
                os._exit(7 if same else 1)
            os.close(wake)
            kept.clear()
            for value in range(3):
                others = [new_result(rank.engine, np.empty(count, np.float32)) for rank in ranks]
                for output in others:
                    output[:] = value
            os.close(tell)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert all((output == 2).all() for output in others)
            del output, others
        assert [open_results(rank) for rank in ranks] == [3, 3]


def test_a_forked_child_takes_nothing_from_its_parent():
    """It drops what it inherits, as any child that ends in Python; the parent's results and their room stay as they are."""
    count, kept = 2 * MIB, {}
    with engines(2, {"output_cache_bytes": 1}) as ranks:  # keeps none: who gives back gives the pages back
        for step in range(5):
            reduce_all(ranks, f"x{step}", count, kept)
            child = os.fork()
            if not child:
                kept.clear()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert all(np.array_equal(output, total(2, count)) for output in kept.values())
        assert [open_results(rank) for rank in ranks] == [5, 5]
        kept.clear()


def test_forks_while_other_threads_make_results():
    """No child and no parent hangs."""
    with engines(2, {"output_cache_bytes": 4 * MIB}) as ranks:
        stop = threading.Event()

        def busy(rank):
            held = []
            while not stop.is_set():
                held.append(new_result(rank.engine, np.empty(MIB // 2, np.float32)))
                held = held[-3:]

        threads = [threading.Thread(target=busy, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                child = os.fork()
                if not child:
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_after_a_failure_results_lie_elsewhere():
    """A rank that does not know of it yet may still store into those of the last operations."""
    with engines(2) as ranks:
        engine = ranks[0].engine
        assert "hvdlite-results" in where(new_result(engine, np.empty(MIB, np.float32)))
        handle = ranks[0].start(ALLREDUCE, "x", np.ones(1), np.ones(1))
        ranks[1].engine.publish_failure("raised ValueError: bad batch")
        with pytest.raises(HorovodInternalError, match="bad batch"):
            handle.result(limit=DEADLINE)
        assert "hvdlite-results" not in where(new_result(engine, np.empty(MIB, np.float32)))


def test_results_outlive_the_engine():
    count = MIB
    results = run_ranks(
        2, lambda rank: reduce_into(rank, new_result(rank.engine, mine := contribution(rank.rank, count)), mine, "x")
    )
    gc.collect()
    for result in results:
        assert np.array_equal(result, total(2, count))
        result += 1
    assert np.array_equal(results[0], total(2, count) + 1)
