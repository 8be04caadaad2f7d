"""Adasum: the algorithm over simulated ranks against a model in NumPy, and engines that fuse, join and refuse."""

import ml_dtypes
import numpy as np
import pytest
from support.cases import assert_same_bits, contribution, random_contribution
from support.simulation import ALLREDUCE, Buffer, run
from support.thread_ranks import ABSENT, engines, in_threads, run_ranks

from hvdlite.dtypes import DType, numpy_dtype
from hvdlite.errors import UnsupportedError

ADASUM = 2
FLOATS = [dtype for dtype in DType if dtype.is_float]
RANKS = (1, 2, 4, 8)
# Of one rounding of the partials at each distance, and one of the result.
ROUNDING = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24, DType.FLOAT64: 2.0**-53}


def adasum(tensors: list[np.ndarray]) -> np.ndarray:
    """The model, in extended precision."""
    wide = [np.asarray(tensor).astype(np.longdouble) for tensor in tensors]
    while len(wide) > 1:
        wide = [pair(*wide[place : place + 2]) for place in range(0, len(wide), 2)]
    return wide[0]


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, of_a, of_b = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    return (1 - dot / of_a / 2 if of_a else 1) * a + (1 - dot / of_b / 2 if of_b else 1) * b


def values(ranks: int, count: int, dtype: DType, seed: int) -> list[np.ndarray]:
    """Tensors that have something in common."""
    common = random_contribution(99, count, dtype, seed).astype(np.float64)
    return [(common + random_contribution(rank, count, dtype, seed)).astype(numpy_dtype(dtype)) for rank in range(ranks)]


def check(actual: np.ndarray, wanted: np.ndarray, dtype: DType, what: str) -> None:
    partial = ROUNDING[DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32]
    scale = float(np.abs(wanted).max(initial=0))
    tolerance = ROUNDING[dtype] * np.abs(wanted) + 32 * partial * scale + float(ml_dtypes.finfo(actual.dtype).tiny)
    error = np.abs(actual.astype(np.longdouble) - wanted) - tolerance
    assert np.all(error <= 0), f"{what}: {actual[np.argmax(error)]} instead of {wanted[np.argmax(error)]}"


def simulated(parts: list[list[np.ndarray | None]], counts: list[int], dtype: DType, **knobs) -> list[list[np.ndarray]]:
    """parts[rank][part]: the results in the same places; all ranks have the same bits."""
    ranks = len(parts)
    outputs = [[Buffer.of(count, dtype) for count in counts] for _ in range(ranks)]
    addresses = [0 if array is None else array.ctypes.data for arrays in parts for array in arrays]
    places = [buffer.address for buffers in outputs for buffer in buffers]
    run(ALLREDUCE, "adasum", addresses, places, counts, dtype=dtype, op=ADASUM, parts=len(counts), divisor=1, **knobs)
    for buffers in outputs:
        for buffer in buffers:
            buffer.check_guards()
    for part in range(len(counts)):
        assert_same_bits([buffers[part].array for buffers in outputs], f"part {part}")
    return [[buffer.array for buffer in buffers] for buffers in outputs]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("ranks", RANKS)
def test_against_the_model(ranks, dtype):
    for seed, count in enumerate((1, 2, 7, 8, 9, 64, 1031)):
        inputs = values(ranks, count, dtype, seed)
        copies = [array.copy() for array in inputs]
        found = simulated([[array] for array in inputs], [count], dtype, seed=seed)[0][0]
        check(found, adasum(inputs), dtype, f"{dtype.label} of {ranks} ranks, {count} elements")
        assert all(np.array_equal(array, copy) for array, copy in zip(inputs, copies, strict=True)), "an input was changed"


@pytest.mark.parametrize("ranks", RANKS)
def test_each_part_has_coefficients_of_its_own(ranks):
    counts = [5, 0, 300, 1, 64]
    parts = [values(ranks, count, DType.FLOAT32, place) for place, count in enumerate(counts)]
    together = simulated([list(arrays) for arrays in zip(*parts, strict=True)], counts, DType.FLOAT32)[0]
    for place, count in enumerate(counts):
        check(together[place], adasum(parts[place]), DType.FLOAT32, f"part {place}")
        alone = simulated([[array] for array in parts[place]], [count], DType.FLOAT32)[0][0]
        assert_same_bits([alone, together[place]], "fused and alone")


def test_what_it_is_for():
    """Equal tensors give the tensor, orthogonal ones their sum."""
    same = np.array([3.0, -1.0, 2.0])
    assert simulated([[same.copy()] for _ in range(4)], [3], DType.FLOAT64)[0][0].tolist() == same.tolist()
    axes = [[row.copy()] for row in np.diag([1.0, 2.0, 3.0, 4.0])]
    assert simulated(axes, [4], DType.FLOAT64)[0][0].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.label)
def test_an_absent_rank_changes_nothing(dtype):
    inputs = values(4, 33, dtype, 5)
    for absent in ({0}, {3}, {1, 2}, {0, 1, 2}):
        given = [None if rank in absent else array for rank, array in enumerate(inputs)]
        found = simulated([[array] for array in given], [33], dtype)[0][0]
        zeros = np.zeros(33, numpy_dtype(dtype))
        check(found, adasum([zeros if array is None else array for array in given]), dtype, f"without {absent}")
    for only in (inputs[2], np.full(33, -0.0, numpy_dtype(dtype))):
        alone = simulated([[None], [None], [only], [None]], [33], dtype)[0][0]
        assert_same_bits([alone, only], "the only one")


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_absent_rank_changes_nothing_that_is_not_finite(bad):
    only = random_contribution(0, 33, DType.FLOAT32, 5)
    only[4] = bad
    for rank in range(4):
        given = [[only if each == rank else None] for each in range(4)]
        assert_same_bits([simulated(given, [33], DType.FLOAT32)[0][0], only], f"of rank {rank} alone")


def test_factors():
    inputs = values(4, 100, DType.FLOAT32, 1)
    scaled = simulated([[array] for array in inputs], [100], DType.FLOAT32, prescale=0.25, postscale=-8.0)[0][0]
    check(scaled, -2 * adasum(inputs), DType.FLOAT32, "scaled")
    halves = [np.full(3, 60000, np.float16) for _ in range(2)]
    assert simulated([[array] for array in halves], [3], DType.FLOAT16)[0][0].tolist() == [60000] * 3


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_shows(bad):
    inputs = values(4, 9, DType.FLOAT32, 1)
    inputs[2][4] = bad
    found = simulated([[array] for array in inputs], [9], DType.FLOAT32)[0][0]
    assert not np.isfinite(found[4])


# --- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [None, [0, 0, 1, 1]], ids=["one host", "two hosts"])
def test_engines_fuse_and_keep_tensors_apart(hosts):
    counts = [3, 500, 1, 40]

    def body(rank):
        outputs = []
        for repeat in range(3):
            inputs = [values(4, count, DType.FLOAT32, repeat + place)[rank.rank] for place, count in enumerate(counts)]
            results = [np.empty_like(array) for array in inputs]
            places = range(len(counts))
            handles = [
                rank.start(
                    ALLREDUCE, f"a{place}", inputs[place], results[place], op=ADASUM, group="g", group_size=4, group_index=place
                )
                for place in places
            ]
            for handle in handles:
                handle.result()
            outputs.append(results)
        return outputs

    with engines(4, hosts=hosts) as ranks:
        everyone = in_threads(ranks, body)
        assert ranks[0].engine.counters()["fused_ops"] == 3, "a group is one operation"
    for repeat in range(3):
        for place, count in enumerate(counts):
            found = [outputs[repeat][place] for outputs in everyone]
            assert_same_bits(found)
            check(found[0], adasum(values(4, count, DType.FLOAT32, repeat + place)), DType.FLOAT32, f"{place}")


def test_joined_and_absent_ranks():
    inputs = values(4, 20, DType.FLOAT64, 3)

    def body(rank):
        if rank.rank == 3:
            rank.join()
            return None
        flags = ABSENT if rank.rank == 1 else 0
        out = rank.allreduce("a", inputs[rank.rank], op=ADASUM, flags=flags)
        rank.join()
        return out

    found = run_ranks(4, body)[:3]
    assert_same_bits(found)
    check(found[0], adasum([inputs[0], np.zeros(20), inputs[2], np.zeros(20)]), DType.FLOAT64, "joined and absent")


def test_what_is_refused():
    with engines(3) as ranks:
        with pytest.raises(
            NotImplementedError, match=r"'a' in process set 0: Running Adasum with non-power of 2 ranks .* has 3"
        ):
            ranks[0].allreduce("allreduce.a", np.ones(2, "f4"), op=ADASUM)
        in_threads(ranks, lambda rank: rank.add_process_set([0, 2]))
        small = in_threads([ranks[0], ranks[2]], lambda rank: rank.allreduce("b", np.ones(2, "f4"), op=ADASUM, process_set=1))
        assert small[0].tolist() == [1.0, 1.0]
    with engines(2) as ranks:
        for dtype in (dtype for dtype in DType if not dtype.is_float):
            with pytest.raises(UnsupportedError, match=rf"Adasum of {dtype.label} is not supported: cast it to float16"):
                ranks[0].allreduce("c", contribution(0, 3, dtype, 1), op=ADASUM)


def test_small_payloads_do_not_ride_with_the_announcement():
    """What rides along is folded element by element, which Adasum is not."""

    def body(rank):
        return [rank.allreduce("a", values(2, 2, DType.FLOAT32, seed)[rank.rank], op=ADASUM) for seed in range(5)]

    first, second = run_ranks(2, body)
    for seed in range(5):
        assert_same_bits([first[seed], second[seed]])
        check(first[seed], adasum(values(2, 2, DType.FLOAT32, seed)), DType.FLOAT32, "alone")
