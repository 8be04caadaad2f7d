"""Memory for results: recycled when nobody uses it any more, never while somebody does, and no more than allowed is kept."""

import gc
import os
import random
import threading

import numpy as np
import pytest
from support.mappings import is_mapped
from support.thread_ranks import ALLGATHER, BARRIER, SUM, engines, run_ranks, run_request

from hvdlite.backends.numpy import BACKEND
from hvdlite.errors import NotInitializedError

MIB = 1 << 20


def address(array):
    return array.__array_interface__["data"][0]


def new_array(engine, nbytes):
    return np.ndarray(nbytes, np.uint8, engine.new_output(nbytes))


@pytest.fixture
def engine():
    with engines(1) as ranks:
        yield ranks[0].engine


@pytest.mark.parametrize("nbytes", [0, 1, 4096, MIB - 1, MIB, MIB + 1, 7 * MIB + 123, 33 * MIB])
def test_a_block_is_writable_to_its_last_byte(engine, nbytes):
    for _ in range(2):
        view = engine.new_output(nbytes)
        assert (view.nbytes, view.readonly) == (nbytes, False)
        array = np.frombuffer(view, np.uint8)
        array[:] = 255
        assert nbytes < MIB or address(array) % 4096 == 0
        del array, view


def test_memory_comes_back_when_the_last_user_is_gone(engine):
    first = new_array(engine, 4 * MIB)
    place = address(first)
    row = first.reshape(4, MIB)[3]  # a view keeps the whole block
    del first
    assert address(new_array(engine, 4 * MIB)) != place
    del row
    assert address(new_array(engine, 4 * MIB)) == place


def test_a_block_of_nearly_the_same_size_is_reused_and_no_other(engine):
    place = address(new_array(engine, 16 * MIB))
    assert address(new_array(engine, 15 * MIB)) == place
    small = new_array(engine, 8 * MIB)
    large = new_array(engine, 17 * MIB + MIB // 2)
    assert place not in (address(small), address(large))


def test_of_several_the_last_returned_is_the_first_reused(engine):
    blocks = [new_array(engine, 2 * MIB) for _ in range(3)]
    places = [address(block) for block in blocks]
    for index in (1, 2, 0):
        blocks[index] = None
    again = [address(block) for block in [new_array(engine, 2 * MIB) for _ in range(3)]]
    assert again == [places[0], places[2], places[1]]


def test_live_blocks_never_overlap(engine):
    rng = random.Random(3)
    live: dict[int, np.ndarray] = {}
    for step in range(400):
        if live and rng.random() < 0.5:
            stamp = rng.choice(list(live))
            assert (live.pop(stamp) == stamp % 251).all()
        live[step] = new_array(engine, rng.choice((MIB, MIB + 5, 3 * MIB // 2, 2 * MIB, 100)))
        live[step][:] = step % 251
    for stamp, array in live.items():
        assert (array == stamp % 251).all()


def test_no_more_than_the_limit_is_kept_and_the_oldest_goes_first():
    with engines(1, {"output_cache_bytes": 8 * MIB}) as ranks:
        blocks = [new_array(ranks[0].engine, 4 * MIB) for _ in range(3)]
        places = [address(block) for block in blocks]
        for block in blocks:
            block[:] = 1
        del block
        while blocks:
            blocks.pop(0)
        assert [is_mapped(place) for place in places] == [False, True, True]
        place = address(new_array(ranks[0].engine, 9 * MIB))  # larger than all that may be kept
        assert not is_mapped(place)
        assert [is_mapped(place) for place in places] == [False, True, True]


def test_zero_keeps_nothing():
    with engines(1, {"output_cache_bytes": 0}) as ranks:
        place = address(new_array(ranks[0].engine, 4 * MIB))
        assert not is_mapped(place)


def test_what_is_kept_goes_at_shutdown_and_what_is_used_stays():
    with engines(1) as ranks:
        engine = ranks[0].engine
        kept = address(new_array(engine, 4 * MIB))
        used = new_array(engine, 6 * MIB)
        used[:] = 7
        assert is_mapped(kept)
    assert not is_mapped(kept)
    del engine, ranks
    gc.collect()
    assert (used == 7).all()
    place = address(used)
    del used
    assert not is_mapped(place)


def test_results_made_by_the_engine_are_recycled_too():
    def body(rank):
        array = np.full(MIB, rank.rank, np.float32)
        places = set()
        for _ in range(4):
            result = rank.start(ALLGATHER, "g", array).result()
            gathered = np.frombuffer(result.data, np.float32)
            assert (gathered.reshape(2, MIB) == [[0], [1]]).all()
            places.add(address(gathered))
            del gathered, result
        return len(places)

    assert run_ranks(2, body) == [1, 1]


def test_a_result_that_nobody_takes_is_recycled(engine):
    array = np.ones(MIB, np.float32)
    work = engine.submit([(ALLGATHER, "g", 10, array.shape, address(array), 0, SUM)])
    work.wait()
    run_request(engine, (BARRIER, "b", 0, (), 0, 0))  # the engine has nothing more to do with the first
    del work
    place = address(new_array(engine, 4 * MIB))
    assert address(new_array(engine, 4 * MIB)) == place


def test_blocks_come_and_go_in_many_threads(engine):
    failures = []

    def work(seed):
        rng = random.Random(seed)
        held = []
        for _ in range(150):
            array = new_array(engine, rng.choice((MIB, 2 * MIB)))
            array[::4096] = seed
            held.append(array)
            if len(held) > 2:
                gone = held.pop(rng.randrange(3))
                if not (gone[::4096] == seed).all():
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_forked_child_lets_go_of_results_but_makes_none(engine):
    arrays = [new_array(engine, 4 * MIB) for _ in range(3)]
    stop = threading.Event()

    def busy():  # so that forks happen while the lock is held, too
        while not stop.is_set():
            new_array(engine, MIB)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(8):
            child = os.fork()
            if not child:
                arrays.clear()
                try:
                    engine.new_output(4 * MIB)
                except NotInitializedError:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        stop.set()
        thread.join()
    assert len(arrays) == 3


def test_large_numpy_outputs_lie_in_recycled_memory(engine):
    asked = []

    def new_memory(nbytes):
        asked.append(nbytes)
        return engine.new_output(nbytes)

    small, large = np.zeros((5, 3), np.int16), np.zeros((MIB // 4, 3), np.int16)
    for like in (small, large):
        out, pointer = BACKEND.empty_like(like, new_memory)
        assert (out.shape, out.dtype) == (like.shape, like.dtype)
        assert pointer is out
        assert out.flags.writeable
        assert out.flags.c_contiguous
    assert asked == [large.nbytes]
