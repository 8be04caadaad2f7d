"""What the shm algorithms do beyond what test_collectives.py asks of every algorithm: a channel that many operations use one
after the other, modes by size that must not show in the bits, and when they are chosen.
"""

import random

import numpy as np
import pytest
from support.cases import Op, Reduction, assert_same_bits, contribution, expected, random_contribution, random_sizes
from support.seeds import seeds
from support.simulation import (  # noqa: F401
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    HIERARCHICAL,
    REAL_TILE,
    REDUCESCATTER,
    TILES,
    Buffer,
    allreduce,
    divisor_of,
    error_classes,
    simulate,
)
from support.testing import native
from support.thread_ranks import Rank, engines, in_threads, run_ranks

from hvdlite.dtypes import DType
from hvdlite.errors import PeerLostError, UnsupportedError

FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)


# --- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64], ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_all_modes_have_the_bits_of_direct(ranks, dtype):
    """Inline, direct and sliced, in one tile or many: which one serves depends on count and tile size alone."""
    for op in (Op.SUM, Op.AVERAGE, Op.PRODUCT):
        reduction = Reduction(dtype, op)
        for count in (1, 6, 12, 13, 200, 3001):
            inputs = [random_contribution(rank, count, dtype, count) for rank in range(ranks)]
            results = [allreduce("direct", inputs, reduction)[0]]
            for number, tile_bytes in enumerate((64, 256, 1024, 16 * 1024, REAL_TILE)):
                results.append(allreduce("shm", inputs, reduction, bool(number % 2), tile_bytes=tile_bytes, seed=number)[0])
            assert_same_bits(results, f"{reduction} of {count} elements")


def test_it_adds_in_rank_order():
    ranks, count = 7, 300
    inputs = [random_contribution(rank, count, DType.FLOAT32, 5) for rank in range(ranks)]
    in_order = inputs[0].copy()
    for array in inputs[1:]:
        in_order += array
    for tile_bytes in (256, 4096, REAL_TILE):
        assert_same_bits([in_order, allreduce("shm", inputs, FLOAT_SUM, tile_bytes=tile_bytes)[0]], "sum in rank order")


# --- one channel, many operations --------------------------------------------------------------------------------------


class Program:
    """Operations of all kinds for one channel, with what they must give."""

    def __init__(self, ranks: int, seed: int, length: int = 24) -> None:
        self.ranks = ranks
        self.draw = random.Random(seed)
        self.steps: list[native.SimulatedStep] = []
        self.checks: list = []
        self.kept: list = []
        makers = (self.allreduce, self.reducescatter, self.allgather, self.broadcast, self.alltoall, self.barrier)
        for number in range(length):
            self.draw.choice(makers)(number)

    def add(self, kind: int, inputs: list, outputs: list[Buffer], counts: list[int], **knobs) -> None:
        # Messages in between must not disturb the counts.
        others = [name for name in native.algorithms(kind) if name not in ("shm", HIERARCHICAL)]
        algorithms = ["shm"] * 4 + others
        self.kept += [inputs, outputs]
        addresses = [0 if array is None else array.ctypes.data for array in inputs]
        places = [buffer.address for buffer in outputs]
        self.steps.append(native.SimulatedStep(kind, self.draw.choice(algorithms), addresses, places, counts, **knobs))
        for buffer in outputs:
            self.checks.append(buffer.check_guards)

    def buffers(self, sizes: list[int], dtype: DType = DType.UINT8) -> list[Buffer]:
        return [Buffer.of(size, dtype) for size in sizes]

    def size(self) -> int:
        return self.draw.choice((0, 1, 12, 13, 64, 100, 999, 5000))

    def allreduce(self, salt: int) -> None:
        dtype, op = self.draw.choice(((DType.FLOAT32, Op.SUM), (DType.FLOAT16, Op.AVERAGE), (DType.INT8, Op.MIN)))
        reduction, count = Reduction(dtype, op), self.size()
        inputs: list = [contribution(rank, count, dtype, op, salt) for rank in range(self.ranks)]
        right = expected(inputs, reduction)
        outputs = self.buffers([count] * self.ranks, dtype)
        if self.draw.random() < 0.5:
            for rank, output in enumerate(outputs):
                output.array[:] = inputs[rank]
            inputs = [output.array for output in outputs]
        self.add(ALLREDUCE, inputs, outputs, [count], dtype=dtype, op=op, divisor=divisor_of(reduction, self.ranks))
        self.checks += [lambda o=output: right.check(o.array, f"step {salt}") for output in outputs]

    def reducescatter(self, salt: int) -> None:
        counts = random_sizes(self.ranks, salt)
        inputs = [contribution(rank, sum(counts), DType.FLOAT32, Op.SUM, salt) for rank in range(self.ranks)]
        right = expected(inputs, FLOAT_SUM)
        outputs = self.buffers(counts, DType.FLOAT32)
        self.add(REDUCESCATTER, inputs, outputs, counts)
        self.checks.append(lambda: right.check(np.concatenate([o.array for o in outputs]), f"step {salt}"))

    def moved(self, salt: int, sizes: list[int]) -> list[np.ndarray]:
        return [contribution(rank, size, DType.UINT8, Op.MAX, salt) for rank, size in enumerate(sizes)]

    def same(self, salt: int, output: Buffer, value: np.ndarray) -> None:
        def check() -> None:
            assert np.array_equal(output.array, value), f"step {salt}"

        self.checks.append(check)

    def allgather(self, salt: int) -> None:
        sizes = [self.size() for _ in range(self.ranks)]
        inputs = self.moved(salt, sizes)
        outputs = self.buffers([sum(sizes)] * self.ranks)
        self.add(ALLGATHER, inputs, outputs, sizes)
        for output in outputs:
            self.same(salt, output, np.concatenate(inputs))

    def broadcast(self, salt: int) -> None:
        root, count = self.draw.randrange(self.ranks), self.size()
        outputs = self.buffers([count] * self.ranks)
        outputs[root].array[:] = value = self.moved(salt, [count])[0]
        self.add(BROADCAST, [output.array for output in outputs], outputs, [count], root=root)
        for output in outputs:
            self.same(salt, output, value)

    def alltoall(self, salt: int) -> None:
        sizes = np.array([random_sizes(self.ranks, 100 * salt + sender) for sender in range(self.ranks)])
        inputs = self.moved(salt, [int(total) for total in sizes.sum(axis=1)])
        outputs = self.buffers([int(total) for total in sizes.sum(axis=0)])
        self.add(ALLTOALL, inputs, outputs, [int(size) for size in sizes.ravel()])
        starts = sizes.cumsum(axis=1) - sizes
        for rank, output in enumerate(outputs):
            parts = [inputs[s][starts[s, rank] : starts[s, rank] + sizes[s, rank]] for s in range(self.ranks)]
            self.same(salt, output, np.concatenate(parts))

    def barrier(self, _: int) -> None:
        self.add(BARRIER, [None] * self.ranks, self.buffers([0] * self.ranks), [])


@pytest.mark.parametrize("seed", seeds(range(12)))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_operations_of_all_kinds_share_a_channel(ranks, seed):
    """Several in flight, in an order of events of their own: tile counts carry over, turns are kept."""
    program = Program(ranks, seed)
    simulate(ranks, program.steps, seed=seed, tile_bytes=TILES[seed % len(TILES)])
    for check in program.checks:
        check()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_many_schedules(ranks):
    """A few operations, under many orders of events."""
    for seed in seeds(range(60)):
        program = Program(ranks, seed % 4, length=6)
        simulate(ranks, program.steps, seed=seed, tile_bytes=256)
        for check in program.checks:
            check()


# --- results past the caches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("streaming_bytes", [0, 1])
def test_large_results_out_of_place(streaming_bytes, dtype):
    """Streamed or not (as in the simulations on some ranks): the same bits, an input that stays, one tile or many."""
    draw = np.random.default_rng(7)
    values = {count: draw.integers(-9, 9, (3, count)).astype(dtype) for count in (5003, 70_001, 1_000_000)}

    def body(rank: Rank) -> None:
        for count, every in values.items():
            mine = every[rank.rank].copy()
            for step in range(3):
                result = rank.allreduce(f"x{count}.{step}", mine)
                assert np.array_equal(result, every.sum(axis=0, dtype=dtype)), count
            assert np.array_equal(mine, every[rank.rank])

    run_ranks(3, body, {"streaming_bytes": streaming_bytes})


@pytest.mark.parametrize("tile_stores", ["ordinary", "streaming", "auto"])
@pytest.mark.parametrize("hosts", [None, [0, 0, 1]], ids=["one host", "two hosts"])
def test_tiles_written_either_way_carry_the_same(tile_stores, hosts):
    """Also while ways are tried: some hundred tiles of every class, in place and not."""
    draw = np.random.default_rng(8)
    values = {count: draw.integers(-9, 9, (3, count)).astype(np.float32) for count in (3, 5000, 30_000, 300_001, 600_000)}
    sums = {count: every.sum(axis=0) for count, every in values.items()}

    def body(rank: Rank) -> None:
        for step in range(40):
            for count, every in values.items():
                mine = every[rank.rank].copy()
                result = mine if step % 2 else np.empty_like(mine)
                rank.start(ALLREDUCE, f"x{count}.{step}", mine, result).result()
                assert np.array_equal(result, sums[count]), (step, count)

    with engines(3, {"tile_stores": tile_stores}, hosts) as ranks:
        in_threads(ranks, body)


# --- choice ------------------------------------------------------------------------------------------------------------


def everything(rank: Rank) -> int:
    """One of each kind; returns the bytes that messages carried."""
    me = rank.rank
    for count in (1, 300, 30_000):
        result = rank.allreduce(f"sum{count}", np.full(count, me + 1, np.float32))
        assert (result == rank.size * (rank.size + 1) / 2).all()
    assert (rank.broadcast("cast", np.full(500, me, np.int32), 1) == 1).all()
    assert len(rank.allgather("gather", np.full((me + 1, 3), me, np.int32))) == rank.size * (rank.size + 1) / 2
    rank.barrier()
    return rank.engine.counters()["data_bytes_sent"]


def test_auto_sends_no_message_on_one_host():
    assert run_ranks(3, everything) == [0, 0, 0]


def test_auto_sends_messages_between_hosts():
    with engines(2, hosts=[0, 1]) as ranks:
        assert min(in_threads(ranks, everything)) > 0


def test_a_forced_algorithm_is_taken_on_one_host_too():
    forced = {"allreduce_algorithm": "ring"}
    assert min(run_ranks(2, everything, forced)) > 0


def test_forced_between_hosts_it_is_refused():
    def body(rank: Rank) -> type:
        message = "HVDLITE_ALLREDUCE_ALGORITHM=shm cannot serve process set 0"
        with pytest.raises((UnsupportedError, PeerLostError), match=message) as raised:
            rank.allreduce("x", np.ones(3, np.float32))
        assert "several hosts" in str(raised.value)
        assert "set HVDLITE_ALLREDUCE_ALGORITHM to auto" in str(raised.value)
        return raised.type

    with engines(2, {"allreduce_algorithm": "shm", "failure_linger": 0.2}, hosts=[0, 1]) as ranks:
        assert UnsupportedError in in_threads(ranks, body)  # one of them may learn of it from the other
