"""`Compression.auto` of the TensorFlow door: eagerly, in graphs and under XLA, by injected measurements.

On one host the codec int8 changes no bits. So tests that compare values use float64, for which bf16 is chosen.
"""

import numpy as np
import pytest
from support.injected_links import FAST_RATE, SLOW_RATE, injected_link

from hvdlite.errors import UnsupportedError

tf = pytest.importorskip("tensorflow")
from tensors import MODES  # noqa: E402

from hvdlite.tensorflow.tensors import settle_for_dense  # noqa: E402

COUNT = 20_000
ALL_MODES = {**MODES, "compiled": lambda step: tf.function(step, jit_compile=True)}


def mine(hvd):
    return tf.constant(np.random.default_rng(hvd.rank()).standard_normal(COUNT))


def gradient(hvd, compression):
    weights = tf.Variable(tf.ones([COUNT], tf.float64))

    def step(factors):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * factors)
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, weights)

    return step


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_a_tape_reduces_with_the_choice(hvd, mode):
    wanted = {name: gradient(hvd, getattr(hvd.Compression, name))(mine(hvd)).numpy() for name in ("none", "bf16")}
    assert not np.array_equal(wanted["none"], wanted["bf16"])
    for rate, name in ((SLOW_RATE, "bf16"), (FAST_RATE, "none")):
        with injected_link(rate * (1 + hvd.rank())):
            assert np.array_equal(mode(gradient(hvd, hvd.Compression.auto))(mine(hvd)), wanted[name])


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_calls_reduce_with_the_choice(hvd, mode):
    def call(tensor):
        return (
            hvd.allreduce(tensor, compression=hvd.Compression.auto),
            hvd.grouped_allreduce([tensor, tensor[:3]], compression=hvd.Compression.auto)[0],
        )

    with injected_link(SLOW_RATE):
        alone, together = mode(call)(mine(hvd))
    wanted = hvd.allreduce(mine(hvd), compression=hvd.Compression.bf16)
    assert np.array_equal(alone, wanted)
    assert np.array_equal(together, wanted)


def test_float32_gets_a_codec_and_slices_leave_it_out(hvd):
    with injected_link(SLOW_RATE):
        large = [tf.zeros([COUNT])]
        settled = [
            settle_for_dense(hvd.Compression.auto, hvd.global_process_set, hvd.Average, large, codes=codes)
            for codes in (True, False)
        ]
        assert settled == [hvd.Compression.int8(), hvd.Compression.bf16]
        slices = tf.IndexedSlices(tf.ones([1, 2]) / 3, tf.constant([hvd.rank()]), tf.constant([4, 2]))
        reduced = hvd.allreduce(slices, op=hvd.Sum, compression=hvd.Compression.auto)
        assert np.array_equal(reduced.values[0], tf.ones([2]) / 3)  # rows are sent as they are


def test_an_unknown_shape_is_refused(hvd):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def reduce(tensor):
        return hvd.allreduce(tensor, compression=hvd.Compression.auto)

    with pytest.raises(UnsupportedError, match="the shape of a tensor is unknown in this graph"):
        reduce(tf.ones([3]))
