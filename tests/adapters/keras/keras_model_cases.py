"""Tests of hvdlite.keras for all backends: saved models, values, elastic state; files beside this one choose the backend."""

import copy
import json
import os
import pickle
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
    TENSORFLOW_IS_IMPORTED,
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
    train_alone,
    variables_of,
)
from support.world import WORLD

from hvdlite import Average, Compression, InvalidArgumentError, Max, Sum

# What goes the same way on every backend. Each change runs it on torch, which is the quickest; the others are slow there. A
# file that declares SLOW itself replaces this list, as that of torch does.
SLOW = (
    "test_steps_that_are_not_compiled",
    "test_groups_of_variables",
    "test_backward_passes_per_step",
    "test_backward_passes_per_step_of_keras_2",
    "test_mixed_precision_is_that_of_one_process",
    "test_only_the_process_set_trains_together",
    "test_two_models_with_layers_of_the_same_names",
    "test_layers_that_this_rank_has_numbered_differently",
    "test_ranks_that_have_wrapped_other_numbers_of_optimizers_are_told",
    "test_saved_models_are_plain_and_go_on",
    "test_files_of_the_older_format",
    "test_custom_optimizers_are_saved_under_their_own_name",
    "test_wrapping_again_replaces_and_keeps_the_state",
    "test_optimizers_made_from_a_wrapped_one_are_wrapped_alike",
    "test_elastic_state",
    "test_elastic_state_of_a_model_with_two_optimizers",
    "test_the_broadcast_comes_before_the_first_step_of_each_fit_and_brings_the_optimizer",
    "test_layers_that_are_built_in_a_model_that_is_not_are_broadcast_before_its_first_step",
    "test_models_with_different_optimizers_are_refused",
    "test_local_variables_are_not_broadcast",
    "test_random_layers_go_on_differing_between_ranks",
    "test_metrics_are_averaged_for_history_and_later_callbacks",
    "test_warmup_and_schedule",
    "test_momentum_is_corrected_when_the_rate_changes",
    "test_the_best_checkpoint_is_written_by_rank_0",
    "test_an_optimizer_that_is_not_wrapped_is_noticed",
    "test_the_working_folder_stays_clean",
    "test_a_saved_state_goes_on_sharded_or_not",
    "test_a_state_that_one_rank_alone_has_loaded_is_named",
    "test_another_state_on_one_rank_is_named",
    "test_the_broadcast_and_the_check_leave_slots_alone",
    "test_what_does_not_go_with_sharding_is_refused",
    "test_what_a_loss_divides_by",
    "test_a_model_of_which_nothing_is_shared",
    "test_gradients_that_each_rank_accumulates_may_differ",
    "test_a_broadcast_after_the_first_batch_is_soon_enough",
    "test_the_check_broadcasts_them_where_it_is_told_to",
    "test_batches_that_the_program_asks_for_after_a_broadcast",
    "test_the_callback_counts_steps_and_not_accumulated_batches",
    "test_once_and_without_what_each_rank_has_by_itself",
    "test_slots_that_are_split_are_left_out",
    "test_local_variables_are_left_out",
)

# --- saving and loading ----------------------------------------------------------------------------------------------


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


@on_two_ranks
def test_optimizers_made_from_a_wrapped_one_are_wrapped_alike(hvd):
    optimizer = hvd.DistributedOptimizer(sgd(), op=Sum, name="mine")
    config = optimizer.get_config()
    made = [
        optimizer.from_config(config),
        type(optimizer).from_config(config),
        type(optimizer)(learning_rate=0.1, momentum=0.9),
    ]
    assert len({type(each)._hvdlite.settings.prefix for each in (optimizer, *made)}) == 4
    for each in made:
        settings = type(each)._hvdlite.settings
        assert (settings.name, settings.reduction.op, each.__class__) == ("mine", Sum, type(sgd()))
    model = model_with_state(made[0])
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), model_with_state(hvd.DistributedOptimizer(sgd(), op=Sum)).get_weights(), 0)


@on_two_ranks
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_and_pickles_are_of_the_plain_optimizer(hvd, copied):
    optimizer = hvd.DistributedOptimizer(sgd())
    found = copied(optimizer)
    assert type(found) is type(sgd())
    assert found.get_config() == optimizer.get_config()


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
        ("coded", hvd.allreduce(tensor, compression=Compression.fp8(between="hosts")), mean),
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
    fit(model, *map(part, data()), ROWS, epochs=EPOCHS + 1, initial_epoch=EPOCHS, callbacks=callbacks)
    assert state.epoch == EPOCHS + 1
    fit(model, *map(part, data()), ROWS, epochs=1, callbacks=callbacks)
    assert state.epoch == EPOCHS + 2
    with pytest.raises(InvalidArgumentError, match="a model whose variables exist"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


@on_two_ranks
def test_elastic_state_of_a_model_with_two_optimizers(hvd):
    """One of them has its slots on rank 0 only when the state is made, as from a checkpoint."""
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    model.critic = hvd.DistributedOptimizer(adam())
    if WORLD.rank == 0:
        model.critic.build(model.layers[1].trainable_variables)
    state = hvd.elastic.KerasState(model)
    state.sync()
    kept = [np.array(keras_array(variable)) for variable in variables_of(model.critic)]
    assert len(kept) > 4
    assert_same_everywhere(kept)
    for variable in variables_of(model.critic):
        variable.assign(keras_array(variable) + 1)
    state.restore()
    assert_close([keras_array(variable) for variable in variables_of(model.critic)], kept, 0)


@on_two_ranks
@pytest.mark.parametrize("scaled", [False, True])
def test_an_elastic_state_returns_to_the_first_values_of_slots(hvd, scaled):
    """Slots that are made after the state was saved. Adagrad's begin with 0.5 here, and averages with the weights."""
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    critic = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, use_ema=True)
    if scaled:
        critic = keras.mixed_precision.LossScaleOptimizer(critic, initial_scale=8.0)
    model.critic = hvd.DistributedOptimizer(critic)
    state = hvd.elastic.KerasState(model)
    state.sync()
    trained = model.layers[1].trainable_variables
    wanted = [np.array(keras_array(each)) for each in trained]
    model.critic.build(trained)
    first = {each.path: np.array(keras_array(each)) for each in variables_of(model.critic)}
    assert any(np.all(each == 0.5) for each in first.values())
    for variable in [*trained, *variables_of(model.critic)]:
        variable.assign(keras_array(variable) + 1)
    state.restore()
    assert_close([keras_array(each) for each in trained], wanted, 0)
    assert_close([keras_array(each) for each in variables_of(model.critic)], list(first.values()), 0)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="nothing to leave out")
def test_tensorflow_is_not_imported_where_keras_does_not_run_on_it():
    """Neither as the door opens, nor later: all tests run as where it is not installed."""
    assert not TENSORFLOW_IS_IMPORTED
    assert sys.modules["tensorflow"] is None


def test_the_working_folder_stays_clean():
    assert not [name for name in os.listdir() if name.startswith("unset")]


def test_a_model_of_which_nothing_is_shared(hvd):
    own, alone = make_model(), make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=own.layers, scale_local_gradients=False, groups=2
    )
    for model, made in ((own, optimizer), (alone, keras.optimizers.SGD(0.1))):
        model.compile(optimizer=made, loss="mse")
        fit(model, *map(part, data()), ROWS, epochs=1)
    assert_close(own.get_weights(), alone.get_weights())
