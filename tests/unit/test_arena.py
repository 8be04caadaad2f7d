"""Arenas: tensors in memory that all ranks map, over engines that are threads of one process; their sums."""

import numpy as np
import pytest
from support.arenas import SIZE, arena_ops, open_arenas, ranks_with_arenas, reduce, view
from support.cases import Op, Reduction, assert_same_bits, expected, random_contribution
from support.thread_ranks import ABSENT, ALLREDUCE, AVERAGE, SUM, engines, in_threads, outcomes_of

from hvdlite.dtypes import DType, code_of_name, numpy_dtype
from hvdlite.errors import InvalidArgumentError
from hvdlite.requests import Request

SIZES = (1, 2, 3, 5)


@pytest.mark.parametrize("kind", ["memfd", "shm"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_where_the_tensors_lie(size, kind):
    with ranks_with_arenas(size, kind=kind) as ranks:
        assert len({rank.arena.id for rank in ranks}) == 1

        def body(rank):
            results = []
            for turn in range(4):
                array = view(rank, 1000)
                array[:] = random_contribution(rank.rank, 1000, DType.FLOAT32, turn)
                reduce(rank, "x", array)
                results.append(array.copy())
            assert arena_ops(rank) == 4
            return results

        for turn, results in enumerate(zip(*in_threads(ranks, body), strict=True)):
            assert_same_bits(results)
            inputs = [random_contribution(rank, 1000, DType.FLOAT32, turn) for rank in range(size)]
            expected(inputs, Reduction(DType.FLOAT32, Op.SUM)).check(results[0])


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64, DType.INT32], ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE])
def test_a_group_at_odd_places_of_the_arena(dtype, op):
    """Members of a group are one operation, with gaps between them that nobody touches."""
    counts = (1, 257, 0, 64, 31)
    offsets = (0, 64, 0, 2624, 3200)

    def values(rank, place):
        return random_contribution(rank, counts[place], dtype, place)

    with ranks_with_arenas(3) as ranks:

        def body(rank):
            np.frombuffer(rank.arena, np.uint8)[:] = 0xA5
            arrays = [
                view(rank, count, numpy_dtype(dtype), offset) if count else np.empty(0, numpy_dtype(dtype))
                for count, offset in zip(counts, offsets, strict=True)
            ]
            requests = []
            for place, array in enumerate(arrays):
                array[:] = values(rank.rank, place)
                # numpy has no bfloat16 of its own, hence the code
                requests.append(
                    Request(
                        ALLREDUCE,
                        f"g{place}",
                        int(code_of_name(dtype.label)),
                        array.shape,
                        array.ctypes.data,
                        array.ctypes.data,
                        op=AVERAGE if op is Op.AVERAGE else SUM,
                        group="g",
                        group_size=len(counts),
                        group_index=place,
                        arena=rank.arena.id,
                    )
                )
            outcomes_of(rank.engine, rank.engine.submit(requests))
            touched = np.zeros(SIZE, bool)
            for count, offset in zip(counts, offsets, strict=True):
                touched[offset : offset + count * dtype.itemsize] = True
            assert np.all(np.frombuffer(rank.arena, np.uint8)[~touched] == 0xA5)
            return [array.copy() for array in arrays]

        results = in_threads(ranks, body)
    for place in range(len(counts)):
        inputs = [values(rank, place) for rank in range(3)]
        assert_same_bits([result[place] for result in results])
        expected(inputs, Reduction(dtype, op)).check(results[0][place], f"member {place}")


@pytest.mark.parametrize("absent", [{0}, {2}, {0, 1}, {0, 1, 2}], ids=str)
def test_absent_ranks_take_the_result(absent):
    with ranks_with_arenas(3) as ranks:

        def body(rank):
            array = view(rank, 100)
            array[:] = rank.rank + 1  # must not count where the rank is absent
            result = reduce(rank, "x", array, flags=ABSENT if rank.rank in absent else 0)
            return result.contributors, array.tolist()

        present = sum(rank + 1 for rank in range(3) if rank not in absent)
        for rank, (contributors, values) in enumerate(in_threads(ranks, body)):
            assert contributors == 3 - len(absent)
            if contributors:
                assert values == [present] * 100, f"rank {rank}"


def test_scaling():
    with ranks_with_arenas(2) as ranks:

        def body(rank):
            array = view(rank, 10)
            array[:] = rank.rank + 1
            reduce(rank, "x", array, op=AVERAGE, prescale=0.5, postscale=4.0)
            return array.tolist()

        assert in_threads(ranks, body) == [[3.0] * 10] * 2


@pytest.mark.parametrize("other", ["private memory", "another place"])
def test_ranks_that_disagree_about_the_arena_get_the_sum_all_the_same(other):
    """A rank whose tensor lies elsewhere is no mismatch; and when it is back, so is the short way."""
    with ranks_with_arenas(3) as ranks:

        def body(rank):
            seen = []
            for turn in range(6):
                array, arena = view(rank, 100), rank.arena.id
                if rank.rank == 1 and turn in (1, 4):
                    if other == "another place":
                        array = view(rank, 100, offset=1024)
                    else:
                        array, arena = np.empty(100, np.float32), 0
                array[:] = rank.rank + turn
                reduce(rank, "x", array, arena=arena)
                seen.append(array.tolist())
            return seen, arena_ops(rank)

        for seen, ops in in_threads(ranks, body):
            assert seen == [[3.0 + 3 * turn] * 100 for turn in range(6)]
            assert ops == 4


def test_a_joined_rank_takes_no_part():
    with ranks_with_arenas(3) as ranks:

        def body(rank):
            array = view(rank, 50)
            for turn in range(3):
                if turn > rank.rank:
                    break
                array[:] = 10**rank.rank
                reduce(rank, "x", array)
            seen = array.tolist()
            rank.join()
            assert array.tolist() == seen, "a joined rank's memory was touched"
            return seen[0]

        assert in_threads(ranks, body) == [111.0, 110.0, 100.0]


def test_private_tensors_and_arena_tensors_in_flight_together():
    rounds = 30
    with ranks_with_arenas(4, 64 * 1024) as ranks:

        def body(rank):
            inside = [view(rank, 500 + place, offset=4096 * place) for place in range(8)]
            outside = [np.empty(300 + place, np.float32) for place in range(8)]
            for turn in range(rounds):
                handles = []
                for place in np.random.default_rng(rank.rank + turn).permutation(16):
                    array = inside[place // 2] if place % 2 else outside[place // 2]
                    array[:] = rank.rank + place + turn
                    arena = rank.arena.id if place % 2 else 0
                    handles.append(rank.start(ALLREDUCE, f"t{place}", array, array, op=SUM, arena=arena))
                for handle in handles:
                    handle.result()
                for place in range(16):
                    array = inside[place // 2] if place % 2 else outside[place // 2]
                    assert np.all(array == 6 + 4 * (place + turn)), f"tensor {place} in round {turn}"

        in_threads(ranks, body)


def test_an_arena_of_a_process_set():
    with engines(4) as ranks:
        ids = in_threads(ranks, lambda rank: rank.add_process_set([1, 3]))
        members = [ranks[1], ranks[3]]
        for rank, arena in zip(members, open_arenas(members, process_set=ids[0]), strict=True):
            rank.arena = arena

        def body(rank):
            array = view(rank, 20)
            array[:] = rank.rank
            reduce(rank, "x", array, process_set=ids[0])
            with pytest.raises(InvalidArgumentError, match="this process set has no open arena"):
                reduce(rank, "y", array, process_set=0)
            return array.tolist(), arena_ops(rank)

        assert in_threads(members, body) == [([4.0] * 20, 1)] * 2
        with pytest.raises(InvalidArgumentError, match="does not include this rank"):
            ranks[0].engine.create_arena(ids[0], 64)


def test_a_forced_algorithm_serves_arenas_too():
    with ranks_with_arenas(3, config={"allreduce_algorithm": "ring"}) as ranks:

        def body(rank):
            array = view(rank, 500)
            array[:] = rank.rank
            reduce(rank, "x", array)
            return array.tolist()

        assert in_threads(ranks, body) == [[3.0] * 500] * 3
    with (
        pytest.raises(InvalidArgumentError, match="ALLREDUCE_ALGORITHM=push cannot be forced"),
        engines(1, {"allreduce_algorithm": "push"}),
    ):
        pass


def test_a_prepared_group_notices_where_its_tensors_lie():
    """Round 1: rank 1 has one tensor elsewhere; 2: rank 0 lacks a value; 3: the arena is closed."""
    with ranks_with_arenas(3) as ranks:

        def body(rank):
            places = [view(rank, 100, offset=1024 * index) for index in range(3)]
            float32 = int(code_of_name("float32"))
            requests = [
                (
                    ALLREDUCE,
                    f"p{index}",
                    float32,
                    (100,),
                    0,
                    array.ctypes.data,
                    SUM,
                    0,
                    0,
                    1.0,
                    1.0,
                    "p",
                    3,
                    index,
                    (),
                    -1,
                    0,
                    0,
                )
                for index, array in enumerate(places)
            ]
            group = rank.engine.prepare([(*request, rank.arena.id) for request in requests])
            with pytest.raises(InvalidArgumentError, match="does not lie in arena"):
                rank.engine.prepare([(*requests[0][:5], 4096, *requests[0][6:], rank.arena.id)])
            ops = []
            for turn in range(5):
                arrays = list(places)
                if turn == 1 and rank.rank == 1:
                    arrays[1] = np.empty(100, np.float32)
                if turn == 3:
                    rank.arena.close()
                for array in arrays:
                    array[:] = rank.rank + turn
                absent = [2] if turn == 2 and rank.rank == 0 else []
                before = arena_ops(rank)
                handle = rank.engine.submit_prepared(group, [array.ctypes.data for array in arrays], absent)
                assert outcomes_of(rank.engine, [handle]) == [3, 3, 2 if turn == 2 else 3]
                for index, array in enumerate(arrays):
                    assert np.all(array == 3 + 3 * turn - (2 if turn == 2 and index == 2 else 0)), (
                        f"tensor {index}, round {turn}"
                    )
                ops.append(arena_ops(rank) - before)
            return ops

        # In round 1 the two that lie in the arena are one operation, the third is another.
        assert in_threads(ranks, body) == [[1, 1, 1, 0, 0]] * 3


def test_a_prepared_group_with_empty_tensors():
    """The address of nothing is no place."""
    with ranks_with_arenas(2) as ranks:

        def body(rank):
            array, float32 = view(rank, 10), int(code_of_name("float32"))
            array[:] = rank.rank + 1
            tail = (SUM, 0, 0, 1.0, 1.0, "e", 3)
            requests = [
                (ALLREDUCE, "e0", float32, (0,), 0, 0, *tail, 0),
                (ALLREDUCE, "e1", float32, (0, 3), 0, array.ctypes.data, *tail, 1, (), -1, 0, 0, rank.arena.id),
                (ALLREDUCE, "e2", float32, (10,), 0, array.ctypes.data, *tail, 2, (), -1, 0, 0, rank.arena.id),
            ]
            group = rank.engine.prepare(requests)
            for _ in range(2):
                outcomes_of(rank.engine, [rank.engine.submit_prepared(group, [0, 0, array.ctypes.data])])
            return array.tolist()

        assert in_threads(ranks, body) == [[6.0] * 10] * 2
