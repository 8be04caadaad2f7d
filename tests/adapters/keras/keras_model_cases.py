"""Tests of hvdlite.keras for all backends: saved models, callbacks, values, elastic state; files beside this one choose one."""

import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras_training import (
    BACKEND,
    EPOCHS,
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
    on_two_ranks,
    part,
    sgd,
    state_of,
    train_alone,
)
from support.world import WORLD

from hvdlite import Average, Compression, InvalidArgumentError, Max, Sum

# --- saving and loading ----------------------------------------------------------------------------------------------


def model_with_state(optimizer):
    model = make_model()
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())  # Keras cannot load "mse" from an .h5 file
    fit(model, *map(part, data()), ROWS, epochs=1)
    return model


@on_two_ranks
def test_saved_models_are_plain_and_go_on(hvd, tmp_path):
    file = tmp_path / "model.keras"
    model = model_with_state(hvd.DistributedOptimizer(adam()))
    model.save(file)
    model_with_state(adam()).save(tmp_path / "plain.keras")
    assert optimizer_config(file) == optimizer_config(tmp_path / "plain.keras")
    plain = keras.models.load_model(file)
    assert type(plain.optimizer) is type(adam())
    assert_close(state_of(plain), state_of(model), 0)
    loaded = hvd.load_model(file)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    fit(loaded, *map(part, data()), ROWS, epochs=1)
    assert_same_everywhere(state_of(loaded))
    assert_close(loaded.get_weights(), train_alone(adam, epochs=2))


@on_two_ranks
def test_files_of_the_older_format(hvd, tmp_path):
    """What Keras 3 itself makes of their optimizers differs from backend to backend, and is nothing to go on with."""
    file = tmp_path / "model.h5"
    model = model_with_state(hvd.DistributedOptimizer(adam()))
    model.save(file)
    assert type(keras.models.load_model(file).optimizer) is type(adam())
    assert_close(hvd.load_model(file).get_weights(), model.get_weights(), 0)


def optimizer_config(file):
    config = json.loads(zipfile.ZipFile(file).read("config.json"))["compile_config"]["optimizer"]
    config["config"].pop("name")  # numbered
    return config


@keras.saving.register_keras_serializable("hvdlite_tests")
class Doubled(keras.optimizers.SGD):
    """An optimizer of the user's."""


@on_two_ranks
def test_custom_optimizers_are_saved_under_their_own_name(hvd, tmp_path):
    model = model_with_state(hvd.DistributedOptimizer(Doubled(0.1)))
    model.save(tmp_path / "custom.keras")
    assert optimizer_config(tmp_path / "custom.keras")["registered_name"] == "hvdlite_tests>Doubled"
    loaded = hvd.load_model(tmp_path / "custom.keras", custom_optimizers=[Doubled])
    assert isinstance(loaded.optimizer, Doubled)
    fit(loaded, *map(part, data()), ROWS, epochs=1)
    assert_same_everywhere(state_of(loaded))


@on_two_ranks
def test_wrapping_again_replaces_and_keeps_the_state(hvd):
    optimizer = hvd.DistributedOptimizer(adam())
    model = model_with_state(optimizer)
    again = hvd.DistributedOptimizer(optimizer, op=Sum)
    assert again is optimizer
    assert type(optimizer).__mro__[1:].count(type(optimizer).__mro__[1]) == 1
    kept = state_of(model)
    model.compile(optimizer=again, loss="mse")
    assert_close(state_of(model), kept, 0)
    fit(model, *map(part, data()), ROWS, epochs=1)
    assert_same_everywhere(state_of(model))


# --- callbacks -------------------------------------------------------------------------------------------------------


@on_two_ranks
def test_the_broadcast_comes_before_the_first_step_and_brings_the_optimizer(hvd):
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

    fit(model, *map(part, data()), ROWS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Look()])
    assert_close(seen[0], started, 0)
    assert_same_everywhere(state_of(model))


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
        with pytest.raises(InvalidArgumentError, match="no place to write to"):
            hvd.callbacks.BestModelCheckpoint().on_train_begin()


@on_two_ranks
def test_an_optimizer_that_is_not_wrapped_is_noticed(hvd):
    model = make_model()
    model.compile(optimizer=sgd(), loss="mse")
    with pytest.warns(UserWarning, match="does not reduce gradients"):
        fit(model, *map(part, data()), ROWS, epochs=1, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


# --- values and elastic state ----------------------------------------------------------------------------------------


def test_values(hvd):
    rank, ranks = WORLD.rank, WORLD.size
    value = np.arange(4, dtype=np.float32) + rank
    mean = np.arange(4) + (ranks - 1) / 2
    tensor = keras.ops.convert_to_tensor(value) if KERAS_3 else value
    for name, found, wanted in (
        ("array", hvd.allreduce(value, "a"), mean),
        ("tensor", hvd.allreduce(tensor), mean),
        ("number", hvd.allreduce(float(rank), op=Max), ranks - 1),
        ("sum", hvd.allreduce(tensor, op=Sum, prescale_factor=0.5), mean * ranks / 2),
        ("compressed", hvd.allreduce(tensor, compression=Compression.fp16), mean),
        ("gathered", hvd.allgather(tensor), np.concatenate([np.arange(4) + other for other in range(ranks)])),
        ("of the last", hvd.broadcast(tensor, ranks - 1), np.arange(4) + ranks - 1),
        ("scattered", hvd.reducescatter(tensor, op=Average), np.array_split(mean, ranks)[rank]),
    ):
        array = keras_array(found)
        assert array.dtype == np.float32, name
        np.testing.assert_allclose(array, wanted, err_msg=name)
    with pytest.raises(InvalidArgumentError, match="supersedes average"):
        hvd.allreduce(value, average=True, op=Sum)


@on_two_ranks
def test_elastic_state(hvd):
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    teacher, mean = make_model(seed=10 + WORLD.rank), keras.metrics.Mean()
    mean.update_state(float(WORLD.rank))
    state = hvd.elastic.KerasState(model, epoch=WORLD.rank, batch=0, others=[teacher, {"mean": mean}])
    state.sync()
    assert state.others[0] is teacher
    assert state.others[1]["mean"] is mean
    assert_same_everywhere(teacher.get_weights())
    assert float(mean.result()) == 0
    mean.update_state(7.0)
    state.restore()
    assert float(mean.result()) == 0
    assert_same_everywhere(state_of(model))
    assert state.epoch == 0
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
    ]
    fit(model, *map(part, data()), ROWS, epochs=EPOCHS, callbacks=callbacks)
    committed = state_of(model)
    assert (state.epoch, state.batch) == (EPOCHS, 0)
    assert_same_everywhere(committed)
    fit(model, *map(part, data()), ROWS, epochs=1)
    state.epoch = 99
    assert not np.array_equal(model.get_weights()[0], committed[0])
    state.restore()
    assert_close(state_of(model), committed, 0)
    assert state.epoch == EPOCHS
    with pytest.raises(InvalidArgumentError, match="a model whose variables exist"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.skipif(BACKEND == "tensorflow" or WORLD.rank > 0, reason="nothing to leave out, or another rank looks")
def test_tensorflow_is_not_imported_where_keras_does_not_run_on_it():
    program = "import sys, hvdlite.keras.backends as b; b.current_backend(); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_working_folder_stays_clean():
    assert not [name for name in os.listdir() if name.startswith("unset")]
