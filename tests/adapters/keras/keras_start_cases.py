"""The ranks compare their models after the first batch: cases of all backends."""

import logging

import keras
import numpy as np
import pytest
from keras_training import BACKEND, ROWS, adam, assert_same_everywhere, data, fit, make_model, needs_keras_3, part, sgd
from support.world import WORLD

from hvdlite import add_process_set, remove_process_set
from hvdlite.errors import InvalidArgumentError, MismatchError


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "hvdlite"]


def train(hvd, make=sgd, seed=WORLD.rank, rank=None, callbacks=(), **options):
    model = make_model(seed)
    model.compile(optimizer=hvd.DistributedOptimizer(make(), **options), loss="mse")
    fit(model, *(part(array, rank) for array in data()), ROWS, callbacks=list(callbacks))
    return model


def test_models_that_nobody_has_broadcast_are_an_error(hvd):
    with pytest.raises(
        MismatchError, match=r"one model: after the first update, the parameter '.*kernel.*' \(and \d more\)"
    ) as raised:
        train(hvd, adam)
    for rank in range(WORLD.size):
        assert f" on rank {rank}" in str(raised.value)
    assert "hvd.callbacks.BroadcastGlobalVariablesCallback(0)" in str(raised.value)


@needs_keras_3
def test_an_optimizer_that_is_refused_stays_as_it_was(hvd):
    optimizer = sgd()
    for wrong in ({"start_check": "sometimes"}, {"groups": -1}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2, **wrong)
    assert optimizer.gradient_accumulation_steps is None
    assert hvd.DistributedOptimizer(optimizer) is optimizer


def test_the_remedy_for_a_process_set_names_it(hvd, caplog):
    """The callback broadcasts to all ranks of the job, so it is no remedy there."""
    some = add_process_set([*range(WORLD.size)])
    with pytest.raises(MismatchError) as raised:
        train(hvd, adam, process_set=some)
    assert (
        "call hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0, process_set=process_set) "
        in str(raised.value)
    )
    assert "Callback" not in str(raised.value)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, seed=0, rank=0, process_set=some)
    assert ["x[process_set.rank()::process_set.size()]" in line for line in lines(caplog)] == [True][WORLD.rank :]
    remove_process_set(some)


def test_the_check_broadcasts_them_where_it_is_told_to(hvd, caplog):
    with caplog.at_level(logging.WARNING, "hvdlite"):
        model = train(hvd, adam, start_check="broadcast")
    assert_same_everywhere(model.get_weights())
    assert sum("Now all ranks have the parameters" in line for line in lines(caplog)) == (WORLD.rank == 0)


@needs_keras_3
@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_with_a_split_state_they_are_an_error_before_the_first_step(hvd, how):
    """After it all ranks have the same mix of their models."""
    model = make_model(WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam(), shard=True), loss="mse")
    before = model.get_weights()
    x, y = (part(array) for array in data())
    with pytest.raises(MismatchError, match=r"before the first update, the parameter '.*kernel.*' \(and \d more\)") as raised:
        fit(model, x, y, ROWS) if how == "fit" else model.train_on_batch(x[:ROWS], y[:ROWS])
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert "hvd.callbacks.BroadcastGlobalVariablesCallback(0)" in str(raised.value)
    remedy = "hvd.broadcast_variables([*model.variables, optimizer.iterations], root_rank=0)"
    assert f"{remedy} before the first step" in str(raised.value)
    optimizer = model.optimizer
    exec(remedy, {"hvd": hvd, "model": model, "optimizer": optimizer})
    fit(model, x, y, ROWS)
    assert_same_everywhere(model.get_weights())


@needs_keras_3
def test_with_a_split_state_the_check_broadcasts_before_the_first_step(hvd, caplog):
    expected = train(hvd, adam, seed=0, shard=True)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        model = train(hvd, adam, shard=True, start_check="broadcast")
    for mine, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert sum("Now all ranks have the parameters" in line for line in lines(caplog)) == (WORLD.rank == 0)


@needs_keras_3
def test_with_a_split_state_a_model_without_an_input_shape(hvd):
    """On TensorFlow the callback broadcasts it after the first batch."""
    keras.utils.set_random_seed(WORLD.rank)
    model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(adam(), shard=True), loss="mse")
    fit(model, *map(part, data()), ROWS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_same_everywhere(model.get_weights())


@pytest.mark.parametrize("same_data", [False, pytest.param(True, marks=[pytest.mark.slow] if BACKEND != "torch" else [])])
def test_models_that_somebody_has_broadcast(hvd, same_data, caplog):
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, adam, rank=0 if same_data else None, callbacks=[callback])
    found = lines(caplog)
    assert len(found) == (same_data and WORLD.rank == 0)
    assert all("every rank computed the same results" in line and "dataset.shard" in line for line in found)


@needs_keras_3
def test_gradients_that_each_rank_accumulates_may_differ(hvd, caplog):
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, lambda: sgd(gradient_accumulation_steps=2), callbacks=[callback])
    assert not lines(caplog)


def test_a_broadcast_after_the_first_batch_is_soon_enough(hvd):
    """As Horovod's callback does it."""

    class Late(keras.callbacks.Callback):
        done = False

        def on_train_batch_end(self, batch, logs=None):
            if not self.done:
                hvd.broadcast_variables([*self.model.weights, *self.model.optimizer.variables], 0)
            self.done = True

    assert_same_everywhere(train(hvd, adam, callbacks=[Late()]).get_weights())


@pytest.mark.skipif(BACKEND == "jax", reason="assigning to variables outside of a program is the same on all backends")
@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=needs_keras_3)])
def test_a_loop_of_ones_own_is_compared_before_its_second_update(hvd, shard):
    """With a split state before the first."""
    model = make_model(WORLD.rank)
    optimizer = hvd.DistributedOptimizer(sgd(), **({"shard": True} if shard else {}))
    gradients = [keras.ops.ones(variable.shape) * (WORLD.rank + 1.0) for variable in model.trainable_variables]
    if not shard:
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
    before = model.get_weights()
    with pytest.raises(MismatchError, match=f"{'before' if shard else 'after'} the first update, the parameter"):
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_batches_that_the_program_asks_for_are_compared_before_the_second(hvd):
    model = make_model(WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    x, y = (part(array)[:ROWS] for array in data())
    model.train_on_batch(x, y)
    with pytest.raises(MismatchError, match=r"after the first update, the parameter '.*kernel.*' \(and \d more\)"):
        model.train_on_batch(x, y)


@pytest.mark.parametrize("same_data", [False, pytest.param(True, marks=[pytest.mark.slow] if BACKEND != "torch" else [])])
def test_batches_that_the_program_asks_for_after_a_broadcast(hvd, same_data, caplog):
    model = make_model(0 if same_data else WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    x, y = (part(array, 0 if same_data else None)[:ROWS] for array in data())
    with caplog.at_level(logging.WARNING, "hvdlite"):
        for step in range(5):
            model.train_on_batch(x, y)
            if step == 0:
                hvd.broadcast_variables([*model.weights, *model.optimizer.variables], 0)
    assert_same_everywhere(model.get_weights())
    assert sum("every rank computed the same results" in line for line in lines(caplog)) == (same_data and WORLD.rank == 0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only there does a program trace a loop that has variables")
@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=needs_keras_3)])
def test_a_traced_loop_of_ones_own(hvd, broadcast, shard):
    import tensorflow as tf

    model = make_model(WORLD.rank)
    optimizer = hvd.DistributedOptimizer(sgd(), shard=shard)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    x, y = (part(array)[:ROWS] for array in data())
    if not shard:
        step(x, y)
    if broadcast:
        hvd.broadcast_variables(model.weights, 0)
        step(x, y)
        assert_same_everywhere(model.get_weights())
    else:
        moment = "before" if shard else "after"
        with pytest.raises(tf.errors.OpError, match=f"{moment} the first update, the parameter .*kernel"):
            step(x, y)
