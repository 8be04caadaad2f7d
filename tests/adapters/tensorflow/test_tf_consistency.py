"""`check_consistency` of variables, models and optimizers of TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.world import WORLD

from hvdlite.errors import MismatchError, UnsupportedError

RANKS = (2,)
MORE_RANKS = (3,)


def differing(function):
    with pytest.raises(MismatchError) as raised:
        function()
    return str(raised.value)


def test_variables_and_tensors(hvd):
    weights = tf.Variable(tf.ones([2, 3]), name="weights")
    half = tf.Variable(tf.ones([4], tf.bfloat16))
    checker = hvd.check_consistency(weights, {"half": half}, [tf.constant([1, 2]), np.ones(2), 3], every=2)
    for _ in range(3):
        checker.step()
    weights[1, 2].assign(1.0 + hvd.rank())
    text = differing(checker.step)
    assert "after step 4 (all ranks were equal after step 2): " in text
    assert (
        "The first is 'weights:0 of argument 1 (ResourceVariable)', float32 [2, 3]: its first element that differs, [1, 2]"
        in text
    )
    assert "hvd.broadcast_variables(model.variables, root_rank=0)" in text
    some = hvd.add_process_set([*range(hvd.size())])
    assert "hvd.broadcast_variables(optimizer.variables, root_rank=0, process_set=process_set) give" in differing(
        lambda: hvd.check_consistency(weights, process_set=some)
    )
    hvd.remove_process_set(some)


def test_a_model_and_its_optimizer(hvd):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.Adam(0.01)
    inputs = tf.constant(np.random.default_rng(hvd.rank()).standard_normal((4, 3)), tf.float32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs, training=True) ** 2)
        gradients = hvd.DistributedGradientTape(tape, start_check="off").gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(2):
        step()
    hvd.check_consistency(model, optimizer)
    assert "moving_" in differing(lambda: hvd.check_consistency(model, buffers=True))
    model.layers[0].trainable = False
    model.layers[0].bias.assign([0.0, 1.0 + hvd.rank()])
    assert "bias of argument 1 (Sequential)', float32 [2]: its first element that differs, [1]" in differing(
        lambda: hvd.check_consistency(model, optimizer)
    )
    optimizer.learning_rate = 0.01 * (1 + hvd.rank())
    assert "learning_rate" in differing(lambda: hvd.check_consistency(optimizer))


def test_names_do_not_count(hvd):
    """A rank may have made more models before."""
    for _ in range(hvd.rank() + 1):
        layer = keras.layers.Dense(2, kernel_initializer="ones")
    layer.build((3,))
    assert len(set(WORLD.allgather(layer.kernel.path))) == hvd.size()
    hvd.check_consistency(layer)
    layer.kernel.assign(np.full((3, 2), hvd.rank()))
    assert WORLD.bcast(layer.kernel.path) in differing(lambda: hvd.check_consistency(layer))


def test_a_module(hvd):
    class Line(tf.Module):
        def __init__(self, seen):
            super().__init__()
            self.weights_ = tf.Variable([1.0, 2.0])
            self.seen = tf.Variable(seen, trainable=False)

    hvd.check_consistency(Line(hvd.rank()))
    assert "is 0 on rank 0, but 1 on rank 1" in differing(lambda: hvd.check_consistency(Line(hvd.rank()), buffers=True))


def test_another_number_of_variables_is_named(hvd):
    variables = [tf.Variable(float(place), name=f"v{place}") for place in range(2 + (hvd.rank() == 1))]
    assert "'2 of argument 1 (list)' is on rank 1, but not on rank" in differing(lambda: hvd.check_consistency(variables))


def test_not_in_a_graph(hvd):
    with pytest.raises(UnsupportedError, match=r"call it outside of tf.function"):
        tf.function(lambda: hvd.check_consistency(tf.Variable(1.0)) or 1)()
