"""`Compression.auto` through the NumPy call: all ranks agree on one choice, by injected measurements that differ by rank."""

import logging

import numpy as np
import pytest
from support.injected_links import FAST_RATE, SLOW_RATE, injected_link
from support.world import WORLD

from hvdlite import auto_compression
from hvdlite.backends import DeviceArray
from hvdlite.compression import AutoCompression, BF16Compressor, Codec, NoneCompressor
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.requests import Average, Max
from hvdlite.runtime import RUNTIME

RANKS = (2, 3)
RANK, SIZE = WORLD.rank, WORLD.size
LARGE, SMALL = 1 << 20, 10


def choices(hvd, *sizes, dtype="float32", auto=None, **where):
    """What all ranks choose for tensors of these sizes."""
    auto = auto or hvd.Compression.auto
    own = [auto_compression.settle(auto, hvd.global_process_set, Average, [(dtype, size)], **where) for size in sizes]
    everyone = WORLD.allgather([str(each) for each in own])
    assert all(other == everyone[0] for other in everyone), everyone
    return own


def test_one_slow_rank_decides_for_all_and_is_measured_once(hvd, caplog):
    with injected_link(SLOW_RATE if RANK == SIZE - 1 else FAST_RATE) as measured, caplog.at_level(logging.WARNING, "hvdlite"):
        assert choices(hvd, LARGE, SMALL) == [Codec("int8"), NoneCompressor]
        count = len(measured)
        assert 0 < count < 20
        assert choices(hvd, LARGE, LARGE, SMALL)[0] == Codec("int8")
        assert len(measured) == count
        assert choices(hvd, LARGE, dtype="float64") == [BF16Compressor]  # no codec of float64
        assert choices(hvd, LARGE, codes=False) == [BF16Compressor]
        assert choices(hvd, LARGE, codes=False, narrows=False) == [NoneCompressor]
        assert choices(hvd, LARGE, dtype="bfloat16") == [Codec("int8")]
        assert choices(hvd, LARGE, dtype="int64") == [NoneCompressor]
        assert choices(hvd, LARGE, auto=hvd.Compression.auto(step_time=600)) == [NoneCompressor]  # all is hidden
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "chooses int8: " in text]) == (RANK == 0)
    if RANK == 0:
        text = next(text for text in said if "chooses int8: " in text)
        assert f"{SIZE} hosts" in text
        assert f"predicted for {LARGE:,} elements: none " in text


def test_a_fast_link_is_left_alone(hvd):
    with injected_link(FAST_RATE / (1 + RANK)):
        assert choices(hvd, LARGE, SMALL) == [NoneCompressor, NoneCompressor]


def test_after_a_shutdown_the_link_is_measured_anew(hvd):
    with injected_link(SLOW_RATE) as measured:
        assert choices(hvd, LARGE) == [Codec("int8")]
        count = len(measured)
        hvd.shutdown()
        hvd.init()
        assert choices(hvd, LARGE) == [Codec("int8")]
        assert len(measured) == 2 * count


def test_calls_reduce_with_the_choice(hvd):
    mine = np.random.default_rng(RANK).standard_normal(LARGE).astype(np.float32)
    plain, coded = hvd.allreduce(mine), hvd.allreduce(mine, compression=hvd.Compression.int8(between="ranks"))
    with injected_link(SLOW_RATE):
        settled = auto_compression.settle_for_tensors(hvd.Compression.auto, hvd.global_process_set, Average, [mine])
        assert settled == Codec("int8")
        assert hvd.allreduce(mine, compression=hvd.Compression.auto).tobytes() == plain.tobytes()  # really on one host
        outputs = hvd.grouped_allreduce([mine, mine[:7]], compression=hvd.Compression.auto)
    assert outputs[0].tobytes() == plain.tobytes()
    assert coded.tobytes() != plain.tobytes()


def test_arrays_that_cannot_be_converted_to_bfloat16_stay_as_they_are(hvd):
    array = DeviceArray(None, 4096, (LARGE,), np.dtype("float32"), 0)  # only described: no code reads the memory
    with injected_link(SLOW_RATE):
        settled = auto_compression.settle_for_tensors(hvd.Compression.auto, hvd.global_process_set, Average, [array])
    assert settled is NoneCompressor


def test_ranks_of_one_host_measure_nothing(hvd, monkeypatch, caplog):
    monkeypatch.setattr("hvdlite.link_measurement.own_seconds", lambda *_: pytest.fail("measured"))
    with caplog.at_level(logging.WARNING, "hvdlite"):
        assert choices(hvd, LARGE) == [NoneCompressor]
    assert [record.getMessage() for record in caplog.records] == [
        f"Compression.auto chooses none: the {SIZE} ranks are on one host"
    ] * (RANK == 0)


def test_a_process_set_measures_its_own_link(hvd):
    pair = hvd.add_process_set([0, 1])
    if RANK < 2:
        with injected_link(SLOW_RATE):
            assert auto_compression.settle(hvd.Compression.auto, pair, Average, [("float32", LARGE)]) == Codec("int8")
    with injected_link(FAST_RATE):
        assert choices(hvd, LARGE) == [NoneCompressor]
    hvd.remove_process_set(pair)


def test_a_rank_that_has_joined_is_named(hvd):
    with injected_link(SLOW_RATE):
        if RANK == SIZE - 1:
            hvd.join()
        else:
            with pytest.raises(UnsupportedError, match=f"rank {SIZE - 1} joined before"):
                hvd.allreduce(np.ones(3), compression=hvd.Compression.auto)
            hvd.join()


def test_what_cannot_be_chosen_is_refused(hvd, monkeypatch):
    array, auto = np.ones(3, np.float32), hvd.Compression.auto
    with pytest.raises(UnsupportedError, match="op=Max cannot be coded, and compression is auto: leave the"):
        hvd.allreduce(array, op=Max, compression=auto)
    with pytest.raises(
        UnsupportedError, match="reducescatter cannot be coded, and compression is auto with a step time of 2 s"
    ):
        hvd.reducescatter(array, compression=auto(2))
    monkeypatch.setattr(RUNTIME, "config", RUNTIME.config.replace(deterministic=True))
    with pytest.raises(InvalidArgumentError, match="HVDLITE_DETERMINISTIC is set"):
        hvd.allreduce(array, compression=auto)
    for wrong in (-1, float("nan"), "1s", True):
        with pytest.raises(InvalidArgumentError, match="pass a finite number of seconds"):
            AutoCompression(wrong)
