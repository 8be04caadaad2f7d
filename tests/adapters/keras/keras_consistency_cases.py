"""`check_consistency` and its callback: cases of all backends."""

import keras
import pytest
from keras_training import STEPS, data, fit, keras_array, needs_keras_3, part, sgd
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, MismatchError

ROWS_OF_RANK = 4


def make_model(hvd, make=lambda: sgd(), **options):
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    model.compile(optimizer=hvd.DistributedOptimizer(make(), **options), loss="mse")
    return model


def train(model, *callbacks, epochs=2):
    fit(model, *map(part, data()), ROWS_OF_RANK, epochs=epochs, callbacks=list(callbacks))


def differing(function):
    with pytest.raises(MismatchError) as raised:
        function()
    return str(raised.value)


class Change(keras.callbacks.Callback):
    """Changes an element of a weight on each rank otherwise, at the beginning of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            add_rank(self.model.layers[0].kernel)


def add_rank(variable):
    values = keras_array(variable).copy()
    values[1, 2] += WORLD.rank
    variable.assign(values)


def test_the_callback_compares_after_so_many_steps(hvd):
    """An epoch has `STEPS` batches; the ranks differ from the second epoch on."""
    callback = hvd.callbacks.ConsistencyCheckCallback(every=3)
    text = differing(lambda: train(make_model(hvd, start_check="off"), Change(1), callback))
    assert f", after step {STEPS // 3 * 3 + 3} (all ranks were equal after step {STEPS // 3 * 3}): " in text
    assert "kernel" in text
    assert "float32 [3, 5]: its first element that differs, [" in text
    assert "hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)" in text


@needs_keras_3
def test_the_callback_counts_steps_and_not_accumulated_batches(hvd):
    callback = hvd.callbacks.ConsistencyCheckCallback(every=3)
    make = lambda: sgd(gradient_accumulation_steps=2)  # noqa: E731
    text = differing(lambda: train(make_model(hvd, make, start_check="off"), Change(1), callback, epochs=3))
    assert ", after step 3: " in text


def test_the_callback_counts_from_steps_that_a_later_callback_broadcasts(hvd):
    model = make_model(hvd)
    if WORLD.rank == 0:
        model.optimizer.iterations.assign(2)  # as from a checkpoint
    train(model, hvd.callbacks.ConsistencyCheckCallback(every=3), hvd.callbacks.BroadcastGlobalVariablesCallback(0))


def test_once_and_without_what_each_rank_has_by_itself(hvd):
    model = make_model(hvd)
    train(model, hvd.callbacks.ConsistencyCheckCallback(every=1), epochs=1)
    hvd.check_consistency(model, model.optimizer)
    assert "moving_" in differing(lambda: hvd.check_consistency(model, buffers=True))
    model.layers[0].trainable = False
    add_rank(model.layers[0].kernel)
    assert "float32 [3, 5]: its first element that differs, [1, 2]" in differing(lambda: hvd.check_consistency(model))
    hvd.check_consistency(model.optimizer, [keras.ops.ones(3) if hasattr(keras, "ops") else 1.0])


@needs_keras_3
def test_slots_that_are_split_are_left_out(hvd):
    model = make_model(hvd, shard=True)
    train(model, hvd.callbacks.ConsistencyCheckCallback(every=2))
    model.optimizer.learning_rate = 0.1 * (1 + WORLD.rank)
    assert "is 0.1" in differing(lambda: hvd.check_consistency(model, model.optimizer))


def test_local_variables_are_left_out(hvd):
    model = make_model(hvd)
    local = model.layers[0].kernel
    model.optimizer.register_local_var(local)
    add_rank(local)
    hvd.check_consistency(model, model.optimizer)
    model.layers[-1].bias.assign([WORLD.rank])
    assert "in 1 of" in differing(lambda: hvd.check_consistency(model, model.optimizer))


def test_a_wrong_number_of_steps(hvd):
    with pytest.raises(InvalidArgumentError, match="every=0"):
        train(make_model(hvd), hvd.callbacks.ConsistencyCheckCallback(every=0))
