"""Training with the tape and with optimizers of TensorFlow 1: as one process with the whole batch, the same bits everywhere."""

from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from support.codecs import INT8, reduced
from tf_reference import (
    FEATURES,
    WORDS,
    WORLD,
    Network,
    assert_close,
    assert_same_bits,
    descend,
    modes,
    own_gradients,
    part_of,
    whole_batch,
)

from hvdlite.errors import InvalidArgumentError, UnsupportedError

RANKS = (2,)
MORE_RANKS = (3,)
STEPS = 4
MODES = ("eager", "graph")

v1 = tf.compat.v1.train


def step_with(hvd, network, **options):
    """Gradients of a part of the batch through a distributed tape, and a step with them."""

    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = network.loss(inputs, targets)
        gradients = hvd.DistributedGradientTape(tape, **options).gradient(loss, network.variables)
        descend(network.variables, gradients)
        return [gradient for gradient in gradients if gradient is not None]

    return step


def check_tape(hvd, mode, tolerance=1e-12, **options):
    network, twin = Network(), Network()
    step = modes(step_with(hvd, network, **options))[mode]
    for number in range(STEPS):
        whole = whole_batch(number, hvd.size())
        found = step(*part_of(whole, hvd.rank()))
        expected = own_gradients(twin, whole)
        assert expected[-1] is None
        assert_close(found, expected[:-1], tolerance)
        assert_same_bits(found)
        descend(twin.variables, expected)
    assert_close(network.variables, twin.variables, tolerance)
    assert_same_bits(network.variables)


OPTIONS = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 2.0},
    "two groups": {"num_groups": 2},
    "no op": {"op": None},  # stands for Average, as in the collectives
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("mode", [*MODES, "compiled"])
def test_tape(hvd, mode, options):
    check_tape(hvd, mode, **options)


@pytest.mark.parametrize("mode", MODES)
def test_tape_with_groups_of_variables(hvd, mode):
    network = Network()
    first, _, second, _, unused = network.variables
    step = modes(step_with(hvd, network, groups=[[second, first], [unused]]))[mode]
    whole = whole_batch(0, hvd.size())
    expected = own_gradients(network, whole)[:-1]
    assert_close(step(*part_of(whole, hvd.rank())), expected)


@pytest.mark.parametrize("mode", MODES)
def test_tape_with_compression(hvd, mode):
    check_tape(hvd, mode, tolerance=3e-3, compression=hvd.Compression.fp16)


@pytest.mark.parametrize("mode", [*MODES, "compiled"])
def test_tape_with_a_codec(hvd, mode):
    def of_rank(rank):
        return np.cos(np.arange(300, dtype=np.float32) * (rank + 1))

    weights, codec = tf.Variable(tf.ones([300])), hvd.Compression.int8(64, "ranks")

    def step(factors):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * factors)
        return hvd.DistributedGradientTape(tape, compression=codec).gradient(loss, weights)

    found = modes(step)[mode](tf.constant(of_rank(hvd.rank())))
    wanted = reduced([of_rank(rank) for rank in range(hvd.size())], INT8, divisor=hvd.size())
    assert found.numpy().tobytes() == wanted.tobytes()


def test_tape_with_sum_and_its_twin_that_stays_local(hvd):
    network, batch = Network(), part_of(whole_batch(0, hvd.size()), hvd.rank())
    with tf.GradientTape(persistent=True) as tape:
        loss = network.loss(*batch)
    distributed = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    found = distributed.gradient(loss, network.variables)
    own = tape.gradient(loss, network.variables)  # the tape itself stays as it was
    everyone = WORLD.allgather([gradient.numpy() for gradient in own[:-1]])
    assert_close(found[:-1], [sum(parts) for parts in zip(*everyone, strict=True)])
    structured = distributed.gradient(loss, {"bias": network.variables[1]}, use_generic_names=True)
    assert_close([structured["bias"]], [found[1]])
    zero = distributed.gradient(loss, network.variables[-1], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert_close([zero], [tf.zeros_like(network.variables[-1])])
    assert_close([distributed.jacobian(loss, network.variables[1])], [own[1]])


def test_tape_that_is_entered_after_it_was_wrapped(hvd):
    network, whole = Network(), whole_batch(0, hvd.size())
    inputs, targets = part_of(whole, hvd.rank())
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = network.loss(inputs, targets)
    assert isinstance(tape, tf.GradientTape)
    assert_close(tape.gradient(loss, network.variables), own_gradients(network, whole))
    with pytest.raises(InvalidArgumentError, match="takes a plain"):
        hvd.DistributedGradientTape(tape)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_local_sources(hvd, mode, scale):
    network = Network()
    local = network.variables[1]

    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = network.loss(inputs, targets)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(local)
        local_pairs, global_pairs = tape.get_local_and_global_gradients(loss, network.variables)
        assert [source is local for source, _ in local_pairs] == [True]
        assert len(global_pairs) == len(network.variables) - 1
        return local_pairs[0][1], [gradient for _, gradient in global_pairs if gradient is not None]

    whole = whole_batch(0, hvd.size())
    part = part_of(whole, hvd.rank())
    kept, reduced = modes(step)[mode](*part)
    expected, own = own_gradients(network, whole), own_gradients(network, part)
    assert_close([kept], [own[1] / (hvd.size() if scale else 1)])
    assert_close(reduced, [expected[0], *expected[2:4]])


def test_partial_tape_keeps_the_gradients_of_its_layers(hvd):
    tf.keras.utils.set_random_seed(1)
    shared, local = tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.Dense(1)
    inputs = tf.constant(np.random.default_rng(hvd.rank()).standard_normal((3, FEATURES)), tf.float32)
    with pytest.raises(InvalidArgumentError, match="is no built layer"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=local)
    local(shared(inputs))
    weights = [*shared.trainable_weights, *local.trainable_weights]
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(tf.square(local(shared(inputs))))
    found = hvd.PartialDistributedGradientTape(tape, local_layers=[local], scale_local_gradients=False).gradient(loss, weights)
    own = [gradient.numpy() for gradient in tape.gradient(loss, weights)]
    averages = [sum(parts) / hvd.size() for parts in zip(*WORLD.allgather(own), strict=True)]
    assert_close(found, [*averages[:2], *own[2:]], 1e-6)


def embedding_loss(table, words):
    return tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, words) - 1.0))


@pytest.mark.parametrize("options", [{}, {"sparse_as_dense": True}], ids=["gathered", "dense"])
@pytest.mark.parametrize("mode", [*MODES, "compiled"])
def test_sparse_gradients(hvd, mode, options):
    """Words that several ranks have, and one rank twice; with as many of them on each rank the average is the whole batch's."""
    table = tf.Variable(np.random.default_rng(3).standard_normal((WORDS, 2)))

    def step(words):
        with tf.GradientTape() as tape:
            loss = embedding_loss(table, words)
        gradient = hvd.DistributedGradientTape(tape, **options).gradient(loss, table)
        assert isinstance(gradient, tf.Tensor) == (mode == "compiled" or bool(options))
        return gradient

    step = modes(step)[mode]
    for number in range(2):
        words = [[(rank + number) % WORDS, 2, 2] for rank in range(hvd.size())]
        with tf.GradientTape() as tape:
            loss = embedding_loss(table, tf.reshape(tf.constant(words), [-1]))
        expected = tf.convert_to_tensor(tape.gradient(loss, table))
        found = step(tf.constant(words[hvd.rank()]))
        assert_close([found], [expected])
        assert_same_bits([found])


def test_sparse_gradients_know_no_adasum(hvd):
    with tf.GradientTape() as tape:
        table = tf.Variable(tf.ones([WORDS, 2]))
        loss = embedding_loss(table, tf.constant([1]))
    with pytest.raises(UnsupportedError, match="sparse_as_dense=True"):
        hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, table)


@pytest.mark.parametrize("mode", MODES)
def test_process_set(hvd, mode):
    """Its members train on their parts; the last rank, outside of it, keeps its own gradients."""
    members = list(range(hvd.size() - 1))
    some = hvd.add_process_set(members)
    network = Network()
    step = modes(step_with(hvd, network, process_set=some))[mode]
    whole = whole_batch(0, len(members))
    inside = hvd.rank() in members
    part = part_of(whole, hvd.rank()) if inside else whole
    expected = own_gradients(network, whole)[:-1]
    assert_close(step(*part), expected)
    hvd.remove_process_set(some)


# --- optimizers of TensorFlow 1 ----------------------------------------------------------------------------------------------


def make_optimizer():
    return v1.MomentumOptimizer(0.05, 0.9)


def minimize(optimizer, network):
    """One pass, as a function of the batch."""

    def step(inputs, targets):
        optimizer.minimize(lambda: network.loss(inputs, targets), var_list=network.variables)

    return step


@pytest.mark.parametrize("mode", MODES)
def test_v1_optimizer(hvd, mode):
    network, twin = Network(), Network()
    optimizer, twin_optimizer = make_optimizer(), make_optimizer()
    wrapped = hvd.DistributedOptimizer(optimizer)
    assert wrapped is optimizer
    assert isinstance(wrapped, v1.MomentumOptimizer)
    step = modes(minimize(wrapped, network))[mode]
    for number in range(STEPS):
        whole = whole_batch(number, hvd.size())
        step(*part_of(whole, hvd.rank()))
        minimize(twin_optimizer, twin)(*whole)
    assert_close(network.variables, twin.variables)
    assert_same_bits(network.variables)
    assert_same_bits(optimizer.variables())
    with pytest.raises(InvalidArgumentError, match="wrapped already"):
        hvd.DistributedOptimizer(wrapped)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_v1_optimizer_adds_up_passes(hvd, mode, average):
    passes = 3
    network, twin = Network(), Network()
    optimizer, twin_optimizer = make_optimizer(), make_optimizer()
    hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, average_aggregated_gradients=average)
    step = modes(minimize(optimizer, network))[mode]
    for number in range(2):
        batches = [whole_batch(number * passes + turn, hvd.size()) for turn in range(passes)]
        before = [variable.numpy() for variable in network.variables]
        for turn, batch in enumerate(batches):
            step(*part_of(batch, hvd.rank()))
            if turn < passes - 1:
                assert_close(network.variables, before, 0)
        sums = [
            None if parts[0] is None else sum(parts) / (passes if average else 1)
            for parts in zip(*(own_gradients(twin, batch) for batch in batches), strict=True)
        ]
        twin_optimizer.apply_gradients(zip(sums, twin.variables, strict=True))
        assert_close(network.variables, twin.variables)
        assert_same_bits(network.variables)


@pytest.mark.parametrize("passes", [1, 2])
def test_v1_graph(hvd, passes):
    """A session, with the start broadcast by the hook."""
    wholes = [whole_batch(number, hvd.size()) for number in range(2)]
    parts = [[tensor.numpy() for tensor in part_of(whole, hvd.rank())] for whole in wholes]
    with tf.Graph().as_default():
        batch = [tf.compat.v1.placeholder(tf.float64, part.shape) for part in parts[0]]
        network = Network(seed=hvd.rank())
        options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
        optimizer = hvd.DistributedOptimizer(make_optimizer(), **options)
        steps = v1.get_or_create_global_step()
        train = optimizer.minimize(network.loss(*batch), global_step=steps, var_list=network.variables[:-1])
        with v1.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            for number in range(2 * passes):
                # Each batch as often as passes are added up, so that their mean is its own gradient.
                session.run(train, dict(zip(batch, parts[number // passes], strict=True)))
            found = session.run(network.variables)
            assert session.run(steps) == 2
    twin, twin_optimizer = Network(seed=1), make_optimizer()
    for whole in wholes:
        minimize(twin_optimizer, twin)(*whole)
    assert_close(found, twin.variables)
    assert_same_bits(found)


def test_optimizers_of_keras_are_handed_over(hvd):
    """With their operator, which Horovod drops."""
    variable = tf.keras.Variable([1.0, 2.0]) if hasattr(tf.keras, "Variable") else tf.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.SGD(1.0)
    assert hvd.DistributedOptimizer(optimizer, op=hvd.Sum, groups=1) is optimizer
    optimizer.apply_gradients([(tf.constant([1.0, 0.0]) * hvd.rank(), variable)])
    assert_close([variable], [tf.constant([1.0 - sum(range(hvd.size())), 2.0])])


def test_v1_adasum_is_of_steps(hvd):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum wants a power of two of ranks")
    network, twin = Network(), Network()
    optimizer = hvd.DistributedOptimizer(make_optimizer(), op=hvd.Adasum)
    part = part_of(whole_batch(0, hvd.size()), hvd.rank())
    tf.function(minimize(optimizer, network))(*part)
    start = [variable.numpy() for variable in twin.variables]
    minimize(make_optimizer(), twin)(*part)
    steps = [variable.numpy() - before for variable, before in zip(twin.variables, start, strict=True)]
    sums = hvd.grouped_allreduce(steps[:-1], op=hvd.Adasum)
    assert_close(network.variables[:-1], [before + total for before, total in zip(start, sums, strict=False)])
    assert_same_bits(network.variables)


def test_passes_of_other_variables_are_not_added_up(hvd):
    optimizer = hvd.DistributedOptimizer(make_optimizer(), backward_passes_per_step=2)
    one, other = tf.Variable(1.0), tf.Variable(1.0)
    optimizer.compute_gradients(lambda: 2.0 * one, [one])
    with pytest.raises(InvalidArgumentError, match="every pass must have gradients of the same variables"):
        optimizer.compute_gradients(lambda: 2.0 * other, [other])


def test_passes_begin_anew_after_a_reduction_that_failed(hvd):
    class FailsOnce(hvd.Compression.none):
        failures = 0

        @classmethod
        def compress(cls, tensor):
            cls.failures += 1
            if cls.failures == 1:
                raise FloatingPointError("once")
            return tensor, None

    variable = tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(v1.GradientDescentOptimizer(1.0), backward_passes_per_step=2, compression=FailsOnce)
    for number in range(4):
        with pytest.raises(FloatingPointError) if number == 1 else nullcontext():
            optimizer.minimize(lambda number=number: variable * (hvd.rank() + number), var_list=[variable])
    mean = sum(range(hvd.size())) / hvd.size()
    assert variable.numpy() == 1.0 - (2 * mean + 2 + 3)  # of the last two passes


def test_arguments_are_refused_at_once(hvd):
    plain = make_optimizer()
    with pytest.raises(InvalidArgumentError, match="op != Average"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(InvalidArgumentError, match="op=Average, op=Sum or op=Adasum, not Min"):
        hvd.DistributedOptimizer(plain, op=hvd.Min)
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step must be > 0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(InvalidArgumentError, match="groups should be"):
        hvd.DistributedOptimizer(plain, groups=-1)
    with pytest.raises(ValueError, match="doesn't inherit from either legacy TensorFlow or Keras optimizer"):
        hvd.DistributedOptimizer(object())
    assert type(plain) is v1.MomentumOptimizer
    table = tf.Variable(tf.ones([WORDS, 2]))
    adding = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    with pytest.raises(UnsupportedError, match="sparse_as_dense"):
        adding.minimize(lambda: embedding_loss(table, tf.constant([1])), var_list=[table])
