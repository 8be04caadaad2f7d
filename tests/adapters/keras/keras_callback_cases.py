"""Tests of hvdlite.keras's callbacks for all backends; the files beside this one choose the backend."""

import keras
import numpy as np
import pytest
from keras_training import (
    BACKEND,
    KERAS_3,
    ROWS,
    STEPS,
    adam,
    assert_close,
    assert_same_everywhere,
    data,
    fit,
    keras_array,
    make_model,
    model_with_state,
    on_two_ranks,
    part,
    sgd,
    state_of,
    variables_of,
)
from support.world import WORLD, on_all_ranks

from hvdlite import InvalidArgumentError, MismatchError
from hvdlite.keras.model_state import optimizers_of

# --- the same model and optimizers on all ranks ------------------------------------------------------------------------


@on_two_ranks
def test_the_broadcast_comes_before_the_first_step_of_each_fit_and_brings_the_optimizer(hvd):
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    if WORLD.rank == 0:  # as after loading a checkpoint
        alone = model_with_state(adam())
        model.set_weights(alone.get_weights())
        model.optimizer.build(model.trainable_variables)
        for own, other in zip(model.optimizer.variables, alone.optimizer.variables, strict=True):
            own.assign(other)
    started = WORLD.bcast(state_of(model) if WORLD.rank == 0 else None)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(state_of(self.model))

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Look()]
    fit(model, *map(part, data()), ROWS, callbacks=callbacks)
    assert_close(seen[0], started, 0)
    assert_same_everywhere(state_of(model))
    set_apart([*model.weights, *variables_of(model.optimizer)])  # as a rank does that goes back to its best epoch
    started = WORLD.bcast(state_of(model) if WORLD.rank == 0 else None)
    seen.clear()
    fit(model, *map(part, data()), ROWS, epochs=1, callbacks=callbacks)
    assert_close(seen[0], started, 0)
    assert_same_everywhere(state_of(model))


def set_apart(variables):
    """Gives variables values that differ from each other and between ranks."""
    for place, variable in enumerate(variables):
        variable.assign(keras_array(variable) + (place % 5 + 3 * WORLD.rank + 1))


def begin_fit(hvd, model):
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_begin()
    return callback


@on_two_ranks
@pytest.mark.parametrize("owner", range(WORLD.size))
def test_all_optimizers_of_a_model_are_broadcast_with_slots_that_one_rank_has(hvd, owner):
    """In whichever attribute they are, of the model or of a layer; with averages of weights (use_ema)."""
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    model.critic = hvd.DistributedOptimizer(sgd(use_ema=True))
    model.others = {"b": [adam()], "a": hvd.DistributedOptimizer(adam())}
    model.layers[0].own = adam()
    held = [model.optimizer, model.critic, model.others["a"], model.others["b"][0], model.layers[0].own]
    if WORLD.rank == owner:
        for optimizer in held[1:]:
            optimizer.build(model.layers[1].trainable_variables)
        for optimizer in held:
            set_apart(variables_of(optimizer))
    wanted = WORLD.bcast([int(keras_array(optimizer.iterations)) for optimizer in held])
    assert begin_fit(hvd, model).broadcast_done
    assert [int(keras_array(optimizer.iterations)) for optimizer in held] == wanted
    assert wanted[1:] == [1 if owner == 0 else 0] * 4
    slots = [len(variables_of(optimizer)) for optimizer in held]
    assert min(slots[1:]) >= 2 + 2
    assert_same_everywhere([keras_array(each) for optimizer in held for each in variables_of(optimizer)])
    assert_same_everywhere(model.get_weights())


def test_the_optimizer_of_compile_comes_first_in_the_attribute_that_keras_gives_it(hvd):
    model = make_model()
    model.compile(optimizer=sgd())
    model.critic, model.alias = adam(), model.optimizer
    assert list(optimizers_of(model)) == ["optimizer", "critic"]


@on_two_ranks
@pytest.mark.skipif(
    BACKEND == "jax" or not KERAS_3, reason="only Keras 3 on TensorFlow and torch has variables it does not count"
)
def test_variables_that_keras_does_not_count_are_broadcast(hvd):
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        model.beta = tf.Variable(WORLD.rank + 2.0)
        model.layers[0].own = [tf.Variable([WORLD.rank]), tf.Variable("words")]
        held = [model.beta, model.layers[0].own[0]]
    else:
        import torch

        model.norm = torch.nn.BatchNorm1d(3)
        model.layers[0].register_buffer("own", torch.tensor([WORLD.rank]))
        held = [model.norm.module.running_mean, model.norm.module.weight.data, model.layers[0].own]
        held[0] += WORLD.rank + 2.0
        held[1] += WORLD.rank
    begin_fit(hvd, model)
    assert_same_everywhere([keras_array(each) for each in held])
    assert keras_array(held[0]).max() == 2.0


class Pair(keras.Model):
    """Is not built itself before its first batch, and its layers are."""

    def __init__(self, seed):
        super().__init__()
        self.first, self.second = make_model(seed), make_model(seed + 1)

    def call(self, x):
        return self.first(x) + self.second(x)


@on_two_ranks
def test_layers_that_are_built_in_a_model_that_is_not_are_broadcast_before_its_first_step(hvd):
    model = Pair(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    assert begin_fit(hvd, model).broadcast_done
    assert len(model.get_weights()) == 8
    assert_same_everywhere(model.get_weights())


@on_two_ranks
@pytest.mark.filterwarnings("ignore:this model is trained on several ranks, but its optimizer does not")
def test_models_with_different_optimizers_are_refused(hvd):
    for attribute, optimizer, text in (
        ("more", adam(), r"'more' is on rank 0, but not on rank 1"),
        ("optimizer", hvd.DistributedOptimizer(adam()), "optimizer is Adam, wrapped on rank 0, but optimizer is SGD, wrapped"),
        ("optimizer", sgd(), "optimizer is SGD on rank 0, but optimizer is SGD, wrapped on rank 1"),
    ):
        model = make_model()
        model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
        if WORLD.rank == 0:
            setattr(model, attribute, optimizer)
        with pytest.raises(MismatchError, match=f"the ranks' models hold different optimizers: {text}") as caught:
            begin_fit(hvd, model)
        on_all_ranks(str(caught.value))
    first = hvd.add_process_set([0])
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd(), process_set=first) if WORLD.rank == 0 else sgd(), loss="mse")
    begin_fit(hvd, model)
    assert_same_everywhere(state_of(model))
    assert hvd.remove_process_set(first)


@on_two_ranks
def test_local_variables_are_not_broadcast(hvd):
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    own = model.get_weights()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=model.layers[0].weights[:1])
    callback.register_local_var(model.layers[0].weights[1])
    callback.set_model(model)
    callback.on_train_begin()
    assert_close(model.get_weights()[:2], own[:2], 0)
    assert_same_everywhere(model.get_weights()[2:])


@on_two_ranks
@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no variables for seeds")
def test_random_layers_go_on_differing_between_ranks(hvd):
    dropout = keras.layers.Dropout(0.5, seed=WORLD.rank)
    model = keras.Sequential([keras.layers.Input((3,)), dropout, keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    fit(model, *map(part, data()), ROWS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert len(set(WORLD.allgather(keras_array(dropout.seed_generator.state).tobytes()))) == WORLD.size
    assert_same_everywhere(model.get_weights())


# --- metrics ------------------------------------------------------------------------------------------------------------


@on_two_ranks
def test_metrics_that_some_ranks_lack_are_named(hvd):
    no_numbers = {"list": [1.0, 2.0], "text": "a", "none": None}
    logs = {"loss": float(WORLD.rank), **({"lr": 0.1, **no_numbers} if WORLD.rank == 0 else {"val_loss": 2.0})}
    with pytest.raises(MismatchError, match="'lr' is on rank 0, but not on rank 1; 'val_loss' is on rank 1, but not") as caught:
        hvd.callbacks.MetricAverageCallback().on_epoch_end(3, logs)
    on_all_ranks(str(caught.value))
    assert "in epoch 3" in str(caught.value)


@on_two_ranks
def test_metrics_are_averaged_for_history_and_later_callbacks(hvd):
    model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse", metrics=["mae"])
    own, seen = [], []

    class Note(keras.callbacks.Callback):
        def __init__(self, where):
            super().__init__()
            self.where = where

        def on_epoch_end(self, epoch, logs=None):
            self.where.append(dict(logs))

    validation = (part(data()[0])[:ROWS], part(data()[1])[:ROWS])
    callbacks = [Note(own), hvd.callbacks.MetricAverageCallback(), Note(seen)]
    history = fit(model, *map(part, data()), ROWS, callbacks=callbacks, validation_data=validation).history
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    for epoch, logs in enumerate(own):
        everyone = WORLD.allgather(logs)
        assert len({entry["val_loss"] for entry in everyone}) == WORLD.size
        for name in logs:
            mean = np.mean([entry[name] for entry in everyone])
            np.testing.assert_allclose([history[name][epoch], seen[epoch][name]], mean, rtol=1e-6)


# --- learning rates and counts --------------------------------------------------------------------------------------------


@on_two_ranks
@pytest.mark.skipif(BACKEND == "torch", reason="Keras on torch executes one step at a time")
@pytest.mark.parametrize(
    "together",
    [pytest.param(3, marks=[pytest.mark.slow] if BACKEND == "jax" else []), pytest.param(STEPS, marks=pytest.mark.slow)],
)
def test_callbacks_count_batches_where_several_are_executed_together(hvd, together):
    model = make_model()
    eagerly = BACKEND == "tensorflow"
    optimizer = hvd.DistributedOptimizer(sgd())
    model.compile(optimizer=optimizer, loss="mse", steps_per_execution=together, run_eagerly=eagerly)
    rates, commits = [], []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(keras_array(self.model.optimizer.learning_rate)))

    class State:
        def commit(self):
            commits.append(hvd.stats().steps - before)

    before = hvd.stats().steps
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    callbacks = [warmup, Note(), hvd.callbacks.MarkStepCallback(), hvd.elastic.CommitStateCallback(State(), 3)]
    history = fit(model, *map(part, data()), ROWS, epochs=3, callbacks=callbacks).history
    ranks, total = WORLD.size, 2 * STEPS
    ramp = [0.4 / ranks * ((step + 1) * (ranks - 1) / total + 1) for step in range(total)]
    firsts = [epoch * STEPS + step for epoch in range(2) for step in range(0, STEPS, together)]
    np.testing.assert_allclose(rates, [*(ramp[step] for step in firsts), *[0.4] * len(range(0, STEPS, together))], rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [ramp[STEPS - 1], 0.4, 0.4], rtol=1e-6)
    assert hvd.stats().steps - before == 3 * STEPS
    # Of 4 steps each epoch: when 3 have passed since the last time, and at the end of the epoch.
    assert commits == ([3, 4, 7, 8, 11, 12] if together == 3 else [4, 4, 8, 8, 12, 12])


@on_two_ranks
def test_a_warmup_asks_anew_how_many_steps_an_epoch_has(hvd):
    model = make_model()
    model.compile(optimizer=sgd(momentum=0.0), loss="mse")
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=1)
    for steps in (STEPS, STEPS // 2):
        warmup.set_model(model)
        warmup.set_params({"steps": steps})
        warmup.on_train_begin()
        warmup.on_epoch_begin(0)
        warmup.on_train_batch_begin(steps - 1)
        np.testing.assert_allclose(float(keras_array(model.optimizer.learning_rate)), 0.4, rtol=1e-6)


@on_two_ranks
def test_warmup_and_schedule(hvd):
    model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd(momentum=0.0)), loss="mse")
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(keras_array(self.model.optimizer.learning_rate)))

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    decay = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2)
    history = fit(model, *map(part, data()), ROWS, epochs=4, callbacks=[warmup, decay, Note()]).history
    ranks, total = WORLD.size, 2 * STEPS
    ramp = [0.4 / ranks * ((step + 1) * (ranks - 1) / total + 1) for step in range(total)]
    np.testing.assert_allclose(rates, [*ramp, *[0.4] * STEPS, *[0.2] * STEPS], rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [ramp[STEPS - 1], 0.4, 0.4, 0.2], rtol=1e-6)


@on_two_ranks
def test_momentum_is_corrected_when_the_rate_changes(hvd):
    """One step at rate r, then one at 2r, against the formula of SGD with the momentum doubled in the second."""
    model = make_model()
    model.compile(optimizer=sgd(learning_rate=0.1, momentum=0.5), loss="mse")
    x, y = part(data()[0], 0)[:ROWS], part(data()[1], 0)[:ROWS]
    weights = [model.get_weights()]

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights.append(self.model.get_weights())

    callbacks = [hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 + epoch), Note()]
    fit(model, x, y, ROWS, epochs=2, callbacks=callbacks)
    again = make_model()
    again.compile(optimizer=keras.optimizers.SGD(0.2), loss="mse")
    again.set_weights(weights[1])
    fit(again, x, y, ROWS, epochs=1)
    for start, first, second, plain in zip(*weights, again.get_weights(), strict=True):
        np.testing.assert_allclose(second, plain + (0.5 * 2) * (first - start), rtol=1e-4, atol=1e-6)


@on_two_ranks
def test_the_best_checkpoint_is_written_by_rank_0(hvd, tmp_path):
    file = tmp_path / "best.keras"
    model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(file))
    fit(model, *map(part, data()), ROWS, callbacks=[hvd.callbacks.MetricAverageCallback(), checkpoint])
    assert file.exists() == (WORLD.rank == 0)
    if WORLD.rank == 0:
        with pytest.raises(InvalidArgumentError, match="has no filepath"):
            hvd.callbacks.BestModelCheckpoint().on_train_begin()


@on_two_ranks
def test_an_optimizer_that_is_not_wrapped_is_noticed(hvd):
    model = make_model()
    model.compile(optimizer=sgd(), loss="mse")
    with pytest.warns(UserWarning, match="does not reduce gradients"):
        fit(model, *map(part, data()), ROWS, epochs=1, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
