"""`Compression.auto` of the JAX door, compiled and not, by an injected measurement. bf16 changes bits where int8 does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from support.injected_links import SLOW_RATE, injected_link

from hvdlite.compression import Compression
from hvdlite.errors import UnsupportedError
from hvdlite.jax import grouped_allreduce
from hvdlite.runtime import RUNTIME

MORE_RANKS = ()  # more ranks send up to three quarters of the bytes with bf16, and then int8 is chosen

RANK = MPI.COMM_WORLD.rank


def mine():
    return jnp.asarray(np.random.default_rng(RANK).standard_normal(20_000).astype(np.float32))


def reduce(array, compression=Compression.auto):
    return grouped_allreduce([array], name="gradients", compression=compression)[0]


def test_the_choice_is_the_same_compiled_and_not(hvd, monkeypatch):
    """With this latency int8 saves too little beside bf16."""
    with injected_link(SLOW_RATE * max(2 - RANK, 1), latency=0.2, coding=0.0) as measured:
        eager = reduce(mine())
        count = len(measured)
        compiled = jax.jit(reduce)(mine())
        assert 0 < count == len(measured)
        monkeypatch.setattr(RUNTIME, "pool", object())
        with pytest.raises(UnsupportedError, match="the job is elastic"):
            reduce(mine())
    assert np.array_equal(eager, reduce(mine(), Compression.bf16))
    assert np.array_equal(eager, compiled)
    assert not np.array_equal(eager, reduce(mine(), Compression.none))
