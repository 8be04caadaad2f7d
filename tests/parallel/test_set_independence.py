"""Process sets do not wait for each other: what is late on one delays nothing on another, in whatever order ranks submit.

A rank that is late waits for a message of mpi4py which another sends once it has seen that things go on without it. So no
assertion here depends on how fast anything is.
"""

import itertools
import threading

import numpy as np
import pytest
from support.limits import eventually
from support.set_cases import added
from support.world import REPEATS, WORLD

RANKS = (3,)
MORE_RANKS = (4,)
RANK, SIZE = WORLD.rank, WORLD.size
PAIRS = [[0, 1], [1, 2], [0, 2]]
LARGE = 300_000  # elements: more than a tile of shared memory, so that it moves in several steps


@pytest.fixture(scope="module")
def pairs(hvd):
    """The sets {0, 1}, {1, 2} and {0, 2}."""
    hvd.shutdown()
    hvd.init()
    with added(hvd, *PAIRS) as registered:
        yield registered
    hvd.shutdown()
    hvd.init()


def wait_for_word():
    """Receives rank 0's message, and leaves the processor to the others until it comes."""
    assert eventually(lambda: WORLD.iprobe(source=0))
    WORLD.recv(source=0)


def starters(hvd):
    """Starts an operation of each kind on a pair of ranks."""
    return {
        "allreduce": lambda x, name, each: hvd.allreduce_async(x, name=name, op=hvd.Sum, process_set=each),
        "allgather": lambda x, name, each: hvd.allgather_async(x, name, each),
        "broadcast": lambda x, name, each: hvd.broadcast_async(x, each.ranks[1], name, each),
        "alltoall": lambda x, name, each: hvd.alltoall_async(x, None, name, each),
        "reducescatter": lambda x, name, each: hvd.reducescatter_async(x, name=name, op=hvd.Sum, process_set=each),
    }


def wanted(kind, ranks, count):
    """What an operation gives if each rank of a pair gave so many of its rank plus one."""
    first, second = (rank + 1.0 for rank in ranks)
    return {
        "allreduce": np.full(count, first + second),
        "allgather": np.repeat([first, second], count),
        "broadcast": np.full(count, second),
        "alltoall": np.repeat([first, second], count // 2),
        "reducescatter": np.full(count // 2, first + second),
    }[kind]


def check(kind, handle, ranks, count):
    output = handle.synchronize()
    np.testing.assert_array_equal(output[0] if kind == "alltoall" else output, wanted(kind, ranks, count))


KINDS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late_kind", ["allreduce", "allgather"])
@pytest.mark.parametrize("count", [2, LARGE])
def test_a_set_goes_on_while_another_waits_for_a_rank(hvd, pairs, kind, late_kind, count):
    start = starters(hvd)
    mine = np.full(count, RANK + 1.0)
    for repeat in REPEATS:
        late, quick = PAIRS[2], PAIRS[0]
        if RANK == 0:
            handle = start[late_kind](mine, f"late {repeat}", pairs[2])
        if RANK in quick:
            for number in range(3):
                check(kind, start[kind](mine, f"quick {number}", pairs[0]), quick, count)
        if RANK == 0:
            assert not handle.poll()  # rank 2 has not been told to go on
            WORLD.send(None, 2)
        elif RANK == 2:
            wait_for_word()
            handle = start[late_kind](mine, f"late {repeat}", pairs[2])
        if RANK in late:
            check(late_kind, handle, late, count)


def test_a_barrier_of_a_set_waits_for_its_members_only(hvd, pairs):
    for _ in REPEATS:
        if RANK < 2:
            hvd.barrier(process_set=pairs[0])
        if RANK == 0:
            for late in range(2, SIZE):
                WORLD.send(None, late)
        elif RANK >= 2:
            wait_for_word()
        hvd.barrier()


def test_a_set_goes_on_while_the_global_set_waits_for_a_rank(hvd, pairs):
    for repeat in REPEATS:
        value = np.full(LARGE, RANK + 1.0)
        if RANK < SIZE - 1:
            everybody = hvd.allreduce_async(value, name="everybody", op=hvd.Sum)
        if RANK < 2:
            out = hvd.allreduce(value, name=f"pair {repeat}", op=hvd.Sum, process_set=pairs[0])
            assert (out == 3).all()
        if RANK == 0:
            assert not everybody.poll()
            WORLD.send(None, SIZE - 1)
        elif RANK == SIZE - 1:
            wait_for_word()
            everybody = hvd.allreduce_async(value, name="everybody", op=hvd.Sum)
        assert (everybody.synchronize() == SIZE * (SIZE + 1) / 2).all()


@pytest.mark.parametrize("count", [2, LARGE])
def test_pairs_in_every_combination_of_orders(hvd, pairs, count):
    """With one executor that blocks, two of these eight combinations deadlock."""
    start = starters(hvd)
    mine = [place for place, ranks in enumerate(PAIRS) if RANK in ranks]
    value = np.full(count, RANK + 1.0)
    for number, reverse in enumerate(itertools.product([False, True], repeat=3)):
        kind = KINDS[number % len(KINDS)]
        order = mine[::-1] if RANK < 3 and reverse[RANK] else mine
        handles = [start[kind](value, "one name", pairs[place]) for place in order]
        for place, handle in zip(order, handles, strict=True):
            check(kind, handle, PAIRS[place], count)


def test_a_thread_for_each_set_with_blocking_calls(hvd, pairs):
    """The threads of a rank take turns in driving its engine; each waits for its own set only."""
    failures = []

    def rounds(place):
        try:
            for step in range(30):
                value = np.full(1 + step * 1000, (RANK + 1.0) * (step + 1))
                out = hvd.allreduce(value, name=f"step {step}", op=hvd.Sum, process_set=pairs[place])
                assert (out == (sum(PAIRS[place]) + 2) * (step + 1)).all()
        except BaseException as error:  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=rounds, args=(place,)) for place, ranks in enumerate(PAIRS) if RANK in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_sets_at_once_than_shared_memory_has_room_for(hvd, pairs):
    """The window of a host has regions for some sets; the others go through messages, and work as well."""
    members = [list(ranks) for count in (1, 2, 3) for ranks in itertools.combinations(range(SIZE), count)]
    members = [ranks for ranks in members if ranks not in PAIRS and len(ranks) < SIZE]
    for repeat in REPEATS:
        with added(hvd, *members[repeat:]) as registered:
            handles = [
                hvd.allreduce_async(np.full(500, RANK + 1.0), name="x", op=hvd.Sum, process_set=each)
                for each in [*pairs, *registered]
                if each.included()
            ]
            sums = [sum(each.ranks) + each.size() for each in [*pairs, *registered] if each.included()]
            for handle, total in zip(handles, sums, strict=True):
                assert (handle.synchronize() == total).all()


def test_a_blocking_circle_is_reported_with_its_sets(hvd, pairs):
    """0 waits on {0,1} for 1, 1 on {1,2} for 2, 2 on {0,2} for 0."""
    if RANK < 3:
        with pytest.raises(hvd.OperationTimeoutError, match="deadlock") as caught:
            hvd.allreduce(np.ones(1), name="circle", process_set=pairs[RANK])
        for rank, each in enumerate(pairs):
            missing = next(other for other in each.ranks if other != rank)
            wait = f"allreduce of 'circle' in process set {each.process_set_id}, missing on rank {missing}"
            assert f"rank {rank} waits for {wait}" in str(caught.value)
    WORLD.Barrier()  # a rank that waits in hvdlite for those in the circle would be reported with them
    for each in pairs:
        if each.included():
            assert hvd.allreduce(np.ones(1), name="after", op=hvd.Sum, process_set=each)[0] == 2
