"""Tests of hvdlite.keras for all backends: training is that of one process; the files beside this one choose the backend."""

import functools
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras_training import (
    BACKEND,
    EPOCHS,
    KERAS_3,
    ROWS,
    SGD,
    STEPS,
    adam,
    assert_close,
    assert_same_everywhere,
    data,
    fit,
    keras_array,
    make_model,
    needs_keras_3,
    on_two_ranks,
    part,
    sgd,
    state_of,
    train_alone,
    train_together,
)
from support.world import WORLD, on_all_ranks

from hvdlite import Compression, InvalidArgumentError, Max, MismatchError, Sum, UnsupportedError, stats

# --- the same training as one process with the whole batch ----------------------------------------------------------

OPTIMIZERS = {
    "adam": adam,
    "clipnorm": lambda: sgd(clipnorm=0.1),
    "global_clipnorm": lambda: sgd(global_clipnorm=0.1, use_ema=True),
}
if KERAS_3:
    OPTIMIZERS["accumulation"] = lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.1)
# On CPUs "auto" compiles on JAX, and makes a graph on TensorFlow. (For torch see test_keras_torch_compiled.py.)
CASES = [(name, "auto") for name in OPTIMIZERS]
if BACKEND == "tensorflow":
    CASES += [(name, True) for name in ("adam", list(OPTIMIZERS)[-1])]
if WORLD.size > 2:
    CASES = [("clipnorm", "auto"), CASES[-1]]


# Compiling costs seconds a case: where that is so, only the last optimizer, which has most, is not among the slow tests. XLA
# has a loop of its own in test_keras_tensorflow.py.
QUICK = CASES if BACKEND == "torch" or WORLD.size > 2 else [(list(OPTIMIZERS)[-1], "auto")]


@pytest.mark.parametrize(
    ("name", "jit"), [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_training_is_that_of_one_process(hvd, name, jit):
    wanted = train_alone(OPTIMIZERS[name], jit_compile=jit)
    model = train_together(hvd, hvd.DistributedOptimizer(OPTIMIZERS[name]()), jit_compile=jit)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), wanted)


@on_two_ranks
@pytest.mark.parametrize("options", [{"run_eagerly": True}] + [{"jit_compile": False}] * (BACKEND == "jax"), ids=str)
def test_steps_that_are_not_compiled(hvd, options):
    model = train_together(hvd, hvd.DistributedOptimizer(sgd()), epochs=1, **options)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(sgd, epochs=1))


OPTIONS = {
    "predivided": ({"gradient_predivide_factor": 2.0, "num_groups": 3}, 2e-6),
    "sum": ({"op": Sum, "groups": 2}, 2e-6),
    "bf16": ({"compression": Compression.bf16}, 0.02),
    "int8": ({"compression": Compression.int8(between="ranks")}, 0.02),
    "auto": ({"compression": Compression.auto}, 2e-6),
}
SLOW_OPTIONS = ("predivided", "sum", "bf16")  # on other backends than torch


@on_two_ranks
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] if BACKEND != "torch" and each in SLOW_OPTIONS else []) for each in OPTIONS],
)
def test_options(hvd, name):
    options, tolerance = OPTIONS[name]
    rate = SGD["learning_rate"] / (WORLD.size if "op" in options else 1)
    coded = stats().coded_bytes
    with pytest.warns(DeprecationWarning, match="replaced by `groups`") if "num_groups" in options else nullcontext():
        optimizer = hvd.DistributedOptimizer(sgd(learning_rate=rate), **options)
    model = train_together(hvd, optimizer)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(sgd), tolerance)
    assert (stats().coded_bytes > coded) == (name == "int8")


@on_two_ranks
def test_groups_of_variables(hvd):
    model = make_model()
    first, second, third, _ = model.trainable_variables
    optimizer = hvd.DistributedOptimizer(sgd(), groups=[[third, first], [second]])
    model.compile(optimizer=optimizer, loss="mse")
    fit(model, *map(part, data()), ROWS)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(sgd))
    with pytest.raises(InvalidArgumentError, match="only appear once"):
        hvd.DistributedOptimizer(sgd(), groups=[[third], [third]])


@on_two_ranks
@needs_keras_3
def test_backward_passes_per_step(hvd):
    """The sum of the passes; with average_aggregated_gradients it is Keras's own mean, see above."""
    wanted = train_alone(functools.partial(sgd, learning_rate=0.2, gradient_accumulation_steps=2))
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    model = train_together(hvd, optimizer)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), wanted)
    averaging = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2, average_aggregated_gradients=True)
    assert (averaging.gradient_accumulation_steps, averaging._hvdlite.settings.factor) == (2, 1.0)
    with pytest.raises(InvalidArgumentError, match="accumulates 2 passes already"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=4)
    built = sgd()
    built.build(model.trainable_variables)
    with pytest.raises(InvalidArgumentError, match="is built already"):
        hvd.DistributedOptimizer(built, backward_passes_per_step=4)


@on_two_ranks
@pytest.mark.skipif(KERAS_3, reason="for Keras 3 there is test_backward_passes_per_step")
@pytest.mark.parametrize("average", [False, True])
def test_backward_passes_per_step_of_keras_2(hvd, average):
    """Two batches in one, whose mean loss has the mean of their gradients."""
    model = make_model()
    rate = 0.2 if average else 0.1
    optimizer = keras.optimizers.SGD(rate)
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2, average_aggregated_gradients=average),
        loss="mse",
    )
    fit(model, *map(part, data()), ROWS)
    alone = make_model()
    alone.compile(optimizer=keras.optimizers.SGD(0.2), loss="mse")
    fit(alone, *data(), 2 * ROWS * WORLD.size)
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), alone.get_weights())
    assert int(optimizer.iterations) == EPOCHS * STEPS  # passes, as with Horovod


@needs_keras_3
def test_accumulated_gradients_are_reduced_once(hvd, monkeypatch):
    reduced = []
    optimizer = hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=STEPS), start_check="off")
    own = type(optimizer)._hvdlite._backend
    monkeypatch.setattr(
        type(own), "reduce_gradients", lambda self, step: reduced.append(len(step.gradients)) or list(step.gradients)
    )
    train_together(hvd, optimizer, run_eagerly=BACKEND != "jax", epochs=2)
    if BACKEND == "jax":  # traced once, in a branch that is run when the step is complete
        assert reduced == [4]
    else:
        assert reduced == [4, 4]


@on_two_ranks
@pytest.mark.skipif(BACKEND != "jax", reason="only Keras on JAX has stateless_apply")
@pytest.mark.parametrize("jit", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_loop_of_the_user_with_stateless_apply(hvd, jit):
    import jax

    model = make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    x, y = part(data()[0]), part(data()[1])

    def loss(trainable, x, y):
        outputs, _ = model.stateless_call(trainable, [], x)
        return ((outputs - y) ** 2).mean()

    def step(trainable, state, x, y):
        return optimizer.stateless_apply(state, jax.grad(loss)(trainable, x, y), trainable)

    step = jax.jit(step) if jit else step
    trainable = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in optimizer.variables]
    gradients = [np.asarray(each) for each in jax.grad(loss)(trainable, x, y)]
    wanted = [
        np.asarray(start) - 0.1 * np.mean(found, axis=0)
        for start, found in zip(trainable, zip(*WORLD.allgather(gradients), strict=True), strict=True)
    ]
    trainable, state = step(trainable, state, x, y)
    assert_close([np.asarray(each) for each in trainable], wanted)
    trainable, state = step(trainable, state, x, y)
    assert_same_everywhere([np.asarray(each) for each in trainable])


# --- mixed precision -------------------------------------------------------------------------------------------------


def scaled_sgd():
    # So that neither the whole batch nor a part of it overflows, which would be another step that is skipped.
    return keras.mixed_precision.LossScaleOptimizer(sgd(), initial_scale=64.0)


@pytest.mark.usefixtures("mixed_float16")
def test_mixed_precision_is_that_of_one_process(hvd, tmp_path):
    optimizer = hvd.DistributedOptimizer(scaled_sgd())
    model = train_together(hvd, optimizer)
    assert model.optimizer is optimizer  # compile() has not put another scaler around it
    assert_same_everywhere(state_of(model))
    assert_close(model.get_weights(), train_alone(scaled_sgd), 0.01)
    model.save(tmp_path / "mixed.keras")
    loaded = hvd.load_model(tmp_path / "mixed.keras")
    assert isinstance(loaded.optimizer, keras.mixed_precision.LossScaleOptimizer)
    fit(loaded, *map(part, data()), ROWS, epochs=1)
    assert_same_everywhere(state_of(loaded))


@pytest.mark.usefixtures("mixed_float16")
def test_an_overflow_on_one_rank_makes_all_skip(hvd):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd())
    assert isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = part(data()[0]), part(data()[1])
    broken = x.copy()
    if WORLD.rank == WORLD.size - 1:
        broken[0] = np.inf
    fit(model, x, y, ROWS, epochs=1)
    before, scale = model.get_weights(), float(keras_array(scale_of(model.optimizer)))
    fit(model, broken[:ROWS], y[:ROWS], ROWS, epochs=1)
    assert_close(model.get_weights(), before, 0)
    assert float(keras_array(scale_of(model.optimizer))) == scale / 2
    fit(model, x, y, ROWS, epochs=1)
    assert not np.array_equal(model.get_weights()[0], before[0])
    assert_same_everywhere(state_of(model))


def scale_of(optimizer):
    return optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale


@on_two_ranks
def test_a_loss_scaler_around_the_wrapper_is_refused(hvd, mixed_float16):
    unscaled = hvd.DistributedOptimizer(sgd(), auto_scale_loss=False)
    with pytest.raises(UnsupportedError, match="Put it inside: DistributedOptimizer"):
        make_model().compile(optimizer=unscaled, loss="mse")
    with pytest.raises(UnsupportedError, match="LossScaleOptimizer around"):
        keras.mixed_precision.LossScaleOptimizer(unscaled)


# --- local layers, process sets, several optimizers ------------------------------------------------------------------


@on_two_ranks
@pytest.mark.parametrize("scale", [True, pytest.param(False, marks=[pytest.mark.slow] if BACKEND != "torch" else [])])
def test_local_layers(hvd, scale):
    model = make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=model.layers[0], scale_local_gradients=scale
    )
    model.compile(optimizer=optimizer, loss="mse")
    x, y = part(data()[0])[:ROWS], part(data()[1])[:ROWS]
    before = model.get_weights()
    fit(model, x, y, ROWS, epochs=1)
    alone = make_model()
    alone.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    fit(alone, x, y, ROWS, epochs=1)
    share = WORLD.size if scale else 1
    wanted = [start + (end - start) / share for start, end in zip(before[:2], alone.get_weights()[:2], strict=True)]
    assert_close(model.get_weights()[:2], wanted)
    mean = [np.mean(found, axis=0) for found in zip(*WORLD.allgather(alone.get_weights()[2:]), strict=True)]
    assert_close(model.get_weights()[2:], mean)
    with pytest.raises(InvalidArgumentError, match=r"must be of keras\.layers\.Layer type"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=["dense"])


def test_only_the_process_set_trains_together(hvd):
    members = hvd.add_process_set(range(WORLD.size - 1))
    model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd(), process_set=members), loss="mse")
    fit(model, *map(part, data()), ROWS, epochs=1)
    everyone = WORLD.allgather(model.get_weights()[0].tobytes())
    assert len(set(everyone[:-1])) == 1
    assert everyone[-1] != everyone[0]
    assert hvd.remove_process_set(members)


@on_two_ranks
def test_two_models_with_layers_of_the_same_names(hvd):
    models = [make_model(), make_model()]
    for model in models:
        model.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    for _ in range(2):
        for model in models:
            fit(model, *map(part, data()), ROWS, epochs=1)
    for model in models:
        assert_same_everywhere(state_of(model))
        assert_close(model.get_weights(), train_alone(adam))


@on_two_ranks
def test_layers_that_this_rank_has_numbered_differently(hvd):
    for _ in range(WORLD.rank):
        keras.layers.Dense(1)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    fit(model, *map(part, data()), ROWS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_same_everywhere(state_of(model))


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_difference_between_the_models_is_named(hvd):
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(2 + WORLD.rank % 2, name="odd"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    with pytest.raises(MismatchError, match=r"odd/kernel.* is float32 \[3, 2\] on rank.*0.* but .*\[3, 3\] on rank") as caught:
        fit(model, *map(part, data()), ROWS, epochs=1)
    on_all_ranks(str(caught.value))


@on_two_ranks
@pytest.mark.skipif(BACKEND == "torch", reason="on torch a gradient that some ranks lack counts as zeros")
def test_a_gradient_that_one_rank_lacks_is_named(hvd):
    optimizer, model = hvd.DistributedOptimizer(sgd()), make_model()
    gradients = [keras.ops.zeros(each.shape) if KERAS_3 else each * 0 for each in model.trainable_variables]
    if WORLD.rank == 1:
        gradients[1] = None
    text = r"bias.* is float32 \[5\] on rank 0, but .*bias.* is float32 \[5\] without a gradient on rank 1"
    with pytest.raises(MismatchError, match=text) as caught:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    on_all_ranks(str(caught.value))


@on_two_ranks
def test_ranks_that_have_wrapped_other_numbers_of_optimizers_are_told(hvd):
    optimizer = hvd.DistributedOptimizer(sgd())
    if WORLD.rank == 0:
        optimizer = hvd.DistributedOptimizer(sgd())
    model = make_model()
    gradients = [keras.ops.zeros(each.shape) if KERAS_3 else each * 0 for each in model.trainable_variables]
    with pytest.raises(
        MismatchError, match=r"in use is number \d+ of those.* on rank 0, but .* number \d+ .* on rank 1"
    ) as caught:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    on_all_ranks(str(caught.value))
    if WORLD.rank:
        hvd.DistributedOptimizer(sgd())  # so that the next tests' are counterparts again


def test_arguments(hvd):
    for wrong, text in (
        ({"op": Max}, "only supports Average and Sum"),
        ({"op": Sum, "gradient_predivide_factor": 2.0}, "not supported with op"),
        ({"gradient_predivide_factor": -1.0}, "must be > 0"),
        ({"compression": "fp16"}, "methods compress and decompress"),
        ({"groups": 0}, "positive integer"),
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"process_set": hvd.ProcessSet([0])}, "has not been registered"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            hvd.DistributedOptimizer(sgd(), **wrong)
    with pytest.raises(InvalidArgumentError, match="wraps an optimizer of Keras"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(UnsupportedError, match=r"BroadcastGlobalVariablesCallback\(0\)"):
        hvd.broadcast_global_variables(0)
