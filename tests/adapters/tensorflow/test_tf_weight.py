"""`weight=` of allreduces, tapes and optimizers: batches of unequal sizes, beside one process on the whole batch."""

import numpy as np
import pytest
import tensorflow as tf
from tf_reference import WORDS, WORLD, Network, assert_close, assert_same_bits, descend, modes, own_gradients, whole_batch

from hvdlite.errors import InvalidArgumentError

RANKS = (2,)
MORE_RANKS = (3,)
RANK, SIZE = WORLD.rank, WORLD.size
MODES = ("eager", "graph", "compiled")
TOTAL = sum(range(1, SIZE + 1))

v1 = tf.compat.v1


def parts(step, sizes):
    """This rank's rows, and all ranks'."""
    whole = [tensor[: sum(sizes)] for tensor in whole_batch(step, SIZE)]
    before = sum(sizes[:RANK])
    return [tensor[before : before + sizes[RANK]] for tensor in whole], whole


@pytest.mark.parametrize(
    ("mode", "place"), [("eager", "tape"), ("graph", "gradient"), pytest.param("compiled", "tape", marks=pytest.mark.slow)]
)
def test_training_is_that_of_one_process(hvd, mode, place):
    network, twin = Network(), Network()

    def step(inputs, targets, weight):
        with tf.GradientTape() as tape:
            loss = network.loss(inputs, targets)  # nan where there are no samples
        tape = hvd.DistributedGradientTape(tape, **({"weight": weight} if place == "tape" else {}))
        gradients = tape.gradient(loss, network.variables, **({"weight": weight} if place == "gradient" else {}))
        descend(network.variables, gradients)
        return [gradient for gradient in gradients if gradient is not None]

    step = modes(step)[mode]
    sizes_of_steps = [[5, 1, 3], [0, 4, 2], [4, 4, 4], [1, 0, 0]]
    for number, sizes in enumerate(sizes_of_steps[: None if mode == "eager" else 2]):  # each size is traced anew
        mine, whole = parts(number, sizes[:SIZE])
        weight = sizes[RANK] if mode == "eager" else tf.constant(sizes[RANK])
        found, expected = step(*mine, weight), own_gradients(twin, whole)
        assert_close(found, expected[:-1])
        assert_same_bits(found)
        descend(twin.variables, expected)
    assert_same_bits(network.variables)


@pytest.mark.parametrize("mode", MODES)
def test_all_weights_0_and_their_gradient(hvd, mode):
    """The gradient is that of the sum of all ranks' losses, each of which sees the mean."""

    def step(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            single, (_, second) = hvd.allreduce(x, weight=weight), hvd.grouped_allreduce([x, 2.0 * x], weight=weight)
            loss = tf.reduce_sum(single + second) * (RANK + 2.0)
        return single, second, tape.gradient(loss, x)

    step = modes(step)[mode]
    x = tf.fill([3], tf.constant(RANK + 1.0, tf.float64))
    single, second, gradient = step(x, tf.constant(RANK + 1))
    mean = sum(n * n for n in range(1, SIZE + 1)) / TOTAL
    slope = 3 * (RANK + 1) / TOTAL * sum(rank + 2.0 for rank in range(SIZE))
    for found, wanted in ((single, mean), (second, 2 * mean), (gradient, slope)):
        np.testing.assert_allclose(found, [wanted] * 3)
    single, second, gradient = step(x * np.nan, tf.constant(0))
    for found in (single, second, gradient):
        np.testing.assert_array_equal(found, np.zeros(3))


@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.slow)])
def test_rows_of_an_embedding(hvd, mode):
    table = tf.Variable(tf.ones([WORDS, 2]))
    chosen, weights = [[1, 0, 1], [2], [3, 3]][RANK], [0.0, 1.0, 2.0]

    @modes
    def step(weight):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, chosen)) * (np.nan if RANK == 0 else RANK + 1.0)
        gradient = hvd.DistributedGradientTape(tape, weight=weight).gradient(loss, table)
        return isinstance(gradient, tf.IndexedSlices), tf.convert_to_tensor(gradient)

    is_sparse, found = step[mode](tf.constant(weights[RANK]))
    wanted = np.zeros((WORDS, 2))
    wanted[2] = 2.0 / sum(weights[:SIZE])
    if SIZE > 2:
        wanted[3] = 2 * 3.0 * 2.0 / sum(weights)
    assert is_sparse
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.slow)])
def test_local_sources_get_their_share(hvd, mode):
    shared, local = tf.Variable([2.0, 2.0]), tf.Variable([1.0, 1.0])

    @modes
    def step(weight):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared * local * (np.nan if RANK == 0 else 1.0 + RANK))
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(local)
        pairs = tape.get_local_and_global_gradients(loss, [shared, local], weight=weight)
        return [gradient for ((_, gradient),) in pairs]

    mine, mean = step[mode](tf.constant(RANK))
    share = RANK / sum(range(SIZE))
    np.testing.assert_allclose(mine, [2.0 * (1.0 + RANK) * share] * 2, rtol=1e-6)
    np.testing.assert_allclose(mean, [sum(rank * (1.0 + rank) for rank in range(SIZE)) / sum(range(SIZE))] * 2, rtol=1e-6)


@pytest.mark.parametrize("passes", [1, 2])
def test_optimizers_of_sessions_add_the_weights_of_passes(hvd, passes):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("weight", initializer=np.zeros(2), use_resource=True)
        scale, weight = v1.placeholder(tf.float64, []), v1.placeholder(tf.int64, [])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes)
        assert optimizer.weight is None
        optimizer.weight = weight
        update = optimizer.minimize(tf.reduce_sum(variable) * scale)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        wanted = 0.0
        for step in range(2):
            weights = [[rank + 1 + 3 * (number + step) * (SIZE - rank) for rank in range(SIZE)] for number in range(passes)]
            for number in range(passes):
                session.run(update, {scale: RANK + 1.0 + number, weight: weights[number][RANK]})
            total, added = np.sum(weights, axis=0), [sum(rank + 1.0 + n for n in range(passes)) for rank in range(SIZE)]
            wanted -= np.dot(total, added) / total.sum()
            np.testing.assert_allclose(session.run(variable), [wanted] * 2)


def test_passes_without_a_weight_among_others(hvd):
    variable = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    optimizer.weight = RANK + 1
    optimizer.compute_gradients(lambda: variable * 2.0, [variable])
    optimizer.weight = None
    with pytest.raises(InvalidArgumentError, match="every pass has a weight, or none"):
        optimizer.compute_gradients(lambda: variable * 2.0, [variable])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_unequal_numbers_of_batches_end_with_join(hvd, mode):
    variable = tf.Variable([1.0, 1.0])

    @modes
    def step(weight):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape, weight=weight).gradient(loss, variable)

    for number in range(RANK + 1):
        found = step[mode](tf.constant(RANK + 2))
        present = range(number, SIZE)
        wanted = sum((rank + 1.0) * (rank + 2.0) for rank in present) / sum(rank + 2.0 for rank in present)
        np.testing.assert_allclose(found, [wanted] * 2, rtol=1e-6)
    hvd.join()


@pytest.mark.parametrize("op", ["Sum", "Adasum", "Min", "Max", "Product"])
def test_other_operators_refuse_a_weight(hvd, op):
    number, said = getattr(hvd, op), f"a weight needs op=Average, not {op}"
    for weight in (1, tf.constant(1)):
        with pytest.raises(InvalidArgumentError, match=said):
            hvd.allreduce([1.0], op=number, weight=weight)
        with pytest.raises(InvalidArgumentError, match=said):
            hvd.grouped_allreduce([[1.0]], op=number, weight=weight)
    if op in ("Sum", "Adasum"):
        with pytest.raises(InvalidArgumentError, match=said):
            hvd.DistributedGradientTape(tf.GradientTape(), op=number, weight=1)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=number)
        with pytest.raises(InvalidArgumentError, match=said):
            optimizer.weight = 1


def test_a_tape_that_refuses_a_weight_still_has_its_gradients(hvd):
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = variable * (RANK + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
        tape.gradient(loss, variable, weight=-1)
    assert tape.gradient(loss, variable, weight=1).numpy() == [(SIZE + 1) / 2]


def test_what_is_no_weight(hvd):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
    for bad in (tf.constant(-1), tf.constant(np.inf), tf.Variable(np.nan)):
        for tensor in (tf.ones(1), slices):
            with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
                hvd.allreduce(tensor, weight=bad)
    for bad in (-1, np.nan, True, "5"):
        with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
            hvd.allreduce([1.0], weight=bad)
    for bad in ([1.0, 2.0], True, "5"):
        with pytest.raises(InvalidArgumentError, match="a weight is one real number"):
            hvd.allreduce([1.0], weight=tf.constant(bad))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the weight is -1; a weight is finite and 0 or more"):
        tf.function(lambda weight: hvd.allreduce([1.0], weight=weight))(tf.constant(-1))
    unknown = tf.function(lambda weight: hvd.allreduce([1.0], weight=weight), input_signature=[tf.TensorSpec(None)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="a weight is one number, without dimensions"):
        unknown(tf.constant([1.0, 2.0]))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_rank_that_forgets_its_weight(hvd, mode):
    variable = tf.Variable([1.0])

    @modes
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable)
        return hvd.DistributedGradientTape(tape, weight=3 if RANK else None).gradient(loss, variable)

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"weighting differs: .*give every rank a weight"):
        step[mode]()
