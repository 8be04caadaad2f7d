"""Prepared operations, whose inputs are with the others when all have agreed: up to which size, and what their results are."""

import numpy as np
import pytest
from support.requests import address, allreduce
from support.thread_ranks import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BROADCAST,
    MAX,
    PRODUCT,
    REDUCESCATTER,
    SUM,
    engines,
    in_threads,
    outcomes_of,
    run_ranks,
)

from hvdlite.dtypes import DType, numpy_dtype

SHARED_BY_ALL = 64 << 10  # bytes, over the ranks of the host
LARGEST = 32 << 10
LONG = 40_000  # elements of any dtype that are too many to be prepared


def limit_of(size):
    return min(SHARED_BY_ALL // size // 64 * 64, LARGEST)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_they_are_prepared_up_to_a_limit(size):
    def body(rank):
        count, results = [], []
        for extra in (0, 1, 0):
            before = rank.engine.counters()["riding_ops"]
            results.append(rank.allreduce("x", np.full(limit_of(size) // 4 + extra, rank.rank + 1, np.float32)))
            count.append(rank.engine.counters()["riding_ops"] - before)
        return count, results

    for count, results in run_ranks(size, body):
        assert count == [1, 0, 1]
        assert all((result == size * (size + 1) // 2).all() for result in results)


@pytest.mark.parametrize(("algorithm", "prepared"), [("inline", True), ("shm", False), ("ring", False)])
def test_an_algorithm_that_is_forced_decides_whether_they_are(algorithm, prepared):
    """Inline serves every size: what is too large to be prepared, it exchanges when all have agreed."""

    def body(rank):
        small = rank.allreduce("small", np.full(16, rank.rank + 1, np.float32))
        count = rank.engine.counters()["riding_ops"]
        large = rank.allreduce("large", np.arange(LONG, dtype=np.float32) * (rank.rank + 1))
        return count, rank.engine.counters()["riding_ops"], small, large

    for count, count_later, small, large in run_ranks(3, body, config={"allreduce_algorithm": algorithm}):
        assert count == count_later == int(prepared)
        assert (small == 6).all()
        assert (large == np.arange(LONG) * 6).all()


def test_what_not_all_have_prepared_is_exchanged_when_all_have_agreed():
    """A rank with something else under way prepares nothing."""

    def body(rank):
        other = np.ones(4, np.float32)
        if rank.rank == 1:
            handle = rank.start(ALLREDUCE, "other", other, other)
        result = rank.allreduce("x", np.full(8, rank.rank + 1, np.float32))
        count = rank.engine.counters()["riding_ops"]
        if rank.rank == 0:
            handle = rank.start(ALLREDUCE, "other", other, other)
        handle.result()
        return count, result, other

    found = run_ranks(2, body)
    assert found[0][0] == 0  # rank 0 had nothing else before
    for _, result, other in found:
        assert (result == 3).all()
        assert (other == 2).all()


def test_only_what_is_alone_is_prepared():
    def body(rank):
        arrays = [np.full(8, rank.rank + 1.0) for _ in range(2)]
        outputs = [np.empty_like(array) for array in arrays]
        handles = [rank.start(ALLREDUCE, f"x{i}", arrays[i], outputs[i], wake=False) for i in range(2)]
        for handle in handles:
            handle.result()
        return rank.engine.counters()["riding_ops"], outputs

    for count, outputs in run_ranks(2, body, config={"cycle_time": 10_000.0}):
        assert count == 0
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
@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 0, 1, 2, 2]])
def test_their_bits_are_those_of_the_other_way(name, op, prescale, hosts):
    """Whether an operation is prepared may depend on timing, so its bits must not."""
    dtype = numpy_dtype(DType[name])

    def body(rank):
        values = np.random.default_rng(rank.rank).normal(0, 3, LONG).astype(dtype)
        some = np.ascontiguousarray(values[:500])
        prepared = rank.allreduce("some", some, op=op, prescale=prescale, postscale=prescale)
        count = rank.engine.counters()["riding_ops"]
        moved = rank.allreduce("all", values, op=op, prescale=prescale, postscale=prescale)
        assert count == rank.engine.counters()["riding_ops"] == 1
        return prepared.tobytes(), moved[:500].tobytes()

    with engines(len(hosts), {"ledger_copies": 16}, hosts) as ranks:
        found = in_threads(ranks, body)
    for prepared, moved in found:
        assert prepared == moved == found[0][0]


def inputs_and_results(kind, size, rows):
    """Of each rank: the input, which holds the rank's number, and what the operation makes of all inputs."""
    inputs = [np.arange(rows * size, dtype=np.int32).reshape(rows * size, 1) * 100 + rank for rank in range(size)]
    if kind == ALLGATHER:
        return inputs, [np.concatenate(inputs)] * size
    if kind == BROADCAST:
        return inputs, [inputs[size - 1]] * size
    if kind == ALLTOALL:
        return inputs, [np.concatenate([each[rank * rows : (rank + 1) * rows] for each in inputs]) for rank in range(size)]
    return inputs, [sum(inputs)[rank * rows : (rank + 1) * rows] for rank in range(size)]


@pytest.mark.parametrize("shared_memory", ["auto", "off"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", [ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER])
def test_operations_of_every_kind_that_moves_data_are_prepared(kind, size, shared_memory):
    """Small ones are, large ones are not; both agree without the coordinator."""

    def body(rank):
        for rows, count in ((2, 1), (LONG, 0)):
            inputs, results = inputs_and_results(kind, size, rows)
            mine, before = inputs[rank.rank], rank.engine.counters()
            output = np.empty_like(mine) if kind == BROADCAST else None
            options = {ALLTOALL: {"splits": [rows] * size}, BROADCAST: {"root": size - 1}}.get(kind, {})
            result = rank.start(kind, f"x{rows}", mine, output, **options).result()
            got = rank.take(result, np.int32) if output is None else output
            after = rank.engine.counters()
            assert np.array_equal(got, results[rank.rank])
            assert after["agreed_in_memory"] - before["agreed_in_memory"] == 1
            assert after["riding_ops"] - before["riding_ops"] == count
            assert after["cache_misses"] == before["cache_misses"]

    run_ranks(size, body, config={"shared_memory": shared_memory, "ledger_copies": 16})


APART = {"shared_memory": "off", "ledger_copies": 16}
MOST = 256 << 10  # bytes of an input


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_an_allreduce_between_hosts_is_prepared_whole_or_in_parts(size, in_place):
    """The smallest go whole to all ranks, of larger ones each rank gets its part, and the largest are not prepared."""

    def body(rank):
        for elements in (1, 4096 // (size - 1), 4096 // (size - 1) + 1, 5003, MOST // 4, MOST // 4 + 1):
            everyone = [np.random.default_rng(other).normal(0, 3, elements).astype(np.float32) for other in range(size)]
            before = rank.engine.counters()["riding_ops"]
            mine = everyone[rank.rank].copy()
            result = mine if in_place else np.empty_like(mine)
            rank.start(ALLREDUCE, f"x{elements}", mine, result).result()
            assert rank.engine.counters()["riding_ops"] - before == (4 * elements <= MOST)
            total = everyone[0]
            for other in everyone[1:]:
                total = total + other
            assert result.tobytes() == total.tobytes()  # the order of the ranks, whichever way
            assert in_place or mine.tobytes() == everyone[rank.rank].tobytes()

    run_ranks(size, body, config={**APART, "deterministic": True})


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_group_between_hosts_is_prepared_as_one_tensor(size):
    """Then a step with one small bucket has one message to each other rank, which carries the data."""
    names = ("riding_ops", "fused_ops", "agreed_in_memory", "control_messages_sent", "data_bytes_sent")

    def body(rank):
        for length, prepared in ((1, True), (3000, True), (MOST // 8, False)):
            shapes = [(7,), (0,), (2, length), ()]
            generators = [np.random.default_rng(other) for other in range(size)]
            everyone = [[generator.normal(0, 3, shape).astype(np.float32) for shape in shapes] for generator in generators]
            bucket = [array.copy() for array in everyone[rank.rank]]
            group = rank.engine.prepare([
                allreduce(f"x{length}.{index}", array, group=f"g{length}", group_size=len(shapes), group_index=index)
                for index, array in enumerate(bucket)
            ])  # fmt: skip
            for step in range(3):
                for array, own in zip(bucket, everyone[rank.rank], strict=True):
                    array[...] = own * (step + 1)
                before = rank.engine.counters()
                handle = rank.engine.submit_prepared(group, [address(array) for array in bucket], (), False)
                assert outcomes_of(rank.engine, [handle]) == [size] * len(shapes)
                after = rank.engine.counters()
                riding, fused, agreed, messages, sent = (after[name] - before[name] for name in names)
                assert (riding, fused, agreed, messages) == (int(prepared), 1, len(shapes), size - 1)
                whole = prepared and (size == 2 or length == 1)
                assert (sent == 0) == whole
                for index, array in enumerate(bucket):
                    total = everyone[0][index] * (step + 1)
                    for other in everyone[1:]:
                        total = total + other[index] * (step + 1)
                    assert array.tobytes() == total.tobytes()
            rank.engine.release_prepared(group)

    run_ranks(size, body, config={**APART, "deterministic": True, "deadlock_timeout": 0.0})


@pytest.mark.parametrize("singles", [1, 2])
def test_groups_between_hosts_that_are_announced_at_the_same_time_are_all_prepared(singles):
    """Each in a message of its own, and so is an operation that is alone beside them. Several such operations are fused."""
    names = ("riding_ops", "fused_ops", "control_messages_sent")

    def body(rank):
        bucket = [np.full(50 * (index + 1), 10.0 * index + rank.rank, np.float32) for index in range(4)]
        parts = (slice(0, 3), slice(3, 4))  # a group may have one member
        groups = [
            rank.engine.prepare([
                allreduce(f"x{number}.{index}", array, group=f"g{number}", group_size=len(bucket[part]), group_index=index)
                for index, array in enumerate(bucket[part])
            ])
            for number, part in enumerate(parts)
        ]  # fmt: skip
        before = rank.engine.counters()
        alone = [np.full(3, index + rank.rank, np.float32) for index in range(singles)]
        handles = [rank.start(ALLREDUCE, f"alone{i}", alone[i], alone[i], wake=False) for i in range(singles)]
        for number in (rank.rank % 2, 1 - rank.rank % 2):  # the ranks ask in different orders
            addresses = [address(array) for array in bucket[parts[number]]]
            handle = rank.engine.submit_prepared(groups[number], addresses, (), False)
            handles.append(handle)
        outcomes_of(rank.engine, handles[singles:])
        for handle in handles[:singles]:
            handle.result()
        after = rank.engine.counters()
        for group in groups:
            rank.engine.release_prepared(group)
        return [after[name] - before[name] for name in names], bucket, alone

    for counts, bucket, alone in run_ranks(3, body, config={**APART, "cycle_time": 10_000.0, "deadlock_timeout": 0.0}):
        assert counts == [3 if singles == 1 else 2, 3, 6]
        for index, array in enumerate(bucket):
            assert (array == 30 * index + 3).all()
        for index, array in enumerate(alone):
            assert (array == 3 * index + 3).all()


@pytest.mark.parametrize(("size", "more"), [(3, {"recursive_doubling_max_bytes": 0}), (17, {"ledger_copies": 32})])
def test_what_is_not_prepared_would_be_added_in_the_same_order(size, more):
    """The ring and recursive doubling add in other orders. If they would run, the bits would depend on timing."""

    def body(rank):
        values = np.random.default_rng(rank.rank).normal(0, 3, 100).astype(np.float32)
        rank.allreduce("x", values)
        rank.allgather("y", values)
        return rank.engine.counters()["riding_ops"]

    assert run_ranks(size, body, config={**APART, **more}) == [1] * size


@pytest.mark.parametrize("kind", [ALLTOALL, REDUCESCATTER])
def test_each_rank_gets_its_part_between_hosts(kind):
    """So inputs may be as large as those of direct algorithms, and a rank sends no byte that another rank does not need."""
    rows = MOST // 4 // 4

    def body(rank):
        before = rank.engine.counters()
        inputs, results = inputs_and_results(kind, 4, rows)
        options = {"splits": [rows] * 4} if kind == ALLTOALL else {}
        result = rank.start(kind, "x", inputs[rank.rank], None, **options).result()
        after = rank.engine.counters()
        assert np.array_equal(rank.take(result, np.int32), results[rank.rank])
        assert after["riding_ops"] - before["riding_ops"] == 1
        assert after["control_bytes_sent"] - before["control_bytes_sent"] < MOST

    run_ranks(4, body, config=APART)


def test_parts_may_differ_in_size():
    """Three ranks share 10 rows; each sends the same uneven split in an alltoall."""

    def body(rank):
        values = np.arange(10, dtype=np.int64).reshape(10, 1) + 100 * rank.rank
        share = rank.take(rank.start(REDUCESCATTER, "r", values, None).result(), np.int64)
        begin = (0, 4, 7)[rank.rank]
        assert share.ravel().tolist() == [3 * row + 300 for row in range(begin, (4, 7, 10)[rank.rank])]
        got = rank.take(rank.start(ALLTOALL, "a", values, None, splits=[1, 0, 9]).result(), np.int64)
        rows = ([0], [], list(range(1, 10)))[rank.rank]
        assert got.ravel().tolist() == [row + 100 * other for other in range(3) for row in rows]
        assert rank.engine.counters()["riding_ops"] == 2

    run_ranks(3, body, config=APART)


def test_rows_that_differ_go_by_the_coordinator():
    def body(rank):
        for step, rows in enumerate((rank.rank + 1, 2, 2)):
            before = rank.engine.counters()["agreed_in_memory"]
            got = rank.allgather("x", np.full((rows, 1), rank.rank, np.int16))
            counts = [1, 2, 3] if step == 0 else [2, 2, 2]
            assert got.ravel().tolist() == [r for r in range(3) for _ in range(counts[r])]
            # The rows before decide which way is taken first.
            assert rank.engine.counters()["agreed_in_memory"] - before == (1 if step == 2 else 0)

    run_ranks(3, body)
