"""Tests of hvdlite.keras for all backends: shard=True has the bits of training without; other files choose the backend."""

import copy

import keras
import numpy as np
import pytest
from keras_training import (
    BACKEND,
    ROWS,
    adam,
    assert_close,
    data,
    fit,
    keras_array,
    make_model,
    needs_keras_3,
    on_two_ranks,
    part,
    sgd,
    variables_of,
)
from support.world import WORLD

from hvdlite import InvalidArgumentError, MismatchError, OperationTimeoutError, UnsupportedError, allreduce


def scaled():
    return keras.mixed_precision.LossScaleOptimizer(adam(), initial_scale=8.0)


OPTIMIZERS = {
    "adam": adam,
    "averages": lambda: sgd(use_ema=True, ema_overwrite_frequency=3, weight_decay=0.1),
    "scaled": scaled,
}
OPTIMIZERS["accumulation"] = lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1)
if hasattr(keras.optimizers, "Lamb"):
    OPTIMIZERS["lamb"] = lambda: keras.optimizers.Lamb(0.01)
if BACKEND == "torch":
    names = ["SGD", "AdamW", "Nadam", "Adafactor", "Lion", "Ftrl", "Muon", "ScheduleFreeAdamW", "RMSprop", "Adagrad", "Adamax"]
    OPTIMIZERS |= {
        name: lambda name=name: getattr(keras.optimizers, name)(0.01) for name in names if hasattr(keras.optimizers, name)
    }
CASES = [(name, "auto") for name in OPTIMIZERS] + ([("accumulation", True)] if BACKEND == "tensorflow" else [])
# On torch those of which each has another kind of slots or of steps; the others, in slices, have slots like these.
QUICK = [("accumulation", "auto")]
if BACKEND == "torch":
    names = ["adam", "averages", "scaled", "Nadam", "Adafactor", "Ftrl", "Muon", "ScheduleFreeAdamW"]
    QUICK += [(name, "auto") for name in names]


def train(hvd, make, epochs=2, **options):
    """A model that all ranks have trained on their parts; the layers' sizes differ, so that owners keep different numbers."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(make(), **options), loss=keras.losses.MeanSquaredError())
    fit(model, *map(part, data()), ROWS, epochs=epochs)
    return model


def saved(model, tmp_path):
    """What any process reads from the file that this rank has saved."""
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert plain.optimizer.__class__ is model.optimizer.__class__
    return plain


def arrays(model):
    return model.get_weights() + [np.asarray(keras_array(variable)) for variable in variables_of(model.optimizer)]


def elements_kept(optimizer):
    return sum(int(np.prod(variable.shape)) for variable in variables_of(optimizer))


@pytest.mark.parametrize(
    ("name", "jit"), [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
@needs_keras_3
def test_sharded_training_has_the_bits_of_training_without(hvd, tmp_path, name, jit):
    models = [train(hvd, OPTIMIZERS[name], shard=shard) for shard in (False, True)]
    whole, kept = (elements_kept(model.optimizer) for model in models)
    if name == "adam":  # one rank alone keeps the two moments of 35 elements; the last bias is too small to matter
        assert WORLD.allreduce(whole - kept) == 2 * 35 * (WORLD.size - 1)
    plain = [saved(model, tmp_path) for model in models]
    accumulated = getattr(plain[0].optimizer, "_accumulated_gradients", [])
    assert_close(arrays(plain[1]), arrays(plain[0]), 0)
    assert len(accumulated) == (4 if name == "accumulation" else 0)


@needs_keras_3
def test_a_saved_state_goes_on_sharded_or_not(hvd, tmp_path):
    file = tmp_path / "after_two.keras"
    train(hvd, adam, shard=True).save(file)
    wanted = train(hvd, adam, epochs=4)
    for shard in (True, False):
        model = keras.models.load_model(file)
        hvd.DistributedOptimizer(model.optimizer, shard=shard)  # with the state that it has
        fit(model, *map(part, data()), ROWS)
        assert_close(arrays(saved(model, tmp_path)), arrays(wanted), 0)
    model, plain = train(hvd, adam, epochs=1, shard=True), keras.models.load_model(file)
    model.set_weights(plain.get_weights())
    model.optimizer.set_weights([keras_array(variable) for variable in variables_of(plain.optimizer)])
    fit(model, *map(part, data()), ROWS)
    assert_close(arrays(saved(model, tmp_path)), arrays(wanted), 0)


@needs_keras_3
def test_a_state_that_one_rank_alone_has_loaded_is_named(hvd, tmp_path):
    file = tmp_path / "model.keras"
    train(hvd, adam, shard=True).save(file)
    model = keras.models.load_model(file)
    if WORLD.rank:
        model.compile(optimizer=adam(), loss="mse")
    hvd.DistributedOptimizer(model.optimizer, shard=True)
    with pytest.raises(Exception, match="iterations of the state when it was sharded"):
        fit(model, *map(part, data()), ROWS)


@on_two_ranks
@needs_keras_3
def test_another_state_on_one_rank_is_named(hvd):
    model = train(hvd, adam, epochs=1, shard=True)
    state = list(model.optimizer._hvdlite_shards.whole(model.optimizer.variables))
    state[0] = np.asarray(state[0]) + WORLD.rank
    with pytest.raises(MismatchError, match="must load the same state on all ranks: iterations"):
        model.optimizer.set_weights(state)
    with pytest.raises(InvalidArgumentError, match=r"has shape \(3, 7\), but \(2,\) is loaded"):
        model.optimizer.set_weights([np.zeros(2) if np.shape(each) == (3, 7) else each for each in state])


@needs_keras_3
@pytest.mark.skipif(BACKEND == "jax", reason="XLA's threads live on: while they may ask for operations no deadlock is found")
def test_a_rank_that_saves_alone_is_named(hvd, tmp_path):
    model = train(hvd, adam, epochs=1, shard=True)

    def part_ways():
        if WORLD.rank == 0:
            model.save(tmp_path / "model.keras")
        else:
            allreduce(np.ones(1), name="meanwhile")

    with pytest.raises(OperationTimeoutError, match=r"rank 0 waits for broadcast of 'keras_.*state"):
        part_ways()


@needs_keras_3
def test_the_broadcast_and_the_check_leave_slots_alone(hvd, tmp_path):
    model = make_model(WORLD.rank)
    model.compile(optimizer=hvd.DistributedOptimizer(adam(), shard=True), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, *map(part, data()), ROWS, callbacks=[callback])
    fit(model, *map(part, data()), ROWS, callbacks=[callback])
    everyone = WORLD.allgather([array.tobytes() for array in arrays(saved(model, tmp_path))])
    assert all(mine == everyone[0] for mine in everyone)


class InNoList(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.buffers = {number: self.add_variable_from_reference(each, "buffer") for number, each in enumerate(variables)}


@on_two_ranks
@needs_keras_3
def test_what_does_not_go_with_sharding_is_refused(hvd, tmp_path):
    model = train(hvd, adam, epochs=1, shard=True)
    optimizer = model.optimizer
    with pytest.raises(InvalidArgumentError, match="shard must be True or False"):
        hvd.DistributedOptimizer(adam(), shard=1)
    for call, text in [
        (lambda: hvd.DistributedOptimizer(optimizer), "cannot be wrapped again"),
        (lambda: copy.deepcopy(optimizer), "cannot be pickled or copied"),
        (lambda: model.save(tmp_path / "model.h5"), "cannot be saved in this format"),
        (lambda: optimizer.register_local_var(model.weights[0]), "variables that each rank trains for itself"),
        (lambda: hvd.elastic.KerasState(model), "KerasState cannot keep an optimizer with shard=True"),
        (lambda: fit(model, *map(part, data()), ROWS, callbacks=[best(hvd, tmp_path, False)]), "saves on rank 0 alone"),
        (lambda: fit(model, *map(part, data()), ROWS, callbacks=[best(hvd, tmp_path, True)]), "saves on rank 0 alone"),
        (lambda: train(hvd, lambda: InNoList(0.1), shard=True), r"does not work with InNoList: its variable '.*buffer'"),
    ]:
        with pytest.raises(UnsupportedError, match=text):
            call()
    if hasattr(keras.optimizers, "MultiOptimizer"):
        several = keras.optimizers.MultiOptimizer(adam())
        with pytest.raises(UnsupportedError, match="MultiOptimizer"):
            hvd.DistributedOptimizer(several, shard=True)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with pytest.raises(UnsupportedError, match=r"tf\.train\.Checkpoint cannot save"):
            tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))


def best(hvd, tmp_path, weights_only):
    file = tmp_path / ("best.weights.h5" if weights_only else "best.keras")
    return hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(file), save_weights_only=weights_only)


@needs_keras_3
def test_ranks_that_differ_in_it_are_named(hvd):
    with pytest.raises(Exception, match="shard"):
        train(hvd, adam, epochs=1, shard=WORLD.rank == 0)
