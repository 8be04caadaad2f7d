"""Bits: equal on all ranks always; equal from run to run for groups, and for everything with `deterministic`."""

import random

import numpy as np
import pytest
from support.limits import dawdle
from support.thread_ranks import ALLREDUCE, AVERAGE, SUM, Rank, run_ranks

RUNS = 20
COUNTS = [1, 7, 100, 1000, 4096, 9001, 20_011]


def one_run(size: int, seed: int, group: str, config: dict[str, object]) -> list[bytes]:
    """All results of one run as bytes: the same inputs every time, other delays and orders."""

    def body(rank: Rank) -> bytes:
        values = np.random.default_rng(rank.rank)
        inputs = [values.standard_normal(count).astype(np.float32) for count in COUNTS]
        outputs = [np.empty_like(a) for a in inputs]
        local = random.Random(1000 * seed + rank.rank)
        order = list(range(len(COUNTS)))
        local.shuffle(order)
        handles = []
        for i in order:
            options = {"group": group, "group_size": len(COUNTS), "group_index": i} if group else {}
            handles.append(rank.start(ALLREDUCE, f"t{i}", inputs[i], outputs[i], op=AVERAGE, **options))
            if local.random() < 0.4:
                dawdle(local.randrange(100))
        for handle in handles:
            handle.result()
        return b"".join(output.tobytes() for output in outputs)

    return run_ranks(size, body, config)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("memory", ["auto", "off"])  # the algorithms for messages are others
@pytest.mark.parametrize("how", ["group", "deterministic"])
def test_bits_are_equal_on_all_ranks_and_from_run_to_run(size, how, memory):
    config = {"segment_bytes": 1024, "recursive_doubling_max_bytes": 256, "cycle_time": 1.0, "shared_memory": memory}
    if how == "deterministic":
        config["deterministic"] = 1
    seen = set()
    for seed in range(RUNS):
        results = one_run(size, seed, "bucket" if how == "group" else "", config)
        assert len(set(results)) == 1, "ranks disagree"
        seen.add(results[0])
    assert len(seen) == 1, f"{len(seen)} different results in {RUNS} runs"


def test_without_either_ranks_still_agree():
    config = {"segment_bytes": 1024, "recursive_doubling_max_bytes": 0, "allreduce_algorithm": "ring"}
    for seed in range(5):
        assert len(set(one_run(3, seed, "", config))) == 1


@pytest.mark.parametrize("count", [4, 2000, 200_000])
def test_threads_that_flush_subnormals_to_zero_do_not_change_the_bits(count):
    """Such threads are those of TensorFlow and XLA. Whichever thread waits computes."""
    torch = pytest.importorskip("torch")
    tiny = np.full(count, 1e-39, np.float32)

    def body(rank: Rank) -> bytes:
        flushes = rank.rank == 0
        torch.set_flush_denormal(flushes)  # of this thread
        output = np.empty_like(tiny)
        rank.start(ALLREDUCE, "tiny", tiny, output, op=SUM, prescale=0.5, wake=False).result()
        assert (torch.tensor(1e-39) * 1 == 0) == flushes  # the thread goes on as before
        return output.tobytes()

    assert run_ranks(2, body) == [tiny.tobytes()] * 2


@pytest.mark.parametrize(
    ("size", "count", "deterministic", "in_rank_order"),
    [(3, 2000, False, True), (3, 2049, False, False), (17, 200, False, False), (17, 200, True, True)],
)
def test_up_to_a_limit_each_element_is_added_in_the_order_of_the_ranks(size, count, deterministic, in_rank_order):
    """This is how one sees that auto takes direct: the ring and recursive doubling add in other orders."""
    config = {
        "shared_memory": "off",
        "ledger_copies": 0,
        "recursive_doubling_max_bytes": 2048 * 4,
        "deterministic": deterministic,
    }

    def values(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).standard_normal(count).astype(np.float32)

    def body(rank: Rank) -> np.ndarray:
        return rank.allreduce("x", values(rank.rank), op=SUM)

    in_order = sum((values(rank) for rank in range(1, size)), values(0))
    for result in run_ranks(size, body, config):
        np.testing.assert_allclose(result, in_order, rtol=1e-3, atol=1e-4)
        assert np.array_equal(result, in_order) == in_rank_order


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_two_ranks_exchange_values_of_their_own_type(dtype):
    count = 5000

    def body(rank: Rank) -> int:
        array = np.full(count, rank.rank + 1, dtype)
        assert (rank.allreduce("x", array, op=SUM) == 3).all()
        return int(rank.engine.counters()["data_bytes_sent"])

    config = {"shared_memory": "off", "recursive_doubling_max_bytes": count * 4, "ledger_copies": 0}
    assert run_ranks(2, body, config) == [count * np.dtype(dtype).itemsize] * 2
