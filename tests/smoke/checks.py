"""What the smoke programs have in common: data that the ranks share out, and how results are compared."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

import hvdlite

ROWS, FEATURES = 24, 8  # each rank has as many rows, so that the mean over ranks is the mean over rows


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the whole batch, the same on all ranks."""
    draw = np.random.default_rng(7)
    inputs = draw.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return inputs, (inputs @ draw.standard_normal((FEATURES, 1))).astype(np.float32)


def mine(rows: np.ndarray) -> np.ndarray:
    """This rank's part of the batch."""
    return rows[hvdlite.rank() :: hvdlite.size()]


def assert_same_bits(arrays: Iterable[np.ndarray], what: str) -> None:
    """Fails unless these arrays are the same on all ranks, compared without hvdlite."""
    bits = [np.ascontiguousarray(array).tobytes() for array in arrays]
    for rank, other in enumerate(MPI.COMM_WORLD.allgather(bits)):
        assert other == bits, f"{what}: the bits on ranks {hvdlite.rank()} and {rank} differ"


def assert_close(actual: Iterable[np.ndarray], wanted: Iterable[np.ndarray], what: str) -> None:
    """Fails unless the arrays agree within the rounding of a few steps in float32."""
    for one, other in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=what)


@contextmanager
def refused(error: type[BaseException], *words: str) -> Iterator[None]:
    """The block must raise this error, and its text must hold these words."""
    text = None
    try:
        yield
    except error as caught:
        text = str(caught)
    assert text is not None, f"no {error.__name__}"
    assert all(word in text for word in words), f"not all of {words} in {text!r}"
