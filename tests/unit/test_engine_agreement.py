"""Ranks as threads agree on what to run: names in any order, the cache, the ledger in shared memory, mismatches, refusals."""

import itertools
import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
from support.agreement import ways  # noqa: F401
from support.limits import DEADLINE, eventually
from support.rest import awaits_others
from support.thread_ranks import ADD_SET, ALLGATHER, ALLREDUCE, ALLTOALL, AVERAGE, BROADCAST, MAX, SUM, Rank, engines, run_ranks

from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError

RANKS = [1, 2, 3, 4]


@pytest.mark.parametrize("size", RANKS)
def test_names_may_come_in_any_order(size, ways):  # noqa: F811
    names = [f"t{i}" for i in range(40)]

    def body(rank: Rank):
        order = names[:]
        for step in range(3):  # miss, hit, hit
            random.Random(100 * step + rank.rank).shuffle(order)
            inputs = {name: np.full(7, (rank.rank + 1) * (step + 1) * (int(name[1:]) + 1), np.float64) for name in names}
            outputs = {name: np.empty_like(inputs[name]) for name in names}
            handles = [rank.start(ALLREDUCE, name, inputs[name], outputs[name]) for name in order]
            for handle in handles:
                handle.result()
            for index, name in enumerate(names):
                assert (outputs[name] == size * (size + 1) / 2 * (step + 1) * (index + 1)).all()
        return rank.engine.counters()

    # A rank that waits for a slow one would tell rank 0 so in a message.
    for counters in run_ranks(size, body, {"deadlock_timeout": 0.0}):
        if ways == "memory" and size > 1:
            assert counters["agreed_in_memory"] == 3 * len(names)
            assert counters["control_messages_sent"] == 0
        elif ways == "copies" and size > 1:
            assert counters["agreed_in_memory"] == 3 * len(names)
            assert counters["cache_misses"] == 0
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
            self._barrier.wait(DEADLINE)
        before = rank.engine.counters()
        handles = submit()
        if rank.rank != 0:
            assert eventually(lambda: awaits_others(rank.engine, before))
            self._barrier.wait(DEADLINE)
        return handles


def test_after_a_mismatch_ranks_agree_in_memory_again_also_if_rank_0_asks_last(ways):  # noqa: F811
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
                    handle.result()
            else:
                handle.result()
                assert (output == 3).all()
            sent.append(rank.engine.counters()["control_messages_sent"])
        return sent

    for sent in run_ranks(3, body, {"deadlock_timeout": 0.0}):
        if ways == "memory":
            assert sent[1:] == sent[1:2] * 5


def test_operations_that_go_by_message_leave_nothing_in_the_ledger(ways):  # noqa: F811
    """Unnamed allgathers, more than the ledger has room for, each a name of its own, with rank 0 last."""
    batches, many = 18, 1000
    order = RankZeroLast(2)

    def body(rank: Rank) -> int:
        row = np.full((1, 1), rank.rank, np.uint8)
        for _ in range(batches):
            handles = order.step(rank, lambda: [rank.start(ALLGATHER, None, row) for _ in range(many)])
            for handle in handles:
                assert Rank.take(handle.result(), np.uint8).ravel().tolist() == [0, 1]
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
                handle.result()
            for i in range(30):
                assert (outputs[i] == i * 10 * size + size * (size - 1) // 2).all()

    run_ranks(size, body, {"cache_capacity": 8})


def test_a_changed_shape_under_a_known_name_is_agreed_anew():
    def body(rank: Rank):
        for length in (4, 4, 6, 6, 4):
            result = rank.allreduce("w", np.arange(length, dtype=np.float32) * (rank.rank + 1))
            assert (result == np.arange(length) * 6).all()

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
                rank.start(this_kind, "layer.weight", array, output, **options).result()
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
                    handle.result()
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
        handle.result()
        other.result()


def test_long_names_and_many_tensors_cross_in_long_messages():
    def body(rank: Rank):
        names = [f"module.{'layer.' * 40}{i}" for i in range(300)]
        outputs = [np.empty(1) for _ in names]
        inputs = [np.full(1, i * (rank.rank + 1.0)) for i in range(300)]
        handles = [rank.start(ALLREDUCE, n, a, o) for n, a, o in zip(names, inputs, outputs, strict=True)]
        for handle in handles:
            handle.result()
        assert [o[0] for o in outputs] == [3.0 * i for i in range(300)]

    run_ranks(2, body)
