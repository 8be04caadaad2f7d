"""Functions for parallel tests: inputs of all ranks, orders that differ between ranks, and comparisons without hvdlite."""

import random
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from support.cases import Expected, Reduction, assert_same_bits, contribution, expected
from support.patient_comm import PatientComm

from hvdlite.dtypes import DType

WORLD = PatientComm(MPI.COMM_WORLD.Dup())
REPEATS = range(3)  # in the response cache: a miss, a hit, and a hit after another operation

T = TypeVar("T")


def inputs(reduction: Reduction, shape: Sequence[int], salt: int = 0, ranks: int | None = None) -> list[np.ndarray]:
    """The contributions of all ranks, in rank order."""
    count = int(np.prod(shape, dtype=np.int64))
    n = WORLD.size if ranks is None else ranks
    return [contribution(rank, count, reduction.dtype, reduction.op, salt).reshape(shape) for rank in range(n)]


def check(actual: Any, everyone: Sequence[np.ndarray], reduction: Reduction, what: str, **factors: float) -> None:
    """Fails unless `actual` is the right reduction of these inputs and has the same bits on all ranks."""
    wanted: Expected = expected([array.ravel() for array in everyone], reduction, **factors)
    assert isinstance(actual, np.ndarray), f"{what}: a {type(actual).__name__}"
    assert actual.dtype == everyone[0].dtype, f"{what}: dtype {actual.dtype}"
    assert actual.shape == everyone[0].shape, f"{what}: shape {actual.shape}"
    wanted.check(actual.ravel(), what)
    bits = np.ascontiguousarray(actual)
    if len(set(WORLD.allgather(zlib.crc32(bits.tobytes())))) > 1:
        assert_same_bits(WORLD.allgather(bits), what)


def distinct(rank: int, shape: Sequence[int], dtype: DType | str = "float32", salt: int = 0) -> np.ndarray:
    """Values that differ between ranks and places, for operations that only move data."""
    name = dtype.label if isinstance(dtype, DType) else dtype
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 7 + rank * 31 + salt * 3) % 97
    if name == "bool":
        values = values % (2 + rank) == 0
    if name == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16).reshape(shape)
    if name.startswith("complex"):
        values = values + 1j * (values * 5 % 89)
    return values.astype(name).reshape(shape)


def shuffled(items: Sequence[T], salt: int = 0) -> list[T]:
    """The items in an order that differs between ranks."""
    copy = list(items)
    random.Random(WORLD.rank * 1000 + salt).shuffle(copy)
    return copy


def on_all_ranks(text: str) -> None:
    """Fails unless all ranks have the same text."""
    texts = WORLD.allgather(text)
    assert len(set(texts)) == 1, f"ranks have different texts: {texts}"
