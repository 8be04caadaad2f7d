"""GPU tensors that go through host memory: what they send, and in whose turn they pass through memory that the ranks share."""

import random

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import gpu_engines
from support.seeds import seeds
from support.thread_ranks import ABSENT, ALLREDUCE, SUM, in_threads

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

COUNT = 30_000


def values(rank, salt=0, count=COUNT):
    return ((np.arange(count) * 7 + rank * 3 + salt) % 101).astype(np.float32)


def total(size, salt=0, count=COUNT):
    return sum(values(rank, salt, count) for rank in range(size))


def agree_on_route(rank):
    """The first operation; the ranks send each other what their GPUs can do."""
    np.testing.assert_array_equal(rank.allreduce("first", values(rank.rank), op=SUM), total(rank.size))


def every_kind(rank):
    """Each collective once; its result is right."""
    mine, size, everyone = values(rank.rank), rank.size, [values(member) for member in range(rank.size)]
    np.testing.assert_array_equal(rank.allreduce("sum", mine, op=SUM), total(size))
    np.testing.assert_array_equal(rank.broadcast("root", mine, root=size - 1), everyone[size - 1])
    np.testing.assert_array_equal(
        rank.allgather("rows", mine[: 100 * rank.rank]),
        np.concatenate([array[: 100 * member] for member, array in enumerate(everyone)]),
    )
    whole = mine[: COUNT // size * size]
    parts = [np.split(array[: whole.size], size)[rank.rank] for array in everyone]
    np.testing.assert_array_equal(rank.alltoall("parts", whole), np.concatenate(parts))
    np.testing.assert_array_equal(rank.reducescatter("slice", whole, op=SUM), sum(parts))


def test_ranks_of_one_host_send_nothing(fake_gpus):  # noqa: F811
    def body(rank):
        agree_on_route(rank)
        before = rank.counters()
        for _ in range(3):
            every_kind(rank)
        after = rank.counters()
        assert after["staged_ops"] - before["staged_ops"] == 15
        assert after["data_bytes_sent"] == before["data_bytes_sent"]

    with gpu_engines(fake_gpus, 3, {"gpu_route": "staged"}) as ranks:
        in_threads(ranks, body)


def test_hosts_send_what_a_link_must_carry(fake_gpus):  # noqa: F811
    """Ranks of a host add up in their shared memory first. Each host then sends its sums once; a ring of all sends more."""

    def body(rank):
        agree_on_route(rank)
        before = rank.counters()["data_bytes_sent"]
        for salt in range(4):
            np.testing.assert_array_equal(rank.allreduce("sum", values(rank.rank, salt), op=SUM), total(4, salt))
        sent = rank.counters()["data_bytes_sent"] - before
        every_kind(rank)
        return sent

    with gpu_engines(fake_gpus, 4, {"gpu_route": "staged"}, hosts=[0, 0, 1, 1]) as ranks:
        sent = in_threads(ranks, body)
    assert sum(sent) <= 4 * 2 * COUNT * 4 * 1.05  # operations, hosts, bytes


@pytest.mark.parametrize("seed", seeds(range(4)))
def test_copies_that_come_in_another_order_on_each_rank(fake_gpus, seed):  # noqa: F811
    """A rank without a value waits for nothing, another for a busy GPU: turns go by the agreed order all the same."""
    size, steps = 3, 30
    source = random.Random(seed)
    absent = [source.choice([None, 0, 1, 2]) for _ in range(steps)]
    counts = [source.choice([1, 300, 20_000]) for _ in range(steps)]
    fake_gpus.set(seed=seed, delay=300)

    def body(rank):
        agree_on_route(rank)
        before = rank.counters()["data_bytes_sent"]
        own = random.Random(100 * seed + rank.rank)
        flying = []
        for step in range(steps):
            if own.random() < 0.3:
                rank.stream.busy(own.random() * 0.004)
            array = rank.array(values(rank.rank, step, counts[step]))
            flags = ABSENT if absent[step] == rank.rank else 0
            output = rank.empty_like(array)
            flying.append((rank.start(ALLREDUCE, f"step.{step}", array, output, op=SUM, flags=flags), output))
        for step, (handle, output) in enumerate(flying):
            rank.wait(handle)
            given = [values(member, step, counts[step]) for member in range(size) if member != absent[step]]
            np.testing.assert_array_equal(output.numpy(), sum(given))
        assert rank.counters()["data_bytes_sent"] == before

    with gpu_engines(fake_gpus, size, {"gpu_route": "staged", "fusion_threshold": 2000}) as ranks:
        in_threads(ranks, body, timeout=60.0)


def test_memory_that_a_set_has_used_before_the_first_gpu_tensor(fake_gpus):  # noqa: F811
    """It passes to the set of all ranks. What the earlier set has left there must not count as data that have arrived."""

    def body(rank):
        some = rank.host.add_process_set([0, 1])
        if rank.rank < 2:
            for salt in range(20):
                result = rank.host.allreduce("some", values(rank.rank, salt), op=SUM, process_set=some)
                np.testing.assert_array_equal(result, total(2, salt))
        rank.host.remove_process_set(some)
        for salt in range(4):
            if rank.rank == 0:
                rank.stream.busy(0.02)  # its data come last
            np.testing.assert_array_equal(rank.allreduce("sum", values(rank.rank, salt), op=SUM), total(3, salt))

    with gpu_engines(fake_gpus, 3, {"gpu_route": "staged"}) as ranks:
        in_threads(ranks, body)


def test_other_process_sets_send_messages(fake_gpus):  # noqa: F811
    """Not all ranks know of their operations, and all must agree on what part of the memory is whose. Host tensors share it."""

    def body(rank):
        agree_on_route(rank)
        some = rank.host.add_process_set([0, 1])
        before = rank.counters()["data_bytes_sent"]
        if rank.rank < 2:
            result = rank.allreduce("some", values(rank.rank), op=SUM, process_set=some)
            np.testing.assert_array_equal(result, values(0) + values(1))
            assert rank.counters()["data_bytes_sent"] > before
        rank.host.barrier("end")
        on_host = rank.counters()["data_bytes_sent"]
        if rank.rank < 2:
            result = rank.host.allreduce("host", values(rank.rank), op=SUM, process_set=some)
            np.testing.assert_array_equal(result, values(0) + values(1))
        assert rank.counters()["data_bytes_sent"] == on_host

    with gpu_engines(fake_gpus, 3, {"gpu_route": "staged"}) as ranks:
        in_threads(ranks, body)
