"""Coded allreduces over simulated ranks, flat and between the hosts of the hierarchical one: bit for bit as numpy has them."""

import numpy as np
import pytest
from support.cases import Op, assert_same_bits
from support.codecs import FP8, INT4, INT8, KINDS, reduced
from support.seeds import seeds
from support.simulation import ALLREDUCE, Buffer, error_classes, simulate  # noqa: F401
from support.testing import native

from hvdlite.dtypes import DType, numpy_dtype

SIZES = (3, 0, 170, 1, 64, 1500, 128, 700)  # of the parts; blocks have 64 elements
HOSTS = {"2x2": [0, 0, 1, 1], "2+1": [0, 1, 0], "3x2-dealt": [0, 1, 2, 2, 1, 0]}


def contributions(ranks: int, dtype: DType, sizes=SIZES) -> list[list[np.ndarray]]:
    """By part and rank."""
    draw = np.random.default_rng(ranks)
    arrays = [[draw.standard_normal(size) * (1 + rank) for rank in range(ranks)] for size in sizes]
    return [[array.astype(numpy_dtype(dtype)) for array in part] for part in arrays]


def run(algorithm: str, inputs: list[list], dtype: DType, kind: int, in_place=False, dropped=(), block=64, **knobs):
    """The outputs by part and rank, checked to be the same on all ranks. A null input is None; dropped: (rank, part) pairs."""
    ranks, parts = len(inputs[0]), len(inputs)
    sizes = [max(array.size for array in part if array is not None) for part in inputs]
    outputs = [[Buffer.of(size, dtype, offset=dtype.itemsize * rank) for rank in range(ranks)] for size in sizes]
    given, taken = [], []
    for rank in range(ranks):
        for part in range(parts):
            array, output = inputs[part][rank], outputs[part][rank]
            taken.append(0 if (rank, part) in dropped else output.address)
            if in_place and array is not None and (rank, part) not in dropped:
                output.array[:] = array
                given.append(output.address)
            else:
                given.append(0 if array is None else array.ctypes.data)
    step = {name: knobs.pop(name) for name in ("op", "prescale", "postscale", "divisor") if name in knobs}
    step = native.SimulatedStep(
        ALLREDUCE, algorithm, given, taken, sizes, dtype=dtype, parts=parts, codec=kind, block=block, **step
    )
    simulate(ranks, [step], **knobs)
    for part in range(parts):
        for output in outputs[part]:
            output.check_guards()
        assert_same_bits([outputs[part][rank].array for rank in range(ranks) if (rank, part) not in dropped])
    return [[output.array for output in part] for part in outputs]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_send_each_other_codes(kind, ranks):
    for number, dtype in enumerate((DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)):
        inputs = contributions(ranks, dtype)
        for seed, segment in enumerate((64, 600, 4096)):
            knobs = {"op": Op.AVERAGE, "divisor": ranks, "prescale": 0.5, "postscale": 4.0} if number != 1 else {}
            results = run("coded", inputs, dtype, kind, seed % 2 == 1, seed=seed, segment_bytes=segment, **knobs)
            knobs.pop("op", None)
            for part, given in zip(results, inputs, strict=True):
                if part[0].size:
                    assert part[0].tobytes() == reduced(given, kind, **knobs).tobytes(), f"{dtype} {segment}"


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_only_what_crosses_hosts_is_coded(hosts):
    ranks = len(hosts)
    for number, (kind, dtype) in enumerate(((INT8, DType.FLOAT32), (INT4, DType.BFLOAT16), (FP8, DType.FLOAT16))):
        inputs = contributions(ranks, dtype)
        for seed, segment in enumerate((64, 2000)):
            knobs = {"hosts": hosts, "seed": 7 * number + seed, "segment_bytes": segment}
            results = run("hierarchical", inputs, dtype, kind, seed == 1, op=Op.AVERAGE, divisor=ranks, **knobs)
            for part, given in zip(results, inputs, strict=True):
                if part[0].size:
                    assert part[0].tobytes() == reduced(given, kind, hosts, divisor=ranks).tobytes()


@pytest.mark.parametrize("algorithm", ["coded", "hierarchical"])
def test_absent_ranks_and_results_that_nobody_wants(algorithm):
    inputs = contributions(4, DType.FLOAT32)
    given = [[None if rank == 1 else array for rank, array in enumerate(part)] for part in inputs]
    dropped = {(1, part) for part in range(len(SIZES))} | {(2, 2)}
    hosts = HOSTS["2x2"]
    results = run(algorithm, given, DType.FLOAT32, INT8, dropped=dropped, hosts=hosts)
    for part, values in zip(results, given, strict=True):
        if part[0].size:
            wanted = reduced(values, INT8, hosts if algorithm == "hierarchical" else None)
            np.testing.assert_array_equal(part[0], wanted)
    assert np.all(results[2][2].view(np.uint8) == 0xA5), "a result that nobody wanted was written"


@pytest.mark.parametrize("algorithm", ["coded", "hierarchical"])
def test_a_tensor_has_the_same_bits_beside_any_others(algorithm):
    """Blocks end with tensors, and owners code their own values, too: place, owner and neighbours do not matter."""
    hosts = HOSTS["3x2-dealt"]
    inputs = contributions(6, DType.FLOAT32)
    whole = run(algorithm, inputs, DType.FLOAT32, INT8, hosts=hosts, segment_bytes=300)
    for place, size in enumerate(SIZES):
        if size:
            alone = run(algorithm, [inputs[place]], DType.FLOAT32, INT8, hosts=hosts, segment_bytes=64)
            assert_same_bits([alone[0][0], whole[place][0]])


@pytest.mark.parametrize("algorithm", ["coded", "hierarchical"])
@pytest.mark.parametrize("poison", [np.inf, np.nan], ids=str)
def test_a_value_that_is_not_finite_makes_its_block_nan_on_all_ranks(algorithm, poison):
    inputs = contributions(4, DType.FLOAT32, [500])
    inputs[0][3][130] = poison
    result = run(algorithm, inputs, DType.FLOAT32, INT4, hosts=HOSTS["2x2"])[0][0]
    assert np.isnan(result).tolist() == [128 <= place < 192 for place in range(500)]


@pytest.mark.parametrize("seed", seeds(range(4)))
def test_several_operations_at_a_time(seed):
    """With codecs and without, flat and by hosts: messages and turns must not mix."""
    hosts, counts = HOSTS["2x2"], [400, 1, 1500, 90]
    inputs = [contributions(4, DType.FLOAT32, [count])[0] for count in counts]
    outputs = [[Buffer.of(count, DType.FLOAT32) for _ in range(4)] for count in counts]
    how = [("hierarchical", INT8), ("coded", INT4), ("hierarchical", 0), ("hierarchical", FP8)]
    steps = [
        native.SimulatedStep(
            ALLREDUCE,
            algorithm,
            [array.ctypes.data for array in given],
            [output.address for output in taken],
            [count],
            codec=kind,
            block=64 if kind else 0,
        )
        for (algorithm, kind), count, given, taken in zip(how, counts, inputs, outputs, strict=True)
    ]
    simulate(4, steps, hosts=hosts, seed=seed)
    for (algorithm, kind), given, taken in zip(how, inputs, outputs, strict=True):
        assert_same_bits([output.array for output in taken])
        if kind:
            wanted = reduced(given, kind, hosts if algorithm == "hierarchical" else None)
            assert_same_bits([taken[0].array, wanted])
