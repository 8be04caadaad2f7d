"""Keras on TensorFlow, whichever Keras it is."""

import functools
import importlib

import keras
import numpy as np
import pytest
from keras_callback_cases import *  # noqa: F403 - tests of all backends
from keras_consistency_cases import *  # noqa: F403 - comparisons
from keras_fit_cases import *  # noqa: F403 - others
from keras_model_cases import *  # noqa: F403 - the rest
from keras_shard_cases import *  # noqa: F403 - sharded state
from keras_start_cases import *  # noqa: F403 - and these
from keras_training import (
    KERAS_3,
    ROWS,
    STEPS,
    assert_close,
    assert_same_everywhere,
    data,
    fit,
    keras_array,
    make_model,
    part,
    state_of,
    train_alone,
    train_together,
    variables_of,
)
from keras_weight_cases import *  # noqa: F403 - and weights
from support.world import WORLD

from hvdlite import UnsupportedError

tf = pytest.importorskip("tensorflow")

RANKS = (2,)
MORE_RANKS = (3,)
ENVIRONMENT = {"KERAS_BACKEND": "tensorflow"}


class OwnStep(keras.Model):
    """A model with a training step as Keras's guides write it; its variables exist once it has seen a batch."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.way == "apply":
            self.optimizer.apply(gradients, self.trainable_variables)
        else:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("way", ["apply", "apply_gradients"] if keras.__version__ >= "3" else ["apply_gradients"])
def test_training_steps_of_the_user_and_models_that_are_built_late(hvd, way):
    keras.utils.set_random_seed(WORLD.rank)
    model = OwnStep(way)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, part(data()[0]), part(data()[1]), ROWS, callbacks=[callback])
    assert_same_everywhere(state_of(model))


class Adversaries(keras.Model):
    """Two networks with an optimizer each, as in Keras's guide to GANs; not built itself."""

    def __init__(self, hvd):
        super().__init__()
        self.networks = [make_model(seed=WORLD.rank), make_model(seed=WORLD.rank + 7)]
        self.critic_optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, use_ema=True))

    def call(self, x):
        return self.networks[0](x) + self.networks[1](x)

    def train_step(self, batch):
        for network, optimizer in zip(self.networks, (self.optimizer, self.critic_optimizer), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(batch[0]) - batch[1]) ** 2)
            variables = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def test_two_optimizers_of_a_model_resumed_on_rank_0(hvd):
    model = Adversaries(hvd)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), run_eagerly=True)
    optimizers = (model.optimizer, model.critic_optimizer)
    if WORLD.rank == 0:
        for network, optimizer in zip(model.networks, optimizers, strict=True):
            optimizer.build(network.trainable_variables)
            for variable in variables_of(optimizer):
                variable.assign(keras_array(variable) + 1)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append([keras_array(v) for v in (*model.weights, *(v for o in optimizers for v in variables_of(o)))])

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Look()]
    fit(model, part(data()[0]), part(data()[1]), ROWS, epochs=1, callbacks=callbacks)
    for state in (seen[0], seen[-1]):
        assert_same_everywhere(state)
    assert [int(keras_array(optimizer.iterations)) for optimizer in optimizers] == [1 + STEPS] * 2


@pytest.mark.parametrize("compiled", [{}, pytest.param({"autograph": False}, marks=pytest.mark.slow), {"jit_compile": True}])
def test_a_loop_of_the_user_in_a_tf_function(hvd, compiled):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    x, y = tf.constant(part(data()[0])), tf.constant(part(data()[1]))

    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    @tf.function(**compiled)
    def step(x, y):
        optimizer.apply_gradients(zip(gradients_of(x, y), model.trainable_variables, strict=True))

    mean = [np.mean(found, axis=0) for found in zip(*WORLD.allgather([g.numpy() for g in gradients_of(x, y)]), strict=True)]
    wanted = [weight - 0.1 * gradient for weight, gradient in zip(model.get_weights(), mean, strict=True)]
    step(x, y)
    assert_close(model.get_weights(), wanted)
    step(x, y)
    assert_same_everywhere(model.get_weights())


@pytest.mark.parametrize("as_dense", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_embeddings(hvd, as_dense):
    """Whose gradients are rows, different ones on each rank."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), sparse_as_dense=as_dense), loss="mse")
    words = np.random.default_rng(1).integers(0, 7, (WORLD.size, ROWS, 2))
    targets = np.arange(WORLD.size * ROWS, dtype=np.float32).reshape(WORLD.size, ROWS, 1)
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())
    alone.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    fit(alone, words.reshape(-1, 2), targets.reshape(-1, 1), ROWS * WORLD.size)
    fit(model, words[WORLD.rank], targets[WORLD.rank], ROWS)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), alone.get_weights())


@pytest.mark.skipif(KERAS_3, reason="only Keras 2 has them")
def test_legacy_optimizers(hvd):
    """Whose slots are made by the first step, so that the callback waits for it where the root has them already."""
    make = functools.partial(keras.optimizers.legacy.SGD, 0.1, momentum=0.9)
    model = train_together(hvd, hvd.DistributedOptimizer(make()))
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(make))
    if WORLD.rank:
        model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(model.optimizer if WORLD.rank == 0 else make()), loss="mse")
    fit(model, part(data()[0]), part(data()[1]), ROWS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_same_everywhere(state_of(model))


keras_2 = pytest.mark.skipif(KERAS_3, reason="for optimizers of Keras 2, as Horovod's are")


def gradients_of(variables, number=0):
    """This rank's: rank + 1 + number times (1, 2, ...)."""
    return [tf.fill(each.shape, (WORLD.rank + 1.0 + number) * place) for place, each in enumerate(variables, 1)]


def losses(variables):
    return lambda: tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, gradients_of(variables), strict=True)])


@keras_2
@pytest.mark.parametrize("legacy", [False, True])
def test_computed_gradients_are_reduced_once(hvd, legacy):
    """Sum would show it if `apply_gradients` added them up again; what it is given otherwise it reduces."""
    variables = [tf.Variable([0.0, 0.0]), tf.Variable(0.0)]
    make = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
    optimizer = hvd.DistributedOptimizer(make(1.0), op=hvd.Sum)
    total = sum(rank + 1.0 for rank in range(WORLD.size))
    pairs = optimizer._compute_gradients(losses(variables), variables)
    assert [variable is mine for (_, variable), mine in zip(pairs, variables, strict=True)] == [True, True]
    assert [np.ravel(gradient)[0] for gradient, _ in pairs] == [total, 2 * total]
    optimizer.apply_gradients(pairs)
    assert [np.ravel(variable)[0] for variable in variables] == [-total, -2 * total]
    optimizer.apply_gradients(zip(gradients_of(variables), variables, strict=True))
    assert [np.ravel(variable)[0] for variable in variables] == [-2 * total, -4 * total]
    optimizer.minimize(losses(variables), variables)
    assert [np.ravel(variable)[0] for variable in variables] == [-3 * total, -6 * total]


@keras_2
@pytest.mark.parametrize("traced", [False, True])
def test_passes_are_counted_as_horovod_counts_them(hvd, traced):
    variables = [tf.Variable([0.0, 0.0])]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2, op=hvd.Sum)
    assert optimizer._agg_helper.counter is None
    optimizer.build(variables)

    def pass_once():
        pairs = optimizer._compute_gradients(losses(variables), variables)
        optimizer.apply_gradients(pairs)

    step = tf.function(pass_once) if traced else pass_once
    total = sum(rank + 1.0 for rank in range(WORLD.size))
    for number in range(1, 6):
        step()
        assert variables[0].numpy().tolist() == [-(number // 2) * 2 * total] * 2
        assert int(optimizer._agg_helper.counter) == number % 2
        assert int(optimizer.iterations) == number


@keras_2
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_weights_and_those_of_accumulated_passes(hvd, passes, traced):
    variables = [tf.Variable([0.0, 0.0])]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=passes)
    optimizer.build(variables)

    def pass_once(weight):
        optimizer.weight = weight
        optimizer.apply_gradients(optimizer._compute_gradients(losses(variables), variables))

    step, wanted = tf.function(pass_once) if traced else pass_once, 0.0
    for turn in range(2):
        weights = np.array(
            [[rank + 3 * (number + turn) * (WORLD.size - rank) for rank in range(WORLD.size)] for number in range(passes)]
        )
        for number in range(passes):
            step(tf.constant(weights[number][WORLD.rank]))
        wanted -= passes * np.dot(weights.sum(0), np.arange(WORLD.size) + 1.0) / weights.sum()
        np.testing.assert_allclose(variables[0].numpy(), [wanted] * 2, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="weighted=True needs Keras 3"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), weighted=True)


def test_strategies_are_refused(hvd):
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope(), pytest.raises(UnsupportedError, match="leave the strategy out"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


@pytest.mark.skipif(not KERAS_3, reason="in Keras 2 they are the same")
def test_the_variable_of_tensorflow_inside_a_local_variable(hvd):
    variable = keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(variable.value)
    optimizer.apply([tf.constant([1.0 * WORLD.rank])], [variable])
    assert_close([keras_array(variable)], [np.array([1.0 - WORLD.rank / WORLD.size])])


def test_hvdlite_tensorflow_keras_has_the_same_names(hvd):
    door = importlib.import_module("hvdlite.tensorflow.keras")
    assert set(door.__all__) == set(hvd.__all__)
    for module in ("callbacks", "elastic"):
        assert set(getattr(door, module).__all__) == set(getattr(hvd, module).__all__)
