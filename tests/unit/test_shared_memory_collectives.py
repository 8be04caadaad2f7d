"""What the shm algorithms do beyond what test_collectives.py asks of every algorithm: scattered buffers, a channel that many
operations use one after the other, modes by size that must not show in the bits, and when they are chosen.
"""

import random

import numpy as np
import pytest
from support.cases import Op, Reduction, assert_same_bits, contribution, expected, random_contribution, random_sizes
from support.simulation import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    HIERARCHICAL,
    REDUCESCATTER,
    Buffer,
    allreduce,
    divisor_of,
    run,
    simulate,
)
from support.thread_ranks import Rank, engines, in_threads, run_ranks

from hvdlite import _engine, config, errors
from hvdlite.dtypes import DType
from hvdlite.errors import PeerLostError, UnsupportedError

# So small that nothing but the line of a flag is small enough for fewer steps, an odd one, and one with all modes.
TILES = (256, 320, 4096)
REAL_TILE = config.from_environment({}).tile_bytes

FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)


@pytest.fixture(scope="module", autouse=True)
def error_classes():
    errors.install(_engine.set_error_classes)


# --- scattered buffers -------------------------------------------------------------------------------------------------


def scattered(
    counts: list[int],
    reduction: Reduction,
    ranks: int,
    absent: set[tuple[int, int]] = frozenset(),
    unwanted: set[tuple[int, int]] = frozenset(),
    in_place: bool = False,
    prescale: float = 1.0,
    **knobs,
) -> None:
    """One allreduce over parts of so many elements; absent, unwanted: (rank, part) without input, without output."""
    values = [
        [contribution(rank, count, reduction.dtype, reduction.op, part) for part, count in enumerate(counts)]
        for rank in range(ranks)
    ]
    inputs, outputs, buffers = [], [], {}
    for rank in range(ranks):
        for part, count in enumerate(counts):
            buffer = buffers[rank, part] = Buffer.of(count, reduction.dtype, offset=8 * (part % 3))
            given = (rank, part) not in absent
            wanted = (rank, part) not in unwanted
            outputs.append(buffer.address if wanted else 0)
            if given and wanted and in_place:
                buffer.array[:] = values[rank][part]
                inputs.append(buffer.address)
            else:
                inputs.append(values[rank][part].ctypes.data if given else 0)
    before = [[array.copy() for array in arrays] for arrays in values]
    run(
        ALLREDUCE,
        "shm",
        inputs,
        outputs,
        counts,
        dtype=reduction.dtype,
        op=reduction.op,
        prescale=prescale,
        divisor=1 if absent else divisor_of(reduction, ranks),
        parts=len(counts),
        **knobs,
    )
    for part, count in enumerate(counts):
        given = [None if (rank, part) in absent else values[rank][part] for rank in range(ranks)]
        if count == 0 or all(value is None for value in given):
            continue
        right = expected(given, reduction, prescale, divisor=1 if absent else None)
        for rank in range(ranks):
            buffers[rank, part].check_guards()
            what = f"{reduction} of {ranks} ranks, part {part} of {counts}, rank {rank}"
            if (rank, part) in unwanted:
                assert np.all(buffers[rank, part].array.view(np.uint8) == 0xA5), f"{what}: an unwanted result was written"
            else:
                right.check(buffers[rank, part].array, what)
            assert before[rank][part].tobytes() == values[rank][part].tobytes(), f"{what}: an input was changed"


@pytest.mark.parametrize("tile_bytes", TILES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_scattered_parts(ranks, tile_bytes):
    lists = ([5], [1, 1, 1], [0, 3, 0, 0, 500, 1, 0], [700, 13, 1, 64, 64, 2000, 31], [2] * 300)
    reductions = (
        FLOAT_SUM,
        Reduction(DType.FLOAT16, Op.AVERAGE),
        Reduction(DType.BFLOAT16, Op.SUM),
        Reduction(DType.INT64, Op.MAX),
    )
    for number, counts in enumerate(lists):
        for reduction in reductions:
            for in_place in (False, True):
                scattered(counts, reduction, ranks, in_place=in_place, tile_bytes=tile_bytes, seed=number)


@pytest.mark.parametrize("prescale", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_parts_without_input_or_output(ranks, prescale):
    """Of a rank that has joined all are missing, of others some; a prescale that harms the identity takes the detour."""
    counts = [3, 90, 1, 0, 260, 17]
    for seed in range(6):
        draw = random.Random(seed)
        every = [(rank, part) for rank in range(ranks) for part in range(len(counts))]
        joined = {place for place in every if place[0] == seed % ranks}
        absent = joined | set(draw.sample(every, len(every) // 4))
        unwanted = joined if seed % 2 else set(draw.sample(every, len(every) // 3))
        for dtype, op in (
            (DType.FLOAT32, Op.SUM),
            (DType.FLOAT16, Op.MIN),
            (DType.INT32, Op.PRODUCT),
            (DType.BFLOAT16, Op.MAX),
        ):
            for tile_bytes in TILES:
                scattered(
                    counts,
                    Reduction(dtype, op),
                    ranks,
                    absent,
                    unwanted,
                    in_place=bool(seed % 2),
                    prescale=prescale,
                    tile_bytes=tile_bytes,
                    seed=seed,
                )


def test_ten_thousand_small_parts():
    scattered([32] * 10_000, FLOAT_SUM, 2, in_place=True, tile_bytes=REAL_TILE)


def test_neighbours_in_memory_are_walked_as_one():
    """Parts of one array give the bits, and leave the guards, of the array as a whole."""
    ranks, counts = 3, [40, 1, 200, 7, 1000]
    inputs = [random_contribution(rank, sum(counts), DType.FLOAT32, 1) for rank in range(ranks)]
    whole = allreduce("shm", inputs, FLOAT_SUM)
    outputs = [Buffer.of(sum(counts), DType.FLOAT32) for _ in range(ranks)]
    starts = np.cumsum([0, *counts[:-1]]) * 4
    run(
        ALLREDUCE,
        "shm",
        [array.ctypes.data + int(start) for array in inputs for start in starts],
        [output.address + int(start) for output in outputs for start in starts],
        counts,
        parts=len(counts),
    )
    for output in outputs:
        output.check_guards()
    assert_same_bits([whole[0], *(output.array for output in outputs)])


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
        self.steps: list[_engine.SimulatedStep] = []
        self.checks: list = []
        self.kept: list = []
        makers = (self.allreduce, self.reducescatter, self.allgather, self.broadcast, self.alltoall, self.barrier)
        for number in range(length):
            self.draw.choice(makers)(number)

    def add(self, kind: int, inputs: list, outputs: list[Buffer], counts: list[int], **knobs) -> None:
        # Messages in between must not disturb the counts.
        others = [name for name in _engine.algorithms(kind) if name not in ("shm", HIERARCHICAL)]
        algorithms = ["shm"] * 4 + others
        self.kept += [inputs, outputs]
        addresses = [0 if array is None else array.ctypes.data for array in inputs]
        places = [buffer.address for buffer in outputs]
        self.steps.append(_engine.SimulatedStep(kind, self.draw.choice(algorithms), addresses, places, counts, **knobs))
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


@pytest.mark.parametrize("seed", range(12))
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
    for seed in range(60):
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

    def body(rank: Rank) -> None:
        for step in range(40):
            for count, every in values.items():
                mine = every[rank.rank].copy()
                result = mine if step % 2 else np.empty_like(mine)
                rank.engine.wait(rank.start(ALLREDUCE, f"x{count}.{step}", mine, result))
                assert np.array_equal(result, every.sum(axis=0)), (step, count)

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


def test_fused_tensors_go_from_and_to_where_they_lie():
    """Many tensors in one operation, some ranks without some of them."""

    def body(rank: Rank) -> None:
        for step in range(3):
            inputs = [np.full(n + 1, (rank.rank + 1) * (n + 1) + step, np.float32) for n in range(30)]
            outputs = [np.empty_like(array) for array in inputs]
            absent = [n % 7 == 0 and rank.rank == 1 for n in range(30)]
            handles = [
                rank.start(
                    0, f"t{n}", inputs[n], outputs[n], op=1, flags=int(absent[n]), group="g", group_size=30, group_index=n
                )
                for n in range(30)
            ]
            for handle in handles:
                rank.engine.wait(handle)
            for n in range(30):
                contributors = [r for r in range(rank.size) if not (n % 7 == 0 and r == 1)]
                assert (outputs[n] == sum((r + 1) * (n + 1) + step for r in contributors)).all(), f"tensor {n}"

    run_ranks(3, body)
