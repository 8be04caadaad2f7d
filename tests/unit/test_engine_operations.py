"""What the engine gives, with ranks as threads: every operation, groups, absent values, process sets, join, any schedule."""

import itertools
import random

import numpy as np
import pytest
from support.agreement import ways  # noqa: F401
from support.seeds import seeds
from support.thread_ranks import (
    ABSENT,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    SUM,
    Rank,
    run_ranks,
)

from hvdlite.errors import InvalidArgumentError, MismatchError


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_kind_of_operation(size):
    def body(rank: Rank):
        me = rank.rank
        for _ in range(3):
            assert (rank.allreduce("avg", np.full(3, me, np.float32), op=AVERAGE) == (size - 1) / 2).all()
            assert (rank.allreduce("min", np.full(3, me, np.int32), op=MIN) == 0).all()
            assert (rank.allreduce("max", np.full(3, me, np.int32), op=MAX) == size - 1).all()
            assert (rank.allreduce("prod", np.full(3, 2 + me % 2, np.int64), op=PRODUCT)[0]) == np.prod(
                [2 + r % 2 for r in range(size)]
            )
            rows = rank.allgather("gather", np.full((me, 2), me, np.int16))
            assert rows.tolist() == [[r, r] for r in range(size) for _ in range(r)]
            for root in range(size):
                assert (rank.broadcast(f"bcast{root}", np.full(5, me * 10, np.uint8), root) == root * 10).all()
            send = np.array([[me, peer] for peer in range(size) for _ in range(peer + 1)], np.int32)
            result = rank.start(ALLTOALL, "a2a", send, splits=[peer + 1 for peer in range(size)]).result()
            assert result.received_splits == (me + 1,) * size
            assert Rank.take(result, np.int32).tolist() == [[r, me] for r in range(size) for _ in range(me + 1)]
            piece = Rank.take(
                rank.start(REDUCESCATTER, "rs", np.arange(size + 1, dtype=np.float64) * (me + 1)).result(),
                np.float64,
            )
            mine = [0, 1] if me == 0 else [me + 1]
            assert piece.tolist() == [i * size * (size + 1) / 2 for i in mine]
            rank.barrier()

    run_ranks(size, body)


def test_splits_whose_sum_overflows_are_refused():
    def body(rank: Rank):
        with pytest.raises(InvalidArgumentError, match="Sum of splits entries"):
            rank.start(ALLTOALL, "a2a", np.zeros((4, 1), np.int32), splits=[1 << 62, 1 << 62])

    run_ranks(2, body)


def test_a_group_is_one_fused_operation_whatever_the_order():
    def body(rank: Rank):
        counts = []
        for step in range(3):
            inputs = [np.full(4, (rank.rank + 1) * (i + 1), np.float32) for i in range(6)]
            outputs = [np.empty_like(a) for a in inputs]
            order = list(range(6))
            random.Random(step * 10 + rank.rank).shuffle(order)
            before = rank.engine.counters()["fused_ops"]
            handles = [
                rank.start(ALLREDUCE, f"g{i}", inputs[i], outputs[i], group="g", group_size=6, group_index=i) for i in order
            ]
            for handle in handles:
                handle.result()
            counts.append(rank.engine.counters()["fused_ops"] - before)
            assert all((outputs[i] == 6 * (i + 1)).all() for i in range(6))
        return counts

    assert run_ranks(3, body) == [[1, 1, 1]] * 3


def test_an_absent_value_counts_as_nothing_but_is_received():
    def body(rank: Rank):
        value = np.full(3, rank.rank + 1, np.float32)
        for op, expected in ((SUM, 1 + 3), (AVERAGE, 4 / 3), (MAX, 3), (MIN, 1), (PRODUCT, 3)):
            output = np.full(3, -1, np.float32)
            flags = ABSENT if rank.rank == 1 else 0
            result = rank.start(ALLREDUCE, f"op{op}", value, output, op=op, flags=flags).result()
            assert result.contributors == 2
            np.testing.assert_allclose(output, expected, rtol=1e-6)
        output = np.full(3, -1, np.float32)
        result = rank.start(ALLREDUCE, "nobody", value, output, flags=ABSENT).result()
        assert result.contributors == 0
        assert (output == -1).all()

    run_ranks(3, body)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_overlapping_process_sets_progress_in_every_local_order(size):
    """Each rank waits for its operations in an order of its own; with one blocking executor some orders deadlock."""
    pairs = [[a, b] for a in range(size) for b in range(a + 1, size)]

    def body(rank: Rank):
        sets = [rank.add_process_set(pair) for pair in pairs]
        mine = [i for i, pair in enumerate(pairs) if rank.rank in pair]
        orders = list(itertools.permutations(mine))
        random.Random(rank.rank).shuffle(orders)
        for number, order in enumerate(orders[:24]):
            inputs = {i: np.full(2000, rank.rank + 1 + number, np.float64) for i in mine}
            outputs = {i: np.empty_like(inputs[i]) for i in mine}
            handles = {i: rank.start(ALLREDUCE, f"x{i}", inputs[i], outputs[i], process_set=sets[i]) for i in order}
            for i in reversed(order):
                handles[i].result()
                assert (outputs[i] == sum(pairs[i]) + 2 + 2 * number).all()

    run_ranks(size, body)


def test_every_order_of_three_overlapping_sets_on_three_ranks():
    """All 2 x 2 x 2 local orders of the sets {0,1}, {1,2}, {0,2}, blocking in that order is legal only asynchronously."""
    pairs = [[0, 1], [1, 2], [0, 2]]

    def body(rank: Rank):
        sets = [rank.add_process_set(pair) for pair in pairs]
        mine = [i for i, pair in enumerate(pairs) if rank.rank in pair]
        for choice in itertools.product([False, True], repeat=3):
            order = mine[::-1] if choice[rank.rank] else mine
            outputs = {i: np.empty(50_000, np.float32) for i in mine}
            inputs = {i: np.full(50_000, rank.rank, np.float32) for i in mine}
            handles = [rank.start(ALLREDUCE, "x", inputs[i], outputs[i], process_set=sets[i]) for i in order]
            for handle in handles:
                handle.result()
            assert all((outputs[i] == sum(pairs[i])).all() for i in mine)

    run_ranks(3, body)


def test_process_sets_come_and_go_and_ids_are_reused():
    def body(rank: Rank):
        first = rank.add_process_set([0, 2])
        second = rank.add_process_set([1, 2])
        assert rank.engine.process_set_ids() == [0, first, second]
        if rank.rank != 1:
            assert (rank.allreduce("a", np.ones(1), process_set=first) == 2).all()
        else:
            with pytest.raises(InvalidArgumentError, match="rank 1 is not a member"):
                rank.allreduce("a", np.ones(1), process_set=first)
        again = rank.add_process_set([2, 0])
        assert again not in (first, second)
        if rank.rank != 1:
            values = [np.full(1, rank.rank + place, np.float64) for place in range(2)]
            sets = zip(values, (again, first), strict=True)
            handles = [rank.start(ALLREDUCE, "a", value, value, process_set=each) for value, each in sets]
            for handle in reversed(handles):
                handle.result()
            assert [value.tolist() for value in values] == [[2.0], [4.0]]
        rank.remove_process_set(first)
        rank.remove_process_set(again)
        third = rank.add_process_set([0, 1])
        assert third == first
        assert rank.engine.process_set_ranks(third) == [0, 1]
        if rank.rank != 2:
            assert (rank.allreduce("a", np.full(1, rank.rank), process_set=third) == 1).all()
        return first, second

    results = run_ranks(3, body)
    assert results == [results[0]] * 3


@pytest.mark.parametrize("size", [2, 3, 4])
def test_join_lets_ranks_stop_at_different_times(size):
    def body(rank: Rank):
        for step in range(3 + 2 * rank.rank):
            active = [r for r in range(size) if step < 3 + 2 * r]
            value = np.full(5, rank.rank + 1, np.float32)
            assert (rank.allreduce(f"g{step}", value) == sum(r + 1 for r in active)).all()
            assert (rank.allreduce(f"m{step}", -value, op=MAX) == -(min(active) + 1)).all()
            rows = rank.allgather(f"a{step}", np.full((1, 1), rank.rank, np.int32))
            assert rows.ravel().tolist() == active
        return rank.join()

    assert run_ranks(size, body) == [size - 1] * size


def test_a_joined_root_is_an_error_on_the_others():
    def body(rank: Rank):
        if rank.rank == 1:
            with pytest.raises(MismatchError, match="the root, rank 0, has joined"):
                rank.broadcast("late", np.ones(1), 0)
        return rank.join()

    run_ranks(2, body)


@pytest.mark.parametrize("seed", seeds(range(12)))
def test_random_schedules(seed):
    """Any mix of operations and process sets, submitted in a different order by each rank."""
    plan = random.Random(seed)
    size = plan.choice([2, 3, 4, 5])
    sets = [sorted(plan.sample(range(size), plan.randint(1, size))) for _ in range(3)]
    sets = [s for i, s in enumerate(sets) if s not in sets[:i] and len(s) < size]
    steps = [
        [
            (kind, plan.choice(range(len(sets) + 1)), plan.choice([0, 1, 5, 1000, 70_000]), f"{kind}.{i}")
            for i in range(plan.randint(1, 25))
            for kind in [plan.choice([ALLREDUCE, ALLGATHER, BROADCAST, BARRIER])]
        ]
        for _ in range(4)
    ]

    def body(rank: Rank):
        ids = [0] + [rank.add_process_set(members) for members in sets]
        members_of = [list(range(size)), *sets]
        local = random.Random(1000 * seed + rank.rank)
        for operations in steps:
            running = []
            for kind, where, count, name in local.sample(operations, len(operations)):
                members = members_of[where]
                if rank.rank not in members:
                    continue
                array = np.full(count, rank.rank + 1, np.float32)
                output = np.empty_like(array) if kind in (ALLREDUCE, BROADCAST) else None
                root = members[-1]
                handle = rank.start(kind, name, array, output, process_set=ids[where], root=root)
                running.append((handle, kind, members, count, array, output, root))
            local.shuffle(running)
            for handle, kind, members, count, _, output, root in running:
                result = handle.result()
                if kind == ALLREDUCE:
                    assert (output == sum(m + 1 for m in members)).all()
                elif kind == BROADCAST:
                    assert (output == root + 1).all()
                elif kind == ALLGATHER:
                    assert (Rank.take(result, np.float32) == np.repeat([m + 1 for m in members], count)).all()

    run_ranks(size, body, {"fusion_threshold": plan.choice([1, 4096, 1 << 26]), "cache_capacity": plan.choice([0, 3, 1024])})
