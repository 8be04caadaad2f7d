"""Keras on JAX."""

import keras
import numpy as np
import pytest
from keras_callback_cases import *  # noqa: F403 - tests of all backends
from keras_consistency_cases import *  # noqa: F403 - comparisons
from keras_fit_cases import *  # noqa: F403 - others
from keras_model_cases import *  # noqa: F403 - the rest
from keras_shard_cases import *  # noqa: F403 - sharded state
from keras_start_cases import *  # noqa: F403 - and these
from keras_training import ROWS, assert_same_everywhere, data, fit, part
from keras_weight_cases import *  # noqa: F403 - and weights
from support.world import WORLD

jax = pytest.importorskip("jax")

from hvdlite.errors import InvalidArgumentError, UnsupportedError  # noqa: E402
from hvdlite.keras.backends import GradientStep  # noqa: E402

RANKS = (2,)
ENVIRONMENT = {"KERAS_BACKEND": "jax"}


class Watched(keras.Model):
    """A model whose loss calls a collective in the compiled step."""

    collective = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ((y_pred - y) ** 2).mean() + self.collective(jax.lax.stop_gradient(x).sum())


def train(hvd, collective):
    layer = keras.layers.Input((3,))
    model = Watched(layer, keras.layers.Dense(1)(layer))
    model.collective = collective
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, part(data()[0])[:ROWS], part(data()[1])[:ROWS], ROWS, epochs=1, callbacks=[callback])
    return model


def test_values_inside_a_compiled_step(hvd):
    """Beside the gradients' call there are others in the program."""

    def collective(value):
        total = hvd.allreduce(value, name="in_step", op=Sum)  # noqa: F405
        return total + hvd.broadcast(value, WORLD.size - 1, name="in_step")

    assert_same_everywhere(train(hvd, collective).get_weights())


def test_what_a_compiled_step_refuses(hvd):
    with pytest.raises(InvalidArgumentError, match="needs a name"):
        train(hvd, lambda value: hvd.allreduce(value))
    with pytest.raises(UnsupportedError, match="run_eagerly=True"):
        train(hvd, lambda value: hvd.allgather(value[None], name="in_step")[0])


def test_a_distribution_of_keras_is_refused(hvd):
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        with pytest.raises(UnsupportedError, match="leave it out"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    finally:
        keras.distribution.set_distribution(None)


def test_values_outside_of_a_step(hvd):
    mine = np.arange(3, dtype=np.float32) + WORLD.rank
    everyone = [np.arange(3, dtype=np.float32) + rank for rank in range(WORLD.size)]
    for value in (mine, keras.ops.convert_to_tensor(mine), keras.Variable(mine)):
        found = hvd.allreduce(value, op=Sum)  # noqa: F405
        assert isinstance(found, jax.Array)
        assert np.array_equal(found, np.sum(everyone, axis=0))
        assert np.array_equal(hvd.allgather(value), np.concatenate(everyone))
        assert np.array_equal(hvd.broadcast(value, 1), everyone[1])
    rows = hvd.reducescatter(np.ones((WORLD.size, 2), np.float32), op=Sum)  # noqa: F405
    assert np.array_equal(rows, [[WORLD.size] * 2])


def test_only_dense_gradients(hvd):
    reducer = type(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))._hvdlite
    step = GradientStep([[1.0]], [None], ["kernel"], None, reducer.settings.reduction, None)
    with pytest.raises(UnsupportedError, match="the gradient of 'kernel' is a list"):
        reducer._backend.reduce_gradients(step)
