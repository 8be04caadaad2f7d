"""Codecs through the NumPy call: values, groups, averages of 16-bit floats, statistics, and what has no codec."""

import numpy as np
import pytest
from support.codecs import INT4, INT8, reduced
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, UnsupportedError

RANKS = (2, 3)
RANK, SIZE = WORLD.rank, WORLD.size


def values(rank, count, salt=0, dtype="float32"):
    return np.random.default_rng([rank, salt]).standard_normal(count).astype(dtype)


def test_arrays_and_groups_travel_coded(hvd):
    before = hvd.stats()
    mine = values(RANK, 3000).reshape(30, 100)
    output = hvd.allreduce(mine, compression=hvd.Compression.int8(block=64, between="ranks"))
    wanted = reduced([values(rank, 3000) for rank in range(SIZE)], INT8, divisor=SIZE)
    assert output.shape == (30, 100)
    assert output.tobytes() == wanted.tobytes()
    outputs = hvd.grouped_allreduce(
        [values(RANK, 10, 1, "float16"), values(RANK, 70, 2, "float16")],
        op=hvd.Sum,
        compression=hvd.Compression.int4(64, "ranks"),
    )
    for salt, output in enumerate(outputs, 1):
        everyone = [values(rank, output.size, salt, "float16") for rank in range(SIZE)]
        assert output.tobytes() == reduced(everyone, INT4).tobytes()
    spent = hvd.stats() - before
    assert spent.uncoded_bytes > 3 * spent.coded_bytes > 0
    assert f"coded          {spent.uncoded_bytes:,} bytes as {spent.coded_bytes:,}" in str(spent)


def test_on_one_host_nothing_is_coded_between_hosts(hvd):
    plain = hvd.allreduce(values(RANK, 300))
    assert hvd.allreduce(values(RANK, 300), compression=hvd.Compression.int4()).tobytes() == plain.tobytes()


def test_what_has_no_codec_is_refused(hvd):
    codec = hvd.Compression.int8()
    with pytest.raises(UnsupportedError, match="float64 cannot travel as int8"):
        hvd.allreduce(np.ones(3), compression=codec)
    for scatter in (hvd.reducescatter, lambda array, **how: hvd.grouped_reducescatter([array], **how)):
        with pytest.raises(UnsupportedError, match="reducescatter cannot be coded, and compression is int8 in"):
            scatter(np.ones(3, np.float32), compression=codec)
    with pytest.raises(InvalidArgumentError, match="with its parentheses"):
        hvd.allreduce(np.ones(3, np.float32), compression=hvd.Compression.int8)
