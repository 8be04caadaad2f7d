"""Keras on torch with ``jit_compile=True``, which is torch.compile. It takes a compiler and its time."""

import keras
import pytest
from keras_training import assert_close, assert_same_everywhere, state_of, train_alone, train_together

pytest.importorskip("torch")

RANKS = (2,)
ENVIRONMENT = {"KERAS_BACKEND": "torch"}
WATCHDOG = 500.0

pytestmark = pytest.mark.slow


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def test_compiled_training_is_that_of_one_process(hvd):
    model = train_together(hvd, hvd.DistributedOptimizer(sgd()), jit_compile=True)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(sgd, jit_compile=False))
