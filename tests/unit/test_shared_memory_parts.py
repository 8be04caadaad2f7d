"""What the shm algorithms make of scattered buffers: parts anywhere, without input or output, side by side, fused."""

import random

import numpy as np
import pytest
from support.cases import Op, Reduction, assert_same_bits, contribution, expected, random_contribution
from support.seeds import seeds
from support.simulation import ALLREDUCE, REAL_TILE, TILES, Buffer, allreduce, divisor_of, error_classes, run  # noqa: F401
from support.thread_ranks import Rank, run_ranks

from hvdlite.dtypes import DType

FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)


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
    lists = ([5], [1, 1, 1], [0, 3, 0, 0, 500, 1, 0], [700, 13, 1, 64, 64, 2000, 31], [2] * 100)
    reductions = (
        FLOAT_SUM,
        Reduction(DType.FLOAT16, Op.AVERAGE),
        Reduction(DType.BFLOAT16, Op.SUM),
        Reduction(DType.INT64, Op.MAX),
    )
    for number, counts in enumerate(lists):
        for place, reduction in enumerate(reductions):
            in_place = bool((number + place + ranks) % 2)
            scattered(counts, reduction, ranks, in_place=in_place, tile_bytes=tile_bytes, seed=number)


@pytest.mark.parametrize("prescale", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_parts_without_input_or_output(ranks, prescale):
    """Of a rank that has joined all are missing, of others some; a prescale that harms the identity takes the detour."""
    counts = [3, 90, 1, 0, 260, 17]
    for seed in seeds(range(6)):
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


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_small_parts(count):
    scattered([32] * count, FLOAT_SUM, 2, in_place=True, tile_bytes=REAL_TILE)


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
                handle.result()
            for n in range(30):
                contributors = [r for r in range(rank.size) if not (n % 7 == 0 and r == 1)]
                assert (outputs[n] == sum((r + 1) * (n + 1) + step for r in contributors)).all(), f"tensor {n}"

    run_ranks(3, body)
