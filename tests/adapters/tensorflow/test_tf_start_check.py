"""The ranks compare a tape's variables once they have been updated, eagerly and in functions."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
from hvdlite import errors
from hvdlite.tensorflow import start_check
from hvdlite.tensorflow.elastic import loss_in

RANKS = (2,)


class Line:
    """A model whose weights are `start`, with a step on data that `rank` reads."""

    def __init__(self, hvd, start, how, rank, **options):
        self.options = options
        self.weights = tf.Variable(tf.fill([3, 1], start), name="weights")
        self.bias = tf.Variable([start], name="bias")
        self.hvd = hvd
        self.generator = np.random.default_rng(rank)
        self.step = {"eager": self._step, "function": tf.function(self._step)}[how]

    def _step(self, inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ self.weights + self.bias - 1.0) ** 2)
        gradients = self.hvd.DistributedGradientTape(tape, **self.options).gradient(loss, [self.weights, self.bias])
        for variable, gradient in zip([self.weights, self.bias], gradients, strict=True):
            variable.assign_sub(0.1 * gradient)

    def train(self, steps):
        for _ in range(steps):
            self.step(tf.constant(self.generator.standard_normal((4, 3)), tf.float32))


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "hvdlite"]


@pytest.mark.parametrize("how", ["eager", "function"])
def test_variables_that_nobody_has_broadcast_are_an_error(hvd, how):
    model = Line(hvd, hvd.rank() + 1.0, how, hvd.rank())
    model.train(1)
    weights = model.weights.numpy()
    with pytest.raises((errors.MismatchError, tf.errors.OpError)) as raised:
        model.train(1)
    text = str(raised.value)
    assert (
        "the ranks do not train one model: after the first update, the parameter 'weights:0' (and 1 more) differs: element"
        in text
    )
    assert " on rank 0, but " in text
    assert " on rank 1. Broadcast the values of one rank" in text
    np.testing.assert_array_equal(model.weights.numpy(), weights)  # nothing was applied


@pytest.mark.parametrize("code", errors.ERRORS)
def test_an_error_of_the_comparison_has_in_a_function_the_class_that_ops_have(hvd, code, monkeypatch):
    """A deadlock, for example, must not look like the loss of a rank."""
    text = f"the comparison of rank {hvd.rank()} failed: allreduce of 'x' in process set 0"

    def fail(*_):
        raise errors.error_class(code)(text)

    monkeypatch.setattr(start_check._Check, "_round", fail)
    status = errors.ERRORS[code].tensorflow.title().replace("_", "")
    with pytest.raises(getattr(tf.errors, f"{status}Error")) as raised:
        Line(hvd, 1.0, "function", hvd.rank()).train(1)
    assert text in raised.value.message
    loss = isinstance(errors.error_class(code)(""), errors.PeerLostError | errors.AbortedError | errors.SystemFailure)
    assert (loss_in(raised.value) is not None) == (loss or code == errors.ErrorCode.INTERNAL)


@pytest.mark.parametrize("how", ["eager", "function"])
def test_a_broadcast_after_the_first_step_is_soon_enough(hvd, how, caplog):
    model = Line(hvd, hvd.rank() + 1.0, how, hvd.rank())
    with caplog.at_level(logging.WARNING, "hvdlite"):
        model.train(1)
        hvd.broadcast_variables([model.weights, model.bias], 0)
        model.train(4)
    assert lines(caplog) == []


def test_a_process_set_with_the_number_of_one_that_was_removed(hvd):
    """The check of the first one is not over."""
    model = Line(hvd, 1.0, "eager", hvd.rank())
    numbers = set()
    for _ in range(2):
        model.options = {"process_set": hvd.add_process_set([*range(hvd.size())])}
        numbers.add(model.options["process_set"].process_set_id)
        model.train(1)
        hvd.remove_process_set(model.options["process_set"])
    assert len(numbers) == 1


def test_passes_without_an_update_are_not_compared(hvd):
    """The variable is broadcast after three of them."""
    variable = tf.Variable([hvd.rank() + 1.0])
    for passes in range(5):
        with tf.GradientTape() as tape:
            loss = variable * variable
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        if passes == 2:
            hvd.broadcast_variables([variable], 0)
    np.testing.assert_array_equal(gradient, [2.0])


def train_in_a_session(hvd, steps, op=hvdlite.Average, broadcast=False, **options):
    """A TensorFlow 1 program; gives the weights after each step."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", initializer=[[hvd.rank() + 1.0], [2.0]])
        loss = tf.reduce_mean((tf.constant([[1.0, hvd.rank()]]) @ weights) ** 2)
        optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1), op=op, **options)
        train = optimizer.minimize(loss, var_list=[weights])
        broadcasts = hvd.broadcast_global_variables(0)
        found = []
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            if broadcast:
                session.run(broadcasts)
            for _ in range(steps):
                session.run(train)
                found.append(session.run(weights))
        return found


@pytest.mark.parametrize("op", [hvdlite.Average, hvdlite.Adasum])
def test_a_graph_of_tensorflow_1(hvd, op):
    steps_before = 0 if op == hvdlite.Adasum else 1
    train_in_a_session(hvd, steps_before, op)
    with pytest.raises(tf.errors.OpError) as raised:
        train_in_a_session(hvd, steps_before + 1, op)
    text = str(raised.value)
    assert (
        f"{'before' if op == hvdlite.Adasum else 'after'} the first update, the parameter 'weights:0' differs: element" in text
    )
    assert "give the session hvd.BroadcastGlobalVariablesHook(0)" in text


def test_a_graph_of_tensorflow_1_whose_variables_are_broadcast(hvd, caplog):
    with caplog.at_level(logging.WARNING, "hvdlite"):
        one, *others = hvd.allgather_object(train_in_a_session(hvd, 4, broadcast=True))
    for other in others:
        np.testing.assert_array_equal(one, other)
    assert lines(caplog) == []


def test_passes_that_are_added_up_in_a_graph_of_tensorflow_1(hvd):
    """The variables change in the second step, and are compared in the fourth."""
    train_in_a_session(hvd, 3, backward_passes_per_step=2)
    with pytest.raises(tf.errors.OpError, match="after the first update"):
        train_in_a_session(hvd, 4, backward_passes_per_step=2)


def test_what_a_graph_of_tensorflow_1_may_ask_for(hvd):
    train_in_a_session(hvd, 3, start_check="off")
    with pytest.raises(errors.UnsupportedError, match=r"start_check='broadcast' cannot assign.*BroadcastGlobalVariablesHook"):
        train_in_a_session(hvd, 0, start_check="broadcast")


def test_an_optimizer_of_tensorflow_1_in_eager_mode(hvd):
    variable = tf.Variable([hvd.rank() + 1.0], name="start")
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(errors.InvalidArgumentError, match="start_check"):
        hvd.DistributedOptimizer(plain, start_check="sometimes")
    optimizer = hvd.DistributedOptimizer(plain)  # still a plain one
    optimizer.minimize(lambda: variable * variable, var_list=[variable])
    with pytest.raises(errors.MismatchError, match="after the first update, the parameter 'start:0' differs"):
        optimizer.minimize(lambda: variable * variable, var_list=[variable])


@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("same_data", [True, False])
def test_equal_losses_on_all_ranks_are_a_warning(hvd, how, same_data, caplog):
    model = Line(hvd, 1.0, how, 0 if same_data else hvd.rank())
    with caplog.at_level(logging.WARNING, "hvdlite"):
        model.train(5)
    found = [line for line in lines(caplog) if "every rank computed the same loss in each of the first 3 steps" in line]
    assert len(found) == (same_data and hvd.rank() == 0)
    assert all("dataset.shard(hvd.size(), hvd.rank())" in line for line in found)


def test_the_warning_of_a_process_set_counts_its_ranks(hvd, caplog):
    some = hvd.add_process_set([*range(hvd.size())])
    with caplog.at_level(logging.WARNING, "hvdlite"):
        Line(hvd, 1.0, "eager", 0, process_set=some).train(3)
    hvd.remove_process_set(some)
    assert ["dataset.shard(process_set.size(), process_set.rank())" in line for line in lines(caplog)] == [True][hvd.rank() :]
