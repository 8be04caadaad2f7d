"""Tests of hvdlite.keras for all backends: batches that differ in size between ranks, beside one process on the whole batch."""

import keras
import numpy as np
import pytest
from keras_training import BACKEND, assert_close, assert_same_everywhere, make_model, needs_keras_3, sgd, state_of
from support.world import WORLD

from hvdlite import HorovodInternalError, InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.keras.backends import current_backend

ROWS_OF_RANKS = [2, 6, 3][: WORLD.size]  # of each step's batch
STEPS_OF_EPOCH = 3


def whole(*shape):
    """All ranks' rows of an epoch, batch after batch."""
    rows = STEPS_OF_EPOCH * sum(ROWS_OF_RANKS)
    return np.random.default_rng(rows).standard_normal((rows, *shape)).astype(np.float32)


def mine(array):
    """This rank's rows of an epoch, batch after batch."""
    before = sum(ROWS_OF_RANKS[: WORLD.rank])
    batches = array.reshape(STEPS_OF_EPOCH, -1, *array.shape[1:])
    return batches[:, before : before + ROWS_OF_RANKS[WORLD.rank]].reshape(-1, *array.shape[1:])


def sequences():
    """A model of sequences with a mask, data whose ranks have different numbers of valid entries, and sample weights."""
    x, y = whole(4, 3), whole(4, 1)
    x[:, 3], x[::3, 1:] = 0, 0
    weights = np.abs(whole(4)) + 0.1
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4, 3)), keras.layers.Masking(), keras.layers.Dense(1)])
    return model, x, y, weights


REDUCTION = {"plain": "sum_over_batch_size", "masked and weighted": "mean_with_sample_weight"}
# Compiling takes seconds: each change runs one case in a compiled step, on JAX, where a step has the least freedom.
QUICK = {"torch": list(REDUCTION), "jax": ["masked and weighted"], "tensorflow": []}[BACKEND]


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in REDUCTION])
@needs_keras_3
def test_fit_is_that_of_one_process(hvd, case):
    """Each rank trains the model alone on the whole batches, too."""
    results = []
    for together in (False, True):
        if case == "plain":
            model, x, y, weights = make_model(), whole(3), whole(1), None
        else:
            model, x, y, weights = sequences()
        optimizer = hvd.DistributedOptimizer(sgd(), weighted=True) if together else sgd()
        model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(reduction=REDUCTION[case]))
        data = {"x": x, "y": y} | ({} if weights is None else {"sample_weight": weights})
        rows = sum(ROWS_OF_RANKS)
        if together:
            data, rows = {name: mine(array) for name, array in data.items()}, ROWS_OF_RANKS[WORLD.rank]
            validation = (x[:2], y[:2])  # whose losses do not count
        model.fit(**data, batch_size=rows, shuffle=False, epochs=2, verbose=0, validation_data=validation if together else None)
        results.append(model.get_weights())
    assert_same_everywhere(state_of(model))
    assert_close(results[1], results[0])


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@needs_keras_3
def test_what_a_loss_divides_by(reduction, masked, weighted):
    from hvdlite.keras.loss_weights import follow_losses, weight_of_last_loss

    follow_losses()
    loss = keras.losses.MeanAbsoluteError(reduction=reduction)
    _, x, y, weights = sequences()

    def product(rows):
        """Loss times weight: a sum over the rows."""
        layers = [keras.layers.Masking()] * masked + [keras.layers.Dense(1, kernel_initializer="ones")]
        prediction = x[rows]
        for layer in layers:
            prediction = layer(prediction)
        value = loss(y[rows], prediction, weights[rows] if weighted else None)
        return float(keras.ops.convert_to_numpy(value)) * float(weight_of_last_loss("the test"))

    parts = product(slice(0, 3)) + product(slice(3, None))
    assert parts == pytest.approx(product(slice(None)), rel=1e-5)


def apply(optimizer, variable, value, weight):
    """An update of a loop of one's own, with this rank's gradient and weight."""
    optimizer.weight = weight
    optimizer.apply([keras.ops.convert_to_tensor(np.full(2, value, np.float32))], [variable])
    return keras.ops.convert_to_numpy(variable)


def wrapped(hvd, **options):
    variable = keras.Variable(np.zeros(2, np.float32))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    optimizer.build([variable])
    return optimizer, variable


@needs_keras_3
def test_a_loop_of_the_user(hvd):
    optimizer, variable = wrapped(hvd)
    assert optimizer.weight is None
    wanted = 0.0
    for weights in ([3, 1, 5], [0, 2, 1], [0, 0, 0]):
        weight, total = weights[WORLD.rank], sum(weights[: WORLD.size])
        if WORLD.rank == 1:
            weight = keras.ops.convert_to_tensor(weight)
        found = apply(optimizer, variable, WORLD.rank + 1.0 if weights[WORLD.rank] else np.nan, weight)
        wanted -= sum(weights[rank] * (rank + 1.0) for rank in range(WORLD.size)) / (total or 1)
        np.testing.assert_allclose(found, [wanted] * 2, rtol=1e-6)
    found = apply(optimizer, variable, WORLD.rank + 1.0, None)
    np.testing.assert_allclose(found, [wanted - (WORLD.size + 1) / 2] * 2, rtol=1e-6)
    assert_same_everywhere([found])


@pytest.mark.skipif(BACKEND == "jax", reason="refused there")
@needs_keras_3
def test_the_weights_of_accumulated_passes_add_up(hvd):
    optimizer, variable = wrapped(hvd, backward_passes_per_step=2)
    wanted = 0.0
    for step in range(2):
        weights = np.array(
            [[rank + 1.0 + 3 * (number + step) * (WORLD.size - rank) for rank in range(WORLD.size)] for number in (0, 1)]
        )
        for number in (0, 1):
            found = apply(optimizer, variable, WORLD.rank + 1.0 + number, weights[number][WORLD.rank])
        added = [2 * rank + 3.0 for rank in range(WORLD.size)]
        wanted -= np.dot(weights.sum(0), added) / weights.sum()
        np.testing.assert_allclose(found, [wanted] * 2, rtol=1e-6)
    with pytest.raises(InvalidArgumentError, match="every pass has a weight, or none"):
        apply(optimizer, variable, 1.0, None)


@pytest.mark.skipif(BACKEND == "jax", reason="refused there")
@needs_keras_3
def test_weights_stay_beside_their_gradients_if_a_reduction_fails(hvd, monkeypatch):
    optimizer, variable = wrapped(hvd, backward_passes_per_step=2)

    def fail(*_args):
        raise HorovodInternalError("for the test")

    apply(optimizer, variable, WORLD.rank + 1.0, WORLD.rank + 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(type(current_backend()), "reduce_gradients", fail)
        with pytest.raises(HorovodInternalError):
            apply(optimizer, variable, 100.0, 100.0)
    found = apply(optimizer, variable, WORLD.rank + 2.0, 2.0)
    weights = [rank + 3.0 for rank in range(WORLD.size)]
    wanted = -np.dot(weights, [2 * rank + 3.0 for rank in range(WORLD.size)]) / sum(weights)
    np.testing.assert_allclose(found, [wanted] * 2, rtol=1e-6)


@pytest.mark.skipif(BACKEND != "jax", reason="done there")
@needs_keras_3
def test_accumulation_is_refused(hvd):
    optimizer, variable = wrapped(hvd, backward_passes_per_step=2)
    with pytest.raises(UnsupportedError, match="on JAX the weights of the passes of an accumulation"):
        apply(optimizer, variable, 1.0, 1)


@needs_keras_3
def test_what_does_not_go_with_a_weight(hvd):
    optimizer, _ = wrapped(hvd, op=hvd.Sum)
    with pytest.raises(InvalidArgumentError, match="a weight needs op=Average, not Sum"):
        optimizer.weight = 1
    with pytest.raises(InvalidArgumentError, match="a weight needs op=Average, not Sum"):
        wrapped(hvd, op=hvd.Sum, weighted=True)
    with pytest.raises(InvalidArgumentError, match="weighted must be True or False"):
        wrapped(hvd, weighted=3)
    optimizer, variable = wrapped(hvd)
    for bad in (-1, np.nan, True, "5"):
        with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
            optimizer.weight = bad
    optimizer.register_local_var(variable)
    with pytest.raises(UnsupportedError, match="pass scale_local_gradients=False"):
        apply(optimizer, variable, 1.0, 1)


@needs_keras_3
def test_losses_that_do_not_tell_their_weight(hvd):
    optimizer, variable = wrapped(hvd, weighted=True)
    with pytest.raises(InvalidArgumentError, match="the loss gives the weight"):
        optimizer.weight = 1
    gradient = keras.ops.zeros((2,))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    weights = np.arange(1.0, 3.0, dtype=np.float32)
    if BACKEND != "torch":  # what a traced step has told ends with the trace
        model.evaluate(np.ones((2, 1), np.float32), np.ones((2, 1), np.float32), sample_weight=weights, verbose=0)
    with pytest.raises(InvalidArgumentError, match=r"no loss of keras\.losses was computed since the last update"):
        optimizer.apply([gradient], [variable])

    class OneNumber(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean(y_true - y_pred)

    said = {"gives one number instead of one for each sample": OneNumber()}
    said["has reduction='sum', which divides by nothing"] = keras.losses.MeanSquaredError(reduction="sum")
    for text, loss in said.items():
        loss(np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32))
        with pytest.raises(InvalidArgumentError, match=text):
            optimizer.apply([gradient], [variable])


@needs_keras_3
def test_ranks_that_differ_in_weights(hvd):
    failures = (MismatchError,)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        failures += (tf.errors.FailedPreconditionError,)
    optimizer, variable = wrapped(hvd)
    with pytest.raises(failures, match=r"weighting differs: .*give every rank a weight"):
        apply(optimizer, variable, 1.0, 3 if WORLD.rank else None)
    optimizer, variable = wrapped(hvd, weighted=WORLD.rank == 0)
    keras.losses.MeanSquaredError()(np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32))
    with pytest.raises(MismatchError, match="weighted is"):
        optimizer.apply([keras.ops.zeros((2,))], [variable])
