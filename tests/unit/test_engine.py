"""The engine with ranks as threads: agreement, groups, absent values, process sets, join, errors that leave it usable."""

import contextlib
import itertools
import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import thread_ranks
from support.limits import limit
from support.thread_ranks import (
    ABSENT,
    ADD_SET,
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
    engines,
    in_threads,
    run_ranks,
)

from hvdlite.errors import (
    AbortedError,
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    OperationTimeoutError,
    PeerLostError,
    UnsupportedError,
)

RANKS = [1, 2, 3, 4]


@pytest.fixture(params=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, or in messages through a coordinator: users see no difference."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    return request.param


@pytest.mark.parametrize("size", RANKS)
def test_names_may_come_in_any_order(size, ways):
    names = [f"t{i}" for i in range(40)]

    def body(rank: Rank):
        order = names[:]
        for step in range(3):  # miss, hit, hit
            random.Random(100 * step + rank.rank).shuffle(order)
            inputs = {name: np.full(7, (rank.rank + 1) * (step + 1) * (int(name[1:]) + 1), np.float64) for name in names}
            outputs = {name: np.empty_like(inputs[name]) for name in names}
            handles = [rank.start(ALLREDUCE, name, inputs[name], outputs[name]) for name in order]
            for handle in handles:
                rank.engine.wait(handle)
            for index, name in enumerate(names):
                assert (outputs[name] == size * (size + 1) / 2 * (step + 1) * (index + 1)).all()
        return rank.engine.counters()

    # A rank that waits for a slow one would tell rank 0 so in a message.
    for counters in run_ranks(size, body, {"deadlock_timeout": 0.0}):
        if ways == "memory" and size > 1:
            assert counters["agreed_in_memory"] == 3 * len(names)
            assert counters["control_messages_sent"] == 0
        else:
            assert counters["agreed_in_memory"] == 0
            assert counters["cache_misses"] == len(names)
            assert counters["cache_hits"] == 2 * len(names)


class RankZeroLast:
    """Steps in which the coordinator, rank 0, has heard of what the others submit before it submits its own."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def step(self, rank: Rank, submit: Callable[[], list[int]]) -> list[int]:
        if rank.rank == 0:
            self._barrier.wait(60)
            time.sleep(0.02)  # a message needs less; if one needs more, this step shows nothing
        handles = submit()
        if rank.rank != 0:
            self._barrier.wait(60)
        return handles


def test_after_a_mismatch_ranks_agree_in_memory_again_also_if_rank_0_asks_last(ways):
    """What the coordinator decides with its own request must not stay a matter of messages."""
    order = RankZeroLast(3)

    def body(rank: Rank) -> list[int]:
        sent = []
        for step in range(6):
            # Ranks 1 and 2 differ in the first step: it becomes the coordinator's business before rank 0 asks.
            array = np.full(3 + (step == 0 and rank.rank == 2), rank.rank, np.float32)
            output = np.empty_like(array)
            (handle,) = order.step(rank, lambda a=array, o=output: [rank.start(ALLREDUCE, "w", a, o)])
            if step == 0:
                with pytest.raises(MismatchError):
                    rank.engine.wait(handle)
            else:
                rank.engine.wait(handle)
                assert (output == 3).all()
            sent.append(rank.engine.counters()["control_messages_sent"])
        return sent

    for sent in run_ranks(3, body, {"deadlock_timeout": 0.0}):
        if ways == "memory":
            assert sent[1:] == sent[1:2] * 5


def test_operations_that_go_by_message_leave_nothing_in_the_ledger(ways):
    """Unnamed allgathers, more than the ledger has room for, each a name of its own, with rank 0 last."""
    batches, many = 18, 1000
    order = RankZeroLast(2)

    def body(rank: Rank) -> int:
        row = np.full((1, 1), rank.rank, np.uint8)
        for _ in range(batches):
            handles = order.step(rank, lambda: [rank.start(ALLGATHER, None, row) for _ in range(many)])
            for handle in handles:
                assert Rank.take(rank.engine.wait(handle), np.uint8).ravel().tolist() == [0, 1]
        before = rank.engine.counters()["control_messages_sent"]
        for i in range(10):
            assert (rank.allreduce(f"after{i}", np.full(2, rank.rank + 1, np.float32)) == 3).all()
        return rank.engine.counters()["control_messages_sent"] - before

    if ways == "memory":
        assert run_ranks(2, body, {"deadlock_timeout": 0.0}) == [0, 0]


@pytest.mark.parametrize("size", [2, 3])
def test_a_cache_smaller_than_the_names_in_use_stays_right(size):
    def body(rank: Rank):
        order = list(range(30))
        for step in range(6):
            random.Random(7 * step + rank.rank).shuffle(order)
            inputs = [np.full(3, i * 10 + rank.rank, np.int64) for i in range(30)]
            outputs = [np.empty_like(a) for a in inputs]
            for handle in [rank.start(ALLREDUCE, f"n{i}", inputs[i], outputs[i]) for i in order]:
                rank.engine.wait(handle)
            for i in range(30):
                assert (outputs[i] == i * 10 * size + size * (size - 1) // 2).all()

    run_ranks(size, body, {"cache_capacity": 8})


def test_a_changed_shape_under_a_known_name_is_agreed_anew():
    def body(rank: Rank):
        for length in (4, 4, 6, 6, 4):
            result = rank.allreduce("w", np.arange(length, dtype=np.float32) * (rank.rank + 1))
            assert (result == np.arange(length) * 6).all()

    run_ranks(3, body)


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
            result = rank.engine.wait(rank.start(ALLTOALL, "a2a", send, splits=[peer + 1 for peer in range(size)]))
            assert result.received_splits == (me + 1,) * size
            assert Rank.take(result, np.int32).tolist() == [[r, me] for r in range(size) for _ in range(me + 1)]
            piece = Rank.take(
                rank.engine.wait(rank.start(REDUCESCATTER, "rs", np.arange(size + 1, dtype=np.float64) * (me + 1))),
                np.float64,
            )
            mine = [0, 1] if me == 0 else [me + 1]
            assert piece.tolist() == [i * size * (size + 1) / 2 for i in mine]
            rank.barrier()

    run_ranks(size, body)


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
                rank.engine.wait(handle)
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
            result = rank.engine.wait(rank.start(ALLREDUCE, f"op{op}", value, output, op=op, flags=flags))
            assert result.contributors == 2
            np.testing.assert_allclose(output, expected, rtol=1e-6)
        output = np.full(3, -1, np.float32)
        result = rank.engine.wait(rank.start(ALLREDUCE, "nobody", value, output, flags=ABSENT))
        assert result.contributors == 0
        assert (output == -1).all()

    run_ranks(3, body)


MISMATCHES = {
    "shape": (ALLREDUCE, lambda r: (np.zeros(3 + (r == 1), np.float32), {}), "shape differs: [3] on ranks 0, 2, [4] on rank 1"),
    "dtype": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float64 if r == 2 else np.float32), {}),
        "dtype differs: float32 on ranks 0, 1, float64 on rank 2",
    ),
    "op": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float32), {"op": MAX if r == 0 else SUM}),
        "reduce op differs: Max on rank 0, Sum on ranks 1, 2",
    ),
    "factors": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float32), {"prescale": 0.5 if r == 1 else 1.0}),
        "scaling differs: prescale 1, postscale 1 on ranks 0, 2, prescale 0.5, postscale 1 on rank 1",
    ),
    "layout": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float32), {"layout": 2 if r == 1 else 0}),
        "memory layout differs: row-major on ranks 0, 2, layout 2 on rank 1",
    ),
    "root": (
        BROADCAST,
        lambda r: (np.zeros(3, np.float32), {"root": 1 if r == 2 else 0}),
        "root rank differs: root 0 on ranks 0, 1, root 1 on rank 2",
    ),
    "kind": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float32), {"kind": BROADCAST if r == 2 else ALLREDUCE}),
        "kind of operation differs: allreduce on ranks 0, 1, broadcast on rank 2",
    ),
    "columns": (
        ALLGATHER,
        lambda r: (np.zeros((2, 3 + (r == 0)), np.float32), {}),
        "shape differs: [*, 4] on rank 0, [*, 3] on ranks 1, 2",
    ),
    "group": (
        ALLREDUCE,
        lambda r: (np.zeros(3, np.float32), {"group": "a" if r else "b", "group_size": 1}),
        "group differs: member 0 of 1 of group 'b' on rank 0, member 0 of 1 of group 'a' on ranks 1, 2",
    ),
}


@pytest.mark.parametrize("field", MISMATCHES)
def test_a_mismatch_is_an_error_on_every_rank_and_the_engine_goes_on(field):
    kind, make, text = MISMATCHES[field]

    def body(rank: Rank):
        messages = []
        for _ in range(2):
            array, options = make(rank.rank)
            this_kind = options.pop("kind", kind)
            output = None if this_kind == ALLGATHER else np.empty_like(array)
            with pytest.raises(MismatchError) as caught:
                rank.engine.wait(rank.start(this_kind, "layer.weight", array, output, **options))
            messages.append(str(caught.value))
            assert (rank.allreduce("after", np.ones(2, np.int32)) == 3).all()
        return messages

    messages = set(itertools.chain(*run_ranks(3, body)))
    assert len(messages) == 1
    message = messages.pop()
    assert text in message
    assert "of 'layer.weight' in process set 0" in message


def test_a_mismatch_in_a_group_fails_the_whole_group_and_only_that():
    def body(rank: Rank):
        for _ in range(2):
            inputs = [np.ones(3 + (i == 1 and rank.rank == 1), np.float32) for i in range(3)]
            handles = [
                rank.start(ALLREDUCE, f"p{i}", a, np.empty_like(a), group="b", group_size=3, group_index=i)
                for i, a in enumerate(inputs)
            ]
            for handle in handles:
                with pytest.raises(MismatchError, match="'p1'"):
                    rank.engine.wait(handle)
        assert (rank.allreduce("p0", np.ones(2, np.float32)) == 2).all()

    run_ranks(2, body)


def test_local_mistakes_are_refused_before_anything_is_sent():
    with engines(2) as ranks:
        rank = ranks[0]
        array = np.zeros(4, np.float32)
        handle = rank.start(ALLREDUCE, "twice", array, array)
        with pytest.raises(ValueError, match="'twice' in process set 0: an operation of this name is still in flight"):
            rank.start(ALLREDUCE, "twice", array, array)
        with pytest.raises(InvalidArgumentError, match="does not exist, or has not been registered"):
            rank.start(ALLREDUCE, "x", array, array, process_set=5)
        with pytest.raises(InvalidArgumentError, match="scalar has no first dimension"):
            rank.start(ALLGATHER, "x", np.zeros((), np.float32))
        with pytest.raises(InvalidArgumentError, match="invalid root rank 7"):
            rank.start(BROADCAST, "x", array, array, root=7)
        with pytest.raises(InvalidArgumentError, match="greater than the first dimension"):
            rank.start(ALLTOALL, "x", array, splits=[3, 2])
        with pytest.raises(InvalidArgumentError, match="does not equal number of workers"):
            rank.start(ALLTOALL, "x", array, splits=[3])
        with pytest.raises(UnsupportedError, match="bool"):
            rank.start(ALLREDUCE, "x", np.zeros(3, bool), np.zeros(3, bool), op=AVERAGE)
        with pytest.raises(InvalidArgumentError, match="ranks are 0 to 1"):
            rank.start(ADD_SET, "add_process_set", splits=[0, 9])
        other = ranks[1].start(ALLREDUCE, "twice", array, np.empty_like(array))
        rank.engine.wait(handle)
        ranks[1].engine.wait(other)


def wait_fails(rank: Rank, handle: int, error: type[Exception], within: float) -> str:
    start = time.monotonic()
    with pytest.raises(error) as caught:
        rank.engine.wait(handle)
    assert time.monotonic() - start < limit(within)
    return str(caught.value)


def start_group(rank: Rank, members: int) -> int:
    """Submits the first members of a group of two; the handle of the first."""
    handles = [
        rank.start(ALLREDUCE, f"m{i}", np.ones(2), np.ones(2), group="g", group_size=2, group_index=i) for i in range(members)
    ]
    return handles[0]


DEADLOCKS = {
    "misspelt": lambda rank: rank.start(ALLREDUCE, "layr" if rank.rank == 1 else "layer", np.ones(2), np.ones(2)),
    "kinds": lambda rank: (
        rank.start(ALLGATHER, "allgather.x", np.ones(2))
        if rank.rank == 1
        else rank.start(ALLREDUCE, "allreduce.x", np.ones(2), np.ones(2))
    ),
    "missing": lambda rank: (
        rank.start(BARRIER, "barrier.end") if rank.rank == 1 else rank.start(ALLREDUCE, "loss", np.ones(2), np.ones(2))
    ),
    "group": lambda rank: start_group(rank, 1 if rank.rank == 1 else 2),
}


@pytest.mark.parametrize("case", DEADLOCKS)
def test_a_deadlock_ends_within_two_seconds_and_tells_who_waits_for_what(case):
    def body(rank: Rank):
        message = wait_fails(rank, DEADLOCKS[case](rank), OperationTimeoutError, 2.0)
        return message

    with engines(3) as ranks:
        messages = in_threads(ranks, body)
        assert len(set(messages)) == 1
        assert all(f"rank {r} waits for" in messages[0] for r in range(3))
        assert "missing on" in messages[0]
        in_threads(ranks, lambda rank: rank.allreduce("after", np.ones(2)))


def test_waiting_for_a_slow_rank_is_no_deadlock():
    def body(rank: Rank):
        if rank.rank == 1:
            time.sleep(2.5)
        return rank.allreduce("slow", np.full(2, rank.rank, np.float32)).tolist()

    assert run_ranks(3, body) == [[3, 3]] * 3


def test_a_deadlock_across_process_sets_is_found():
    def body(rank: Rank):
        pairs = [rank.add_process_set([0, 1]), rank.add_process_set([1, 2]), rank.add_process_set([0, 2])]
        # Each waits for a neighbour that waits for another: 0 on {0,1}, 1 on {1,2}, 2 on {0,2}.
        message = wait_fails(
            rank,
            rank.start(ALLREDUCE, "x", np.ones(1), np.ones(1), process_set=pairs[rank.rank]),
            OperationTimeoutError,
            2.5,
        )
        for process_set in pairs:
            if rank.rank in rank.engine.process_set_ranks(process_set):
                rank.allreduce("again", np.ones(1), process_set=process_set)
        return message

    messages = run_ranks(3, body)
    assert len(set(messages)) == 1


def test_a_rank_that_leaves_fails_what_needs_it_at_once():
    with engines(3) as ranks:
        handles = [rank.start(ALLREDUCE, "epoch.loss", np.ones(1), np.ones(1)) for rank in ranks[:2]]
        ranks[2].engine.shutdown()
        for rank, handle in zip(ranks, handles, strict=False):
            message = wait_fails(rank, handle, AbortedError, 1.0)
            assert "allreduce of 'epoch.loss' in process set 0: rank 2 has left" in message
            assert "Horovod has been shut down" in message
        again = [rank.start(ALLREDUCE, "epoch.loss", np.ones(1), np.ones(1)) for rank in ranks[:2]]
        for rank, handle in zip(ranks, again, strict=False):
            wait_fails(rank, handle, AbortedError, 1.0)


def test_a_coordinator_that_leaves_fails_what_needs_it_at_once():
    with engines(2) as ranks:
        handle = ranks[1].start(ALLREDUCE, "x", np.ones(1), np.ones(1))
        ranks[0].engine.shutdown()
        assert "rank 0 has left" in wait_fails(ranks[1], handle, AbortedError, 1.0)
        assert "rank 0 has left" in wait_fails(
            ranks[1], ranks[1].start(ALLREDUCE, "y", np.ones(1), np.ones(1)), AbortedError, 1.0
        )


def test_every_survivor_gets_the_first_cause():
    with engines(4) as ranks:
        handles = [rank.start(ALLREDUCE, "w", np.ones(1), np.ones(1)) for rank in ranks if rank.rank != 2]
        ranks[2].engine.publish_failure("raised ValueError: bad batch")
        for rank, handle in zip([r for r in ranks if r.rank != 2], handles, strict=True):
            message = wait_fails(rank, handle, PeerLostError, 1.0)
            assert "rank 2 raised ValueError: bad batch" in message
            assert "Horovod has been shut down" in message
            assert "bad batch" in rank.engine.failure_cause
            with pytest.raises(HorovodInternalError, match="bad batch"):
                rank.start(ALLREDUCE, "later", np.ones(1), np.ones(1))
            assert "allreduce of 'w'" in rank.engine.flight_record()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_fail_at_the_same_time_do_not_wait_for_each_other(size):
    """Each has a cause of its own, and what it has in flight ends with that, or with another's that it heard before."""

    def body(rank: Rank) -> float:
        handle = rank.start(ALLREDUCE, f"x{rank.rank}", np.ones(1), np.ones(1))
        ready.wait()
        began = time.monotonic()
        rank.engine.publish_failure(f"raised ValueError: bad batch {rank.rank}")
        took = time.monotonic() - began
        cause = wait_fails(rank, handle, HorovodInternalError, 5.0)
        assert re.search(r"rank (\d) .*raised ValueError: bad batch \1\. Horovod has been shut down", cause)
        assert cause == rank.engine.failure_cause
        return took

    for _ in range(20):
        ready = threading.Barrier(size)
        with engines(size, {"failure_linger": 30.0}) as ranks:
            assert max(in_threads(ranks, body)) < 10


def test_the_rank_that_fails_ends_what_its_other_threads_wait_for():
    with engines(2) as ranks:
        handles = [ranks[1].start(ALLREDUCE, name, np.ones(1), np.ones(1)) for name in ("a", "b")]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait_fails, ranks[1], handles[0], AbortedError, 5.0)
            ranks[1].engine.publish_failure("raised ValueError: bad batch")
            assert re.search("rank 1 .*raised ValueError: bad batch.*Horovod has been shut down", waiting.result())
        assert ranks[1].engine.poll(handles[1])
        assert ranks[0].engine.failure_cause == ranks[1].engine.failure_cause
        with pytest.raises(AbortedError, match="bad batch"):
            ranks[1].start(ALLREDUCE, "later", np.ones(1), np.ones(1))
        ranks[1].engine.publish_failure("raised ValueError: another")
        assert "another" not in ranks[1].engine.failure_cause


def test_a_failure_right_after_a_small_allreduce():
    """The others may learn of it before they have read in the ledger that the allreduce is complete."""

    def body(rank: Rank) -> None:
        with contextlib.suppress(PeerLostError):
            for _ in range(2):
                rank.allreduce("allreduce.small", np.ones(2))
                if rank.rank == 1:
                    rank.engine.publish_failure("raised ValueError: bad batch")
                    return

    for _ in range(100):
        with engines(3) as ranks:
            in_threads(ranks, body)


def test_a_rank_that_is_killed_fails_what_waits_and_all_that_follows():
    with engines(3) as ranks:
        handles = [rank.start(ALLREDUCE, "w", np.ones(1000), np.ones(1000)) for rank in ranks if rank.rank != 1]
        ranks[0].fabric.kill(1)
        for rank, handle in zip([ranks[0], ranks[2]], handles, strict=True):
            assert "rank 1" in wait_fails(rank, handle, PeerLostError, 1.0)
            with pytest.raises(PeerLostError, match="rank 1"):
                rank.start(ALLREDUCE, "later", np.ones(1), np.ones(1))


def test_shutting_down_right_after_a_rank_was_killed_harms_nobody():
    """Whoever learns of it by its goodbye, which cannot be sent any more, ends as well: all threads, all memory."""
    for _ in range(30):
        with engines(3) as ranks:
            in_threads(ranks, lambda rank: rank.allreduce("w", np.ones(10)))
            ranks[0].fabric.kill(1)


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
                rank.engine.wait(handles[i])
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
                rank.engine.wait(handle)
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
        with pytest.raises(InvalidArgumentError, match="duplicate process set"):
            rank.start(ADD_SET, "again", splits=[2, 0])
        rank.remove_process_set(first)
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


@pytest.mark.parametrize("seed", range(12))
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
                result = rank.engine.wait(handle)
                if kind == ALLREDUCE:
                    assert (output == sum(m + 1 for m in members)).all()
                elif kind == BROADCAST:
                    assert (output == root + 1).all()
                elif kind == ALLGATHER:
                    assert (Rank.take(result, np.float32) == np.repeat([m + 1 for m in members], count)).all()

    run_ranks(size, body, {"fusion_threshold": plan.choice([1, 4096, 1 << 26]), "cache_capacity": plan.choice([0, 3, 1024])})


def test_long_names_and_many_tensors_cross_in_long_messages():
    def body(rank: Rank):
        names = [f"module.{'layer.' * 40}{i}" for i in range(300)]
        outputs = [np.empty(1) for _ in names]
        inputs = [np.full(1, i * (rank.rank + 1.0)) for i in range(300)]
        handles = [rank.start(ALLREDUCE, n, a, o) for n, a, o in zip(names, inputs, outputs, strict=True)]
        for handle in handles:
            rank.engine.wait(handle)
        assert [o[0] for o in outputs] == [3.0 * i for i in range(300)]

    run_ranks(2, body)
