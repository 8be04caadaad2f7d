"""Reducescatter: dtypes, rows that do not divide evenly, factors."""

import numpy as np
import pytest
from support.cases import REDUCTIONS, Op, Reduction, expected
from support.world import REPEATS, WORLD, inputs, shuffled

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)


def rows_of(rank, rows):
    """The rows that a rank keeps, as a slice."""
    short, longer = divmod(rows, SIZE)
    start = rank * short + min(rank, longer)
    return slice(start, start + short + (rank < longer))


def check(out, everyone, reduction, **factors):
    own = rows_of(RANK, everyone[0].shape[0])
    parts = [array[own] for array in everyone]
    assert out.shape == parts[0].shape
    assert out.dtype == parts[0].dtype
    expected([part.ravel() for part in parts], reduction, **factors).check(out.ravel(), str(reduction))


@pytest.mark.parametrize("reduction", [r for r in REDUCTIONS if r.op in (Op.SUM, Op.AVERAGE)], ids=str)
def test_every_dtype(hvd, reduction):
    for repeat in REPEATS:
        everyone = inputs(reduction, (3 * SIZE + 1, 5), repeat)
        before = everyone[RANK].copy()
        out = hvd.reducescatter(everyone[RANK], name=f"r.{reduction}", op=int(reduction.op))
        check(out, everyone, reduction)
        np.testing.assert_array_equal(everyone[RANK], before)


@pytest.mark.parametrize("rows", [0, 1, SIZE - 1, SIZE, SIZE + 1, 7 * SIZE - 1, 1031])
@pytest.mark.parametrize("rest", [(), (3, 2), (0,)], ids=str)
def test_rows_are_divided_like_horovod_does(hvd, rows, rest):
    for repeat in REPEATS:
        everyone = inputs(FLOAT_SUM, (rows, *rest), repeat)
        check(hvd.reducescatter(everyone[RANK], op=hvd.Sum), everyone, FLOAT_SUM)


def test_megabytes(hvd):
    everyone = inputs(FLOAT_SUM, (500_009,))
    for _ in REPEATS:
        check(hvd.reducescatter(everyone[RANK], name="large", op=hvd.Sum), everyone, FLOAT_SUM)


def test_named_in_any_order_and_other_layouts(hvd):
    names = [f"r{index}" for index in range(20)]
    for repeat in REPEATS:
        everyone = {name: inputs(FLOAT_SUM, (index, 2), repeat) for index, name in enumerate(names)}
        handles = {
            name: hvd.reducescatter_async(np.asfortranarray(everyone[name][RANK]), name=name, op=hvd.Sum)
            for name in shuffled(names, repeat)
        }
        for name in shuffled(names, repeat + 1):
            check(handles[name].synchronize(), everyone[name], FLOAT_SUM)


def test_results_without_rows_can_be_written_to(hvd):
    for out in (
        hvd.reducescatter(np.ones((1, 2)), op=hvd.Sum),
        *hvd.grouped_reducescatter([np.ones((1, 2))], op=hvd.Sum),
        *hvd.grouped_allgather([np.ones((0, 2))]),
        hvd.alltoall(np.ones((0, 2))),
    ):
        out *= 2
        assert out.flags.writeable


def test_factors_and_compression(hvd):
    everyone = inputs(FLOAT_SUM, (9, 2))
    out = hvd.reducescatter(everyone[RANK], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    check(out, everyone, FLOAT_SUM, prescale=0.5, postscale=3.0)
    out = hvd.reducescatter(np.ones((SIZE, 2)), compression=hvd.Compression.fp16)
    assert out.tolist() == [[1.0, 1.0]]
    assert out.dtype == np.float64


def test_wrong_arguments_are_refused(hvd):
    with pytest.raises(ValueError, match="Reducescatter does not support scalar inputs"):
        hvd.reducescatter(np.float32(1))
    with pytest.raises(NotImplementedError, match="only supports AVERAGE and SUM, not Max"):
        hvd.reducescatter(np.ones(3), op=hvd.Max)
