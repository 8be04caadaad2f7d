"""Keras on torch."""

import keras
import numpy as np
import pytest
from keras_callback_cases import *  # noqa: F403 - tests of all backends
from keras_consistency_cases import *  # noqa: F403 - comparisons
from keras_fit_cases import *  # noqa: F403 - others
from keras_model_cases import *  # noqa: F403 - the rest
from keras_shard_cases import *  # noqa: F403 - sharded state
from keras_start_cases import *  # noqa: F403 - and these
from keras_training import ROWS, assert_same_everywhere, data, make_model, part
from keras_weight_cases import *  # noqa: F403 - and weights
from support.world import WORLD

torch = pytest.importorskip("torch")

RANKS = (2,)
ENVIRONMENT = {"KERAS_BACKEND": "torch"}
SLOW = ()  # all that the other backends leave to this one


class OwnStep(keras.Model):
    """A model with a training step as Keras's guides write it."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        x, y = batch
        self.zero_grad()
        loss = ((self(x) - y) ** 2).mean()
        loss.backward()
        gradients = [weight.value.grad for weight in self.trainable_weights]
        with torch.no_grad():
            if self.way == "apply":
                self.optimizer.apply(gradients, self.trainable_weights)
            else:
                self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("way", ["apply", "apply_gradients"])
def test_training_steps_of_the_user(hvd, way):
    model = OwnStep(way)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(part(data()[0]), part(data()[1]), batch_size=ROWS, verbose=0, callbacks=[callback])
    assert_same_everywhere(model.get_weights())


def test_a_gradient_that_some_ranks_lack_counts_as_zeros(hvd):
    model = make_model()
    model.build((None, 3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = model.trainable_variables
    before = model.get_weights()
    gradients = [torch.ones(tuple(variable.shape)) for variable in variables]
    gradients[2] = None
    if WORLD.rank:
        gradients[1] = None
    optimizer.apply(gradients, variables)
    moved = [start - end for start, end in zip(before, model.get_weights(), strict=True)]
    for found, wanted in zip(moved, (1, 1 / WORLD.size, 0, 1), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
