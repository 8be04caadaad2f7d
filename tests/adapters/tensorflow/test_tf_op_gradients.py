"""What flows back through the ops of the library: Horovod's convention, computed from all ranks' values with NumPy."""

import numpy as np
import pytest
from support.cases import Op
from support.world import REPEATS, WORLD

tf = pytest.importorskip("tensorflow")

from tensors import modes  # noqa: E402

from hvdlite.tensorflow import collective_ops as ops  # noqa: E402

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
RANKS = (2,)

pytestmark = pytest.mark.usefixtures("hvd")


def value(rank, rows=4, salt=0):
    """A rank's tensor, or (with a salt) the gradient that comes in on it."""
    generator = np.random.default_rng(100 * rank + salt)
    return generator.uniform(0.5, 1.5, (rows, 3))


def seeds(shapes):
    return [value(rank, rows, salt=7) for rank, rows in enumerate(shapes)]


def flowing_back(mode, call, tensor, seed):
    """The result of an op and the gradient of ``sum(result * seed)``."""

    @mode
    def run(x, incoming):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(x)
            loss = tf.reduce_sum(output * incoming)
        return output, tape.gradient(loss, x)

    output, gradient = run(tf.constant(tensor), tf.constant(seed))
    return output.numpy(), gradient.numpy()


@modes
def test_average_and_sum(mode):
    everyone, incoming = [value(rank) for rank in range(SIZE)], seeds([4] * SIZE)
    for op, combine in ((Op.AVERAGE, np.mean), (Op.SUM, np.sum)):
        arguments = {"op": int(op), "prescale": 0.5, "postscale": 3.0, "name": f"a{op}"}
        for _ in REPEATS:
            output, gradient = flowing_back(
                mode, lambda x, arguments=arguments: ops.allreduce(x, **arguments), everyone[RANK], incoming[RANK]
            )
            np.testing.assert_allclose(output, 1.5 * combine(everyone, axis=0))
            np.testing.assert_allclose(gradient, 1.5 * combine(incoming, axis=0))


@modes
def test_min_max_and_product(mode):
    """The gradient of the sum of all ranks' losses; ranks that hold the same extreme value share it."""
    everyone, incoming = [value(rank) for rank in range(SIZE)], seeds([4] * SIZE)
    for array in everyone:
        array[0] = 1.0  # a tie
    everyone[LAST][1] = 0.0  # one zero, which leaves the slope to the rank that has it
    total = sum(incoming)
    stacked = np.stack(everyone)
    for op, combine in ((Op.MIN, np.min), (Op.MAX, np.max)):
        call = {"op": int(op), "name": f"choose{op}"}
        output, gradient = flowing_back(
            mode, lambda x, call=call: ops.grouped_allreduce([x], **call)[0], everyone[RANK], incoming[RANK]
        )
        extreme = combine(stacked, axis=0)
        np.testing.assert_array_equal(output, extreme)
        chosen = stacked == extreme
        np.testing.assert_allclose(gradient, total * chosen[RANK] / chosen.sum(0))
    output, gradient = flowing_back(
        mode, lambda x: ops.allreduce(x, op=int(Op.PRODUCT), name="product"), everyone[RANK], incoming[RANK]
    )
    np.testing.assert_allclose(output, np.prod(stacked, axis=0))
    np.testing.assert_allclose(gradient, total * np.prod(np.delete(stacked, RANK, axis=0), axis=0))
    with pytest.raises(NotImplementedError, match="op=Max and scale factors has no gradient; multiply the tensor before"):
        flowing_back(mode, lambda x: ops.allreduce(x, op=int(Op.MAX), prescale=2.0, name="m"), everyone[RANK], incoming[RANK])


@modes
def test_allgather(mode):
    rows = [rank + 1 for rank in range(SIZE)]
    incoming = [value(rank, sum(rows), salt=7) for rank in range(SIZE)]
    mine = slice(sum(rows[:RANK]), sum(rows[: RANK + 1]))
    for call in (lambda x: ops.allgather(x, name="g"), lambda x: ops.grouped_allgather([x, x[:0]], name="g")[0]):
        _, gradient = flowing_back(mode, call, value(RANK, rows[RANK]), incoming[RANK])
        np.testing.assert_allclose(gradient, np.mean(incoming, axis=0)[mine])


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@modes
def test_broadcast(mode, stateful):
    incoming = seeds([4] * SIZE)
    output, gradient = flowing_back(
        mode, lambda x: ops.broadcast(x, root_rank=LAST, name="b", stateful=stateful), value(RANK), incoming[RANK]
    )
    np.testing.assert_array_equal(output, value(LAST))
    np.testing.assert_allclose(gradient, np.mean(incoming, axis=0) if RANK == LAST else np.zeros((4, 3)))


@modes
def test_alltoall(mode):
    """Rows that are not sent have no part in anything."""
    splits = [[(sender + receiver) % SIZE + 1 for receiver in range(SIZE)] for sender in range(SIZE)]
    sizes = [sum(counts) for counts in splits]
    received = [[splits[sender][receiver] for sender in range(SIZE)] for receiver in range(SIZE)]
    incoming = seeds([sum(counts) for counts in received])
    _, gradient = flowing_back(
        mode,
        lambda x: ops.alltoall(x, tf.constant(splits[RANK]), name="t")[0],
        value(RANK, sizes[RANK] + 2),
        incoming[RANK],
    )
    back = [incoming[to][sum(received[to][:RANK]) :][: splits[RANK][to]] for to in range(SIZE)]
    np.testing.assert_allclose(gradient, np.concatenate([*back, np.zeros((2, 3))]))


@modes
def test_reducescatter(mode):
    sizes = [2] * SIZE
    incoming = seeds(sizes)
    for op, factor in ((Op.AVERAGE, 1.0), (Op.SUM, SIZE)):
        arguments = {"op": int(op), "prescale": 0.5, "postscale": 3.0, "name": f"r{op}"}
        _, gradient = flowing_back(
            mode,
            lambda x, arguments=arguments: ops.grouped_reducescatter([x], **arguments)[0],
            value(RANK, 2 * SIZE),
            incoming[RANK],
        )
        np.testing.assert_allclose(gradient, 1.5 * factor * np.concatenate(incoming))


@modes
def test_groups_flow_back_as_groups(mode):
    @mode
    def run(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = ops.grouped_allreduce(tensors, name="group", op=int(Op.AVERAGE))
            loss = tf.reduce_sum(outputs[0]) * (RANK + 1.0) + tf.reduce_sum(outputs[1] ** 2)
        return tape.gradient(loss, tensors)

    for _ in REPEATS:
        first, second = run([tf.constant([1.0 + RANK]), tf.constant([[2.0, RANK]])])
        assert first.numpy().tolist() == [(SIZE + 1) / 2]
        assert second.numpy().tolist() == [[4.0, LAST]]


@pytest.mark.parametrize("way", ["eager", "function", "tape outside of the function", "graph of TensorFlow 1"])
def test_groups_with_tensors_that_have_no_gradient(way):
    others = [tf.constant, lambda value: tf.cast(value, tf.bool)]
    calls = {
        "sum": lambda x, other: ops.grouped_allreduce([other, x], name="sum")[1],
        "max": lambda x, other: ops.grouped_allreduce([other, x], op=int(Op.MAX), name="max")[1],
        "product": lambda x, other: ops.grouped_allreduce([other, x], op=int(Op.PRODUCT), name="product")[1],
        "gather": lambda x, other: ops.grouped_allgather([other, x], name="gather")[1],
        "scatter": lambda x, other: ops.grouped_reducescatter([other, x], name="scatter")[1],
    }
    wanted = {"sum": SIZE, "max": 1.0, "product": SIZE, "gather": 1.0, "scatter": SIZE}

    def gradient(call, x, make_other):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(call(x, make_other([1] * SIZE)))
        return tape.gradient(total, x)

    for kind, call in calls.items():
        for make_other in others:
            if way == "tape outside of the function":
                found = gradient(
                    tf.function(call), tf.ones([SIZE]), lambda value, make_other=make_other: make_other(value)
                ).numpy()
            elif way == "graph of TensorFlow 1":
                with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                    x = tf.compat.v1.placeholder_with_default([1.0] * SIZE, [SIZE])
                    total = tf.reduce_sum(call(x, make_other([1] * SIZE)))
                    found = session.run(tf.compat.v1.gradients(total, x)[0])
            else:
                run = gradient if way == "eager" else tf.function(gradient)
                found = run(call, tf.ones([SIZE]), make_other).numpy()
            assert found.tolist() == [wanted[kind]] * SIZE


@modes
def test_gradients_of_gradients(mode):
    """Of ``average(x) ** 3``: each step by the convention of the collective that it calls."""

    @mode
    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = ops.allreduce(x, op=int(Op.AVERAGE), name="second") ** 3
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    mean = (SIZE + 1) / 2
    first, second = run(tf.constant(RANK + 1.0))
    assert first.numpy() == pytest.approx(3 * mean**2)
    assert second.numpy() == pytest.approx(6 * mean)


def test_gradients_that_are_asked_for_twice_in_one_graph():
    @tf.function
    def run(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            total = ops.allreduce(x, name="twice")
            losses = [tf.reduce_sum(total * float(k + 1 + RANK)) for k in range(3)]
        return [tape.gradient(loss, x) for loss in losses]

    for _ in REPEATS:
        found = [gradient.numpy() for gradient in run(tf.constant(1.0))]
        assert found == [sum(k + 1 + rank for rank in range(SIZE)) for k in range(3)]


def test_gradients_that_are_asked_for_in_two_branches():
    """Both are in flight at a time, and each branch has a graph of its own."""

    @tf.function
    def run(x, yes):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            total = ops.allreduce(x, name="branches")
            losses = [total * 2.0, total * 3.0]
        return [tf.cond(yes, lambda loss=loss: tape.gradient(loss, x), lambda: x) for loss in losses]

    for _ in REPEATS:
        assert [gradient.numpy() for gradient in run(tf.constant(1.0), tf.constant(True))] == [2.0 * SIZE, 3.0 * SIZE]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.allreduce(x, name="branch"),
        lambda x: ops.allgather(x, name="branch"),
        lambda x: ops.broadcast(x, root_rank=LAST, name="branch"),
        lambda x: ops.alltoall(x, name="branch")[0],
        lambda x: ops.reducescatter(x, name="branch"),
    ],
    ids=["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"],
)
def test_gradients_through_a_branch(call):
    def gradient(x, yes):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.cond(yes, lambda: tf.reduce_sum(call(x) ** 2), lambda: tf.reduce_sum(x))
        return tape.gradient(loss, x)

    x = tf.range(2.0 * SIZE) + RANK
    run = tf.function(gradient)
    for _ in REPEATS:
        np.testing.assert_array_equal(run(x, tf.constant(True)), gradient(x, True))
    np.testing.assert_array_equal(run(x, tf.constant(False)), np.ones(2 * SIZE))


def test_gradients_through_a_function_in_a_branch():
    inner = tf.function(lambda x: ops.allreduce(x, name="inner") ** 2)

    @tf.function
    def run(x, yes):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.cond(yes, lambda: inner(x), lambda: x)
        return tape.gradient(loss, x)

    for _ in REPEATS:
        assert run(tf.constant(1.0), tf.constant(True)).numpy() == 2.0 * SIZE * SIZE


def test_a_collective_in_a_gradient_of_the_users(hvd):
    """TensorFlow numbers backward functions in each process."""

    def gradient(function):
        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(function)(x)
        return tape.gradient(y, x)

    for _ in range(RANK):
        gradient(lambda x: x**2)
    doubled = tf.custom_gradient(lambda x: (2.0 * x, lambda dy: 2.0 * hvd.allreduce(dy * (RANK + 1), name="mine", op=hvd.Sum)))
    assert gradient(doubled).numpy() == SIZE * (SIZE + 1)


def test_gradients_through_a_loop():
    @tf.function
    def run(x, factor):
        with tf.GradientTape() as tape:
            tape.watch(factor)
            y = x
            for _ in tf.range(4):
                y = ops.allreduce(y * factor, name="loop", op=int(Op.AVERAGE))
        return y, tape.gradient(y, factor)

    for _ in REPEATS:
        y, gradient = run(tf.constant(2.0), tf.constant(3.0))
        assert y.numpy() == 2 * 3**4
        assert gradient.numpy() == 2 * 4 * 3**3


@pytest.mark.parametrize("joined", ["the first", "the last"])
@modes
def test_a_rank_that_has_joined_has_gradients_of_zero(mode, joined):
    joined = 0 if joined == "the first" else LAST
    working = [each for each in range(SIZE) if each != joined]
    if joined == RANK:
        ops.join()
        return
    rows = np.arange(sum(each + 1 for each in working), dtype=np.float64)
    _, gradient = flowing_back(mode, lambda x: ops.allgather(x, name="g"), np.ones(RANK + 1), rows + 100.0 * RANK)
    begin = sum(each + 1 for each in working if each < RANK)
    mean = (len(working) * rows + 100 * sum(working)) / SIZE
    np.testing.assert_allclose(gradient, mean[begin : begin + RANK + 1])

    incoming = 10.0 * RANK + np.arange(len(working))
    place = working.index(RANK)
    for splits, unsent in ((tf.ones([SIZE], tf.int64), 1), (None, 0)):
        call = lambda x, splits=splits: ops.alltoall(x, splits, name="t")[0]  # noqa: E731
        _, gradient = flowing_back(mode, call, np.ones(SIZE + unsent), incoming)
        assert gradient.tolist() == [0 if to == joined else 10 * to + place for to in range(SIZE)] + [0] * unsent

    def scattered(x):
        first, second = ops.grouped_reducescatter([x, x[:1]], name="r")
        return tf.concat([first, second], 0)

    part = 2 if RANK == 0 else 1  # the first rank has the only row of the second tensor
    _, gradient = flowing_back(mode, scattered, np.ones((SIZE, 2)), np.full((part, 2), RANK + 1.0))
    wanted = [0 if owner == joined else SIZE * (owner + 1) for owner in range(SIZE)]
    assert gradient.tolist() == [[each * (2 if owner == 0 else 1)] * 2 for owner, each in enumerate(wanted)]
    ops.join()


@modes
def test_a_rank_that_joins_before_the_backward_of_an_allgather(mode):
    @mode
    def run(x, joins):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(ops.allgather(x, name="all"))
        return total if joins else tape.gradient(total, x)

    x = tf.ones([RANK + 1])
    if RANK == 0:
        run(x, True)
    else:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'all': a rank has joined .*; call join\(\)"):
            run(x, False)
    ops.join()
