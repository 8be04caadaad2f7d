"""Every algorithm over simulated ranks: state machines of one collective, stepped by one thread in a seeded order.

tests/support/simulation.py says what is checked besides the values.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from support.cases import (
    REDUCTIONS,
    Op,
    Reduction,
    assert_same_bits,
    contribution,
    counts_around,
    expected,
    random_contribution,
    random_sizes,
)
from support.seeds import seeds
from support.simulation import (  # noqa: F401
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    MIXED_ISA,
    REDUCESCATTER,
    SEGMENT_BYTES,
    TILE_BYTES,
    Buffer,
    allreduce,
    error_classes,
    reducescatter,
    run,
)
from support.testing import native

from hvdlite.dtypes import DType, numpy_dtype

FILES = {
    ALLREDUCE: "allreduce",
    ALLGATHER: "allgatherv",
    BROADCAST: "broadcast",
    ALLTOALL: "alltoallv",
    REDUCESCATTER: "reducescatter",
    BARRIER: "barrier",
}
# One rank more than a power of two, one less, and the powers; on the other numbers of ranks the same happens more often.
RANKS = (1, 2, 3, 7, 8, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5, 6, 9, 16, 17)))

FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)


def contributions(ranks: int, count: int, reduction: Reduction, salt: int = 0) -> list[np.ndarray]:
    return [contribution(rank, count, reduction.dtype, reduction.op, salt) for rank in range(ranks)]


def describe(reduction: Reduction, count: int, **knobs) -> str:
    return f"{reduction} count={count} " + " ".join(f"{name}={value}" for name, value in knobs.items())


PUSH = "push"  # chosen by where a tensor lies, so that no knob names it
ALLREDUCES = (*native.algorithms(ALLREDUCE), PUSH)
each_allreduce = pytest.mark.parametrize("algorithm", ALLREDUCES)
each_reducescatter = pytest.mark.parametrize("algorithm", native.algorithms(REDUCESCATTER))
each_broadcast = pytest.mark.parametrize("algorithm", native.algorithms(BROADCAST))
each_ranks = pytest.mark.parametrize("ranks", RANKS)


# --- allreduce ---------------------------------------------------------------------------------------------------------


@each_allreduce
@each_ranks
def test_allreduce_of_every_dtype_and_op(algorithm, ranks):
    for number, reduction in enumerate(REDUCTIONS):
        counts = counts_around(ranks, SEGMENT_BYTES // reduction.dtype.itemsize)
        count = (counts[(ranks + number) // 2 % len(counts)], 5 * ranks + 13)[(ranks + number) % 2]
        in_place = bool((ranks // 2 + number // 2) % 2)
        inputs = contributions(ranks, count, reduction, salt=number)
        results = allreduce(algorithm, inputs, reduction, in_place, seed=number)
        expected(inputs, reduction).check(results[0], describe(reduction, count, in_place=in_place))


@each_allreduce
@each_ranks
def test_allreduce_of_every_count(algorithm, ranks):
    for reduction in (FLOAT_SUM, Reduction(DType.BFLOAT16, Op.AVERAGE), Reduction(DType.INT8, Op.MAX)):
        for count in counts_around(ranks, SEGMENT_BYTES // reduction.dtype.itemsize):
            inputs = contributions(ranks, count, reduction)
            right = expected(inputs, reduction)
            for in_place, seed in ((False, 1), (True, 2)):
                results = allreduce(algorithm, inputs, reduction, in_place, seed=seed)
                right.check(results[0], describe(reduction, count, in_place=in_place, seed=seed))


@each_allreduce
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4, 7))])
def test_allreduce_of_large_buffers(algorithm, ranks):
    """Segments of a realistic size, several rounds of them, a buffer that starts at an odd element."""
    count = 40_000 * ranks + 17
    for reduction in (FLOAT_SUM, Reduction(DType.FLOAT16, Op.AVERAGE), Reduction(DType.INT32, Op.AVERAGE)):
        inputs = contributions(ranks, count + 1, reduction)
        inputs = [array[1:] for array in inputs]
        for in_place in (False, True):
            results = allreduce(algorithm, inputs, reduction, in_place, segment_bytes=16384)
            expected(inputs, reduction).check(results[0], describe(reduction, count, in_place=in_place))


@each_allreduce
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 17])
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float], ids=lambda dtype: dtype.label)
def test_allreduce_of_random_floats_is_within_the_bound(algorithm, ranks, dtype):
    for op, seed in ((Op.SUM, 0), (Op.AVERAGE, 1), (Op.SUM, 3), (Op.AVERAGE, 2)):
        reduction = Reduction(dtype, op)
        inputs = [random_contribution(rank, 1031, dtype, seed) for rank in range(ranks)]
        results = allreduce(algorithm, inputs, reduction, in_place=bool(seed % 2), seed=seed)
        expected(inputs, reduction).check(results[0], describe(reduction, 1031, seed=seed))


@each_allreduce
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_the_schedule_does_not_change_the_bits(algorithm, ranks):
    inputs = [random_contribution(rank, 997, DType.FLOAT32, 3) for rank in range(ranks)]
    results = [allreduce(algorithm, inputs, FLOAT_SUM, in_place=bool(seed % 2), seed=seed)[0] for seed in range(20)]
    assert_same_bits(results, "the same allreduce in another order of events")


@each_allreduce
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_instruction_sets_do_not_change_the_bits(algorithm, ranks):
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64):
        inputs = [random_contribution(rank, 997, dtype, 4) for rank in range(ranks)]
        sets = [isa for isa in range(3) if native.isa_supported(isa)]
        reduction = Reduction(dtype, Op.AVERAGE)
        results = [allreduce(algorithm, inputs, reduction, isa=isa)[0] for isa in [MIXED_ISA, *sets]]
        assert_same_bits(results, f"{reduction} with other instruction sets")


@each_allreduce
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_absent_ranks_contribute_the_identity(algorithm, ranks):
    for number, reduction in enumerate(REDUCTIONS):
        absent = ({0}, {ranks - 1}, set(range(1, ranks)))[number % 3]
        inputs = contributions(ranks, 67, reduction)
        given = [None if rank in absent else inputs[rank] for rank in range(ranks)]
        results = allreduce(algorithm, given, reduction, in_place=bool(number % 2), divisor=1)
        right = expected(given, reduction, divisor=1)
        right.check(results[0], f"{reduction} without ranks {absent}")


@each_allreduce
@pytest.mark.parametrize("prescale", [0.5, -2.0], ids=lambda value: f"prescale{value}")
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_absent_ranks_and_a_prescale(algorithm, ranks, prescale):
    """The identity is not scaled: it is what is absent, not a value."""
    for dtype, op in itertools.product((DType.FLOAT32, DType.BFLOAT16, DType.INT32, DType.BOOL), Op):
        reduction = Reduction(dtype, op)
        if reduction not in REDUCTIONS:
            continue
        if algorithm == PUSH and (prescale < 0 or op not in (Op.SUM, Op.AVERAGE)):
            continue  # does not get into an arena
        inputs = contributions(ranks, 67, reduction)
        for absent in (None, 0, ranks - 1):
            if ranks == 1 and absent is not None:
                continue
            given = [None if rank == absent else inputs[rank] for rank in range(ranks)]
            results = allreduce(algorithm, given, reduction, in_place=absent == 0, prescale=prescale, divisor=1)
            right = expected(given, reduction, prescale=prescale, divisor=1)
            right.check(results[0], f"{reduction} without rank {absent}")


@each_allreduce
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_ranks_absent_gives_the_identity(algorithm, ranks):
    output = [Buffer.of(33, DType.FLOAT32) for _ in range(ranks)]
    for op, identity in ((Op.SUM, 0.0), (Op.PRODUCT, 1.0), (Op.MIN, np.inf), (Op.MAX, -np.inf)):
        run(ALLREDUCE, algorithm, [0] * ranks, [buffer.address for buffer in output], [33], dtype=DType.FLOAT32, op=op)
        for buffer in output:
            buffer.check_guards()
            assert np.all(buffer.array == identity), f"{op.name} of nothing"


@each_allreduce
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_factors(algorithm, ranks):
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64):
        for prescale, postscale in ((0.5, 1.0), (1.0, 4.0), (2.0, 0.25)):
            reduction = Reduction(dtype, Op.AVERAGE)
            inputs = contributions(ranks, 131, reduction)
            results = allreduce(algorithm, inputs, reduction, in_place=True, prescale=prescale, postscale=postscale)
            right = expected(inputs, reduction, prescale, postscale)
            right.check(results[0], describe(reduction, 131, prescale=prescale, postscale=postscale))


@each_allreduce
@pytest.mark.parametrize("isa", [isa for isa in range(3) if native.isa_supported(isa)])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_nan_and_infinity_have_the_same_bits_everywhere(algorithm, ranks, isa):
    """A NaN carries bits of its own, and the order of operands decides which survive."""
    for dtype, op in itertools.product((DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16), Op):
        inputs = []
        for rank in range(ranks):
            values = contribution(rank, 133, dtype, op)
            values[rank % 3 :: 5] = [np.inf, -np.inf][rank % 2]
            bits = values.view(f"uint{8 * dtype.itemsize}")
            quiet_nan = int(np.array(np.nan, dtype=values.dtype).view(bits.dtype)[()])
            bits[rank % 2 :: 3] = quiet_nan + rank + 1
            inputs.append(values)
        result = allreduce(algorithm, inputs, Reduction(dtype, op), in_place=bool(ranks % 2), isa=isa)[0]
        assert np.all(np.isnan(result) | (np.isnan(inputs).sum(axis=0) == 0)), "a NaN was lost"


@pytest.mark.parametrize(
    "algorithm", [each if each == "ring" else pytest.param(each, marks=pytest.mark.slow) for each in ALLREDUCES]
)
def test_258_bfloat16_ones_sum_to_258(algorithm):
    """Rounded to bfloat16 at every hop they would sum to 256."""
    reduction = Reduction(DType.BFLOAT16, Op.SUM)
    ones = [np.ones(3, dtype=numpy_dtype(DType.BFLOAT16)) for _ in range(258)]
    assert np.all(allreduce(algorithm, ones, reduction)[0].astype(np.float64) == 258.0)


@each_allreduce
def test_the_average_of_large_float16_does_not_overflow(algorithm):
    reduction = Reduction(DType.FLOAT16, Op.AVERAGE)
    large = [np.full(70, 60000, dtype=np.float16) for _ in range(4)]
    assert np.all(allreduce(algorithm, large, reduction)[0] == np.float16(60000))


@each_allreduce
@pytest.mark.parametrize("dtype", [d for d in DType if d <= DType.INT64], ids=lambda d: d.label)
def test_the_average_of_49_ones_is_1(algorithm, dtype):
    ones = [np.ones(5, dtype=numpy_dtype(dtype)) for _ in range(49)]
    assert np.all(allreduce(algorithm, ones, Reduction(dtype, Op.AVERAGE))[0] == 1)


@each_allreduce
def test_the_average_of_large_int8_does_not_overflow(algorithm):
    inputs = [np.full(9, value, dtype=np.int8) for value in (127, 127, -128, 127, 126)]
    reduction = Reduction(DType.INT8, Op.AVERAGE)
    expected(inputs, reduction).check(allreduce(algorithm, inputs, reduction)[0])


@pytest.mark.parametrize("algorithm", ["direct", "recursive_doubling", "shm", "inline", PUSH])
@pytest.mark.parametrize("ranks", [3, 4, 6, 8])
def test_bits_do_not_depend_on_the_layout(algorithm, ranks):
    """The same values at other places of longer buffers, cut differently: fusion must not show."""
    count = 53
    values = [random_contribution(rank, count, DType.FLOAT32, 11) for rank in range(ranks)]
    alone = allreduce(algorithm, values, FLOAT_SUM)[0]
    for length, place, segment in ((60, 3, 64), (500, 0, 64), (500, 447, 4096), (4001, 1777, 256), (4001, 2222, 16384)):
        inputs = [random_contribution(rank, length, DType.FLOAT32, 12) for rank in range(ranks)]
        for whole, value in zip(inputs, values, strict=True):
            whole[place : place + count] = value
        fused = allreduce(algorithm, inputs, FLOAT_SUM, segment_bytes=segment)[0][place : place + count]
        assert_same_bits([alone, fused], f"at {place} of {length} elements")


def test_direct_adds_in_rank_order():
    ranks, count = 7, 300
    inputs = [random_contribution(rank, count, DType.FLOAT32, 5) for rank in range(ranks)]
    in_order = inputs[0].copy()
    for array in inputs[1:]:
        in_order += array
    assert_same_bits([in_order, allreduce("direct", inputs, FLOAT_SUM)[0]], "sum in rank order")
    scattered = reducescatter("direct", inputs, [43, 0, 100, 7, 50, 99, 1], FLOAT_SUM)
    assert_same_bits([in_order, scattered], "reducescatter in rank order")


# --- reducescatter -----------------------------------------------------------------------------------------------------


@each_reducescatter
@each_ranks
def test_reducescatter(algorithm, ranks):
    for number, reduction in enumerate(REDUCTIONS):
        for counts in ([number % 4] * ranks, random_sizes(ranks, number)):
            inputs = contributions(ranks, sum(counts), reduction)
            tile = max(TILE_BYTES, ranks * reduction.dtype.itemsize)  # an element for each rank at least
            result = reducescatter(algorithm, inputs, counts, reduction, seed=number, tile_bytes=tile)
            expected(inputs, reduction).check(result, f"{reduction} counts={counts}")


@each_reducescatter
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_reducescatter_with_absent_ranks_and_factors(algorithm, ranks):
    for dtype, op in itertools.product((DType.FLOAT32, DType.FLOAT16, DType.INT16), (Op.SUM, Op.MIN, Op.PRODUCT)):
        reduction = Reduction(dtype, op)
        counts = random_sizes(ranks, 8)
        inputs = contributions(ranks, sum(counts), reduction)
        given = [None if rank == 1 else inputs[rank] for rank in range(ranks)]
        for prescale, postscale in ((1.0, 2.0), (-2.0, 0.5)):
            result = reducescatter(algorithm, given, counts, reduction, prescale=prescale, postscale=postscale)
            expected(given, reduction, prescale, postscale).check(result, f"{reduction} prescale={prescale}")


# --- collectives that only move bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", native.algorithms(ALLGATHER))
@each_ranks
def test_allgather(algorithm, ranks):
    sizes = [random_sizes(ranks, seed) for seed in range(4)]
    for number, parts in enumerate(
        [*sizes, [7] * ranks, [0] * ranks, [SEGMENT_BYTES] * ranks, [3 * SEGMENT_BYTES + 1] * ranks]
    ):
        for in_place in (False, True):
            inputs = [contribution(rank, size, DType.UINT8, Op.MAX, number) for rank, size in enumerate(parts)]
            outputs = [Buffer.of(sum(parts), DType.UINT8) for _ in range(ranks)]
            addresses = [array.ctypes.data for array in inputs]
            if in_place:
                for rank, output in enumerate(outputs):
                    start = sum(parts[:rank])
                    output.array[start : start + parts[rank]] = inputs[rank]
                    addresses[rank] = output.address + start
            run(ALLGATHER, algorithm, addresses, [output.address for output in outputs], parts, seed=number)
            for rank, output in enumerate(outputs):
                output.check_guards()
                assert np.array_equal(output.array, np.concatenate(inputs)), f"rank {rank}, parts {parts}"


@each_broadcast
@each_ranks
def test_broadcast(algorithm, ranks):
    for count, root in itertools.product((0, 1, 63, 64, 65, 40 * SEGMENT_BYTES + 3), {0, ranks // 2, ranks - 1}):
        value = contribution(root, count, DType.UINT8, Op.MAX, salt=count)
        outputs = [Buffer.of(count, DType.UINT8) for _ in range(ranks)]
        outputs[root].array[:] = value
        addresses = [output.address for output in outputs]
        run(BROADCAST, algorithm, addresses, addresses, [count], root=root, seed=count)
        for rank, output in enumerate(outputs):
            output.check_guards()
            assert np.array_equal(output.array, value), f"rank {rank}, root {root}, {count} bytes"


@pytest.mark.parametrize("algorithm", native.algorithms(ALLTOALL))
@pytest.mark.parametrize("ranks", [*RANKS, 40])
def test_alltoall(algorithm, ranks):
    for seed in seeds(range(3)):
        sizes = np.array([random_sizes(ranks, 100 * seed + sender, largest=30) for sender in range(ranks)])
        inputs = [contribution(rank, int(sizes[rank].sum()), DType.UINT8, Op.MAX, seed) for rank in range(ranks)]
        outputs = [Buffer.of(int(sizes[:, rank].sum()), DType.UINT8) for rank in range(ranks)]
        addresses = [array.ctypes.data for array in inputs]
        counts = [int(size) for size in sizes.ravel()]
        run(ALLTOALL, algorithm, addresses, [output.address for output in outputs], counts, seed=seed)
        for rank, output in enumerate(outputs):
            output.check_guards()
            starts = sizes.cumsum(axis=1) - sizes
            parts = [inputs[s][starts[s, rank] : starts[s, rank] + sizes[s, rank]] for s in range(ranks)]
            assert np.array_equal(output.array, np.concatenate(parts)), f"rank {rank}, seed {seed}"


@pytest.mark.parametrize("algorithm", native.algorithms(BARRIER))
@pytest.mark.parametrize("ranks", [*RANKS, 100])
def test_barrier(algorithm, ranks):
    for seed in seeds(range(5)):
        run(BARRIER, algorithm, [0] * ranks, [0] * ranks, [0], seed=seed)


@pytest.mark.parametrize("kind", FILES, ids=FILES.values())
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_nothing_at_null_pointers(kind, ranks):
    for algorithm in native.algorithms(kind):
        run(kind, algorithm, [0] * ranks, [0] * ranks, [0] * ranks * ranks)


# --- the registry ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILES, ids=FILES.values())
def test_one_algorithm_a_file(kind):
    folder = Path(__file__).parents[2] / "csrc" / "collectives"
    prefix = FILES[kind] + "_"
    # The stream is what two algorithms share; push is taken for what lies in an arena and adasum for its op, coded
    # for a codec, never by name.
    files = {path.stem.removeprefix(prefix) for path in folder.glob(prefix + "*.cc")} - {"stream", "push", "coded", "adasum"}
    assert files == set(native.algorithms(kind))


def test_an_unknown_algorithm_lists_the_known():
    known = "ring, direct, recursive_doubling, shm, inline, push, hierarchical, coded, adasum"
    with pytest.raises(ValueError, match=f"unknown allreduce algorithm 'rign'; known: {known}"):
        run(ALLREDUCE, "rign", [0], [0], [0])


def test_the_op_adasum_is_for_its_own_algorithm():
    with pytest.raises(NotImplementedError, match="Adasum of float32"):
        run(ALLREDUCE, "ring", [0, 0], [0, 0], [4], op=2)
