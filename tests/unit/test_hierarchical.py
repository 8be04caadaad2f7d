"""allreduce_hierarchical over simulated ranks: layouts of hosts, buffers in parts, several operations at a time.

tests/unit/test_collectives.py runs it like all algorithms, too.
"""

import itertools

import numpy as np
import pytest
from support.cases import REDUCTIONS, Op, Reduction, assert_same_bits, contribution, expected, random_contribution
from support.seeds import seeds
from support.simulation import ALLREDUCE, SEGMENT_BYTES, Buffer, allreduce, divisor_of, error_classes, simulate  # noqa: F401
from support.testing import native
from support.thread_ranks import SUM, engines, in_threads

from hvdlite.dtypes import DType

FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)
LAYOUTS = {
    "2x2": [0, 0, 1, 1],
    "2x2-dealt": [0, 1, 0, 1],
    "3+1": [0, 0, 0, 1],
    "1+3": [0, 1, 1, 1],
    "2+1+1": [0, 0, 1, 2],
    "3x2": [0, 0, 1, 1, 2, 2],
    "3x2-dealt": [0, 1, 2, 2, 1, 0],
    "2x3": [0, 0, 0, 1, 1, 1],
    "4x2": [0, 0, 1, 1, 2, 2, 3, 3],
    "5+2+3": [0, 0, 1, 0, 2, 2, 0, 1, 2, 0],
    "9x2": [rank // 2 for rank in range(18)],  # so many that the exchange is a ring
}
each_layout = pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS)


def contributions(ranks: int, count: int, reduction: Reduction, salt: int = 0) -> list[np.ndarray]:
    return [contribution(rank, count, reduction.dtype, reduction.op, salt) for rank in range(ranks)]


@each_layout
@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "deterministic"])
def test_every_layout_of_hosts(hosts, deterministic):
    ranks = len(hosts)
    for number, reduction in enumerate(REDUCTIONS):
        for count in (1, ranks + 1, 61, 700 + number)[number // 2 % 2 :: 2]:
            inputs = contributions(ranks, count, reduction)
            knobs = {"hosts": hosts, "deterministic": deterministic, "seed": number}
            results = allreduce("hierarchical", inputs, reduction, in_place=bool(number % 2), **knobs)
            expected(inputs, reduction).check(results[0], f"{reduction} of {count}")


@each_layout
def test_windows_with_tiles_of_any_size(hosts):
    """Tiles of less than a cache line, and so large that a slice is one piece."""
    for tile_bytes, segment_bytes, count in itertools.product((64, 192, 4096), (64, 1024), (900, 3001)):
        inputs = contributions(len(hosts), count, FLOAT_SUM)
        sizes = {"tile_bytes": tile_bytes, "segment_bytes": segment_bytes}
        results = allreduce("hierarchical", inputs, FLOAT_SUM, hosts=hosts, **sizes)
        expected(inputs, FLOAT_SUM).check(results[0], str(sizes))


@each_layout
def test_absent_ranks(hosts):
    for seed, absent in enumerate((0, len(hosts) - 1)):
        inputs = contributions(len(hosts), 500, FLOAT_SUM)
        present = [array for rank, array in enumerate(inputs) if rank != absent]
        given = [array if rank != absent else None for rank, array in enumerate(inputs)]
        results = allreduce("hierarchical", given, FLOAT_SUM, hosts=hosts, seed=seed)
        expected(present, FLOAT_SUM).check(results[0], f"without rank {absent}")


@each_layout
def test_a_prescale_of_a_minimum_and_both_factors_of_an_average(hosts):
    for reduction in (Reduction(DType.FLOAT16, Op.MIN), Reduction(DType.BFLOAT16, Op.AVERAGE), Reduction(DType.INT32, Op.SUM)):
        inputs = contributions(len(hosts), 300, reduction)
        factors = {"prescale": -2.0 if reduction.op is Op.MIN else 0.5, "postscale": 4.0}
        results = allreduce("hierarchical", inputs, reduction, hosts=hosts, **factors)
        expected(inputs, reduction, **factors).check(results[0], str(reduction))


@pytest.mark.parametrize("hosts", [LAYOUTS["2x2"], LAYOUTS["3x2-dealt"], LAYOUTS["5+2+3"]], ids=["2x2", "3x2", "5+2+3"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_buffers_in_parts_some_without_a_result(hosts, dtype):
    reduction = Reduction(dtype, Op.AVERAGE)
    sizes = [3, 0, 170, 1, 64, 500, 16]
    ranks, parts = len(hosts), len(sizes)
    inputs = [contributions(ranks, size, reduction, salt) for salt, size in enumerate(sizes)]
    outputs = [[Buffer.of(size, dtype, offset=2 * rank * dtype.itemsize) for rank in range(ranks)] for size in sizes]
    # Rank 1 has joined; rank 2 wants no result of part 2.
    drops = {(1, part) for part in range(parts)} | {(2, 2)}
    step = native.SimulatedStep(
        ALLREDUCE,
        "hierarchical",
        [0 if rank == 1 else inputs[part][rank].ctypes.data for rank in range(ranks) for part in range(parts)],
        [0 if (rank, part) in drops else outputs[part][rank].address for rank in range(ranks) for part in range(parts)],
        sizes,
        dtype=dtype,
        op=reduction.op,
        divisor=divisor_of(reduction, ranks),
        parts=parts,
    )
    simulate(ranks, [step], hosts=hosts)
    for part, size in enumerate(sizes):
        if size == 0:
            continue
        present = [array for rank, array in enumerate(inputs[part]) if rank != 1]
        got = [outputs[part][rank] for rank in range(ranks) if (rank, part) not in drops]
        wide = [array.astype(np.float64) for array in present]
        np.testing.assert_allclose(got[0].array.astype(np.float64), sum(wide) / ranks, rtol=2**-7)
        assert_same_bits([output.array for output in got])
        for output in got:
            output.check_guards()
    assert np.all(outputs[2][2].array.view(np.uint8) == 0xA5), "a result that nobody wanted was written"


@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.parametrize("hosts", [LAYOUTS["2x2"], LAYOUTS["2+1+1"]], ids=["2x2", "2+1+1"])
def test_several_operations_at_a_time(hosts, seed):
    """The reduce of the next overlaps the publish of the last; messages and turns must not mix."""
    ranks, counts = len(hosts), [400, 1, 90, 1500, 17, 700]
    inputs = [contributions(ranks, count, FLOAT_SUM, salt) for salt, count in enumerate(counts)]
    outputs = [[Buffer.of(count, DType.FLOAT32) for _ in range(ranks)] for count in counts]
    steps = [
        native.SimulatedStep(
            ALLREDUCE,
            "hierarchical",
            [array.ctypes.data for array in given],
            [output.address for output in taken],
            [count],
        )
        for count, given, taken in zip(counts, inputs, outputs, strict=True)
    ]
    simulate(ranks, steps, hosts=hosts, seed=seed)
    for given, taken in zip(inputs, outputs, strict=True):
        expected(given, FLOAT_SUM).check(taken[0].array)
        assert_same_bits([output.array for output in taken])


@pytest.mark.parametrize("hosts", [[0, 0, 1], LAYOUTS["2x2"], LAYOUTS["3+1"]], ids=["2+1", "2x2", "3+1"])
def test_results_may_overtake_a_member_that_owns_nothing(hosts):
    """Preempted between its two stages, it finds its host reduced and published, and has to end both."""
    inputs = contributions(len(hosts), 2, FLOAT_SUM)
    for seed in seeds(range(500)):
        result = allreduce("hierarchical", inputs, FLOAT_SUM, hosts=hosts, seed=seed)[0]
        expected(inputs, FLOAT_SUM).check(result)


@pytest.mark.parametrize(
    ("hosts", "deterministic"),
    [(LAYOUTS["2x2-dealt"], False), (LAYOUTS["3+1"], False), (LAYOUTS["3x2"], True), (LAYOUTS["9x2"], True)],
    ids=["2x2", "3+1", "3x2-deterministic", "9x2-deterministic"],
)
def test_bits_do_not_depend_on_the_layout_of_the_buffer(hosts, deterministic):
    ranks, count = len(hosts), 53
    knobs = {"hosts": hosts, "deterministic": deterministic}
    values = [random_contribution(rank, count, DType.FLOAT32, 11) for rank in range(ranks)]
    alone = allreduce("hierarchical", values, FLOAT_SUM, **knobs)[0]
    for length, place, segment in ((60, 3, 64), (500, 447, 4096), (4001, 1777, 256), (4001, 2222, SEGMENT_BYTES)):
        inputs = [random_contribution(rank, length, DType.FLOAT32, 12) for rank in range(ranks)]
        for whole, value in zip(inputs, values, strict=True):
            whole[place : place + count] = value
        fused = allreduce("hierarchical", inputs, FLOAT_SUM, segment_bytes=segment, **knobs)[0][place : place + count]
        assert_same_bits([alone, fused], f"at {place} of {length} elements")


def test_hosts_add_up_first_and_16_bit_sums_are_rounded_once():
    """256 + 1/2 on one host and -256 on the other: rounded to bfloat16, the first host's sum would have lost the half."""
    reduction = Reduction(DType.BFLOAT16, Op.SUM)
    values = {0: 256.0, 1: 0.5, 2: -256.0, 3: 0.25}
    template = contribution(0, 200, DType.BFLOAT16, Op.SUM)
    inputs = [np.full_like(template, values[rank]) for rank in range(4)]
    for deterministic in (False, True):
        result = allreduce("hierarchical", inputs, reduction, hosts=LAYOUTS["2x2"], deterministic=deterministic)[0]
        assert set(result.astype(np.float64)) == {0.75}


def test_engines_on_several_hosts_use_it_where_the_set_spans_hosts():
    """Sets on one host, on several, alone on each; more of them than the windows have regions; and sets that come and go."""
    hosts = [0, 0, 1, 1, 1, 2]
    sets = [[0, 1], [2, 3, 4], [0, 2], [0, 1, 2], [1, 3, 4, 5], [0, 5], [2, 4], [0, 1, 2, 3], [1, 2, 3], [3, 4, 5]]

    def body(rank):
        for turn in range(3):
            ids = [0] + [rank.add_process_set(members) for members in sets]
            handles = []
            for place, (process_set, members) in enumerate(zip(ids, [list(range(6)), *sets], strict=True)):
                if rank.rank not in members:
                    continue
                for count in (1, 700, 90_000):
                    value = (np.arange(count) % 50 + rank.rank + place).astype(np.float32)
                    output = np.empty_like(value)
                    handle = rank.start(ALLREDUCE, f"{turn}.{count}", value, output, op=SUM, process_set=process_set)
                    wanted = len(members) * (np.arange(count) % 50 + place) + sum(members)
                    handles.append((handle, output, wanted.astype(np.float32)))
            for handle, output, wanted in handles:
                handle.result()
                np.testing.assert_array_equal(output, wanted)
            for process_set in ids[1:]:
                rank.remove_process_set(process_set)
        return rank.engine.counters()["data_bytes_sent"]

    with engines(6, hosts=hosts) as ranks:
        sent = in_threads(ranks, body)
    assert all(count > 0 for count in sent[:3] + sent[5:]), "they own slices of sets on several hosts"


def test_joined_ranks_of_a_host_contribute_nothing():
    def body(rank):
        if rank.rank == 3:
            return rank.join()
        value = np.full(5000, rank.rank + 1.0, np.float32)
        outputs = [rank.allreduce(name, value, op=SUM) for name in ("a", "b")]
        assert all((output == 6.0).all() for output in outputs)
        return rank.join()

    with engines(4, hosts=[0, 0, 1, 1]) as ranks:
        assert len(set(in_threads(ranks, body))) == 1
