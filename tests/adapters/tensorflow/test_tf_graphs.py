"""The ops of the library in graphs: shapes, orders, loops, and what TensorFlow's optimiser must leave alone."""

import numpy as np
import pytest
from support.cases import Op
from support.world import REPEATS, WORLD, shuffled

tf = pytest.importorskip("tensorflow")

from hvdlite.runtime import RUNTIME  # noqa: E402
from hvdlite.tensorflow import collective_ops as ops  # noqa: E402

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1

pytestmark = pytest.mark.usefixtures("hvd")


def submitted():
    """How many operations this rank's engine has been asked for."""
    return RUNTIME.engine.counters()["submitted"]


# --- shapes that are known before ------------------------------------------------------------------------------------------


def test_shapes_are_inferred():
    @tf.function(input_signature=[tf.TensorSpec([None, 7], tf.float32), tf.TensorSpec(None, tf.float32)])
    def trace(rows, anything):
        found = {
            "allreduce": ops.allreduce(rows, name="s1"),
            "broadcast": ops.broadcast(rows, root_rank=0, name="s2"),
            "allgather": ops.allgather(rows[:2], name="s3"),
            "reducescatter": ops.reducescatter(rows, name="s4"),
            "alltoall": ops.alltoall(rows, name="s5")[0],
            "received": ops.alltoall(rows, name="s6")[1],
            "group": ops.grouped_allgather([rows, tf.zeros([2, 3])], name="s7")[1],
            "unknown": ops.allreduce(anything, name="s8"),
        }
        assert {key: None if t.shape.rank is None else t.shape.as_list() for key, t in found.items()} == {
            "allreduce": [None, 7],
            "broadcast": [None, 7],
            "allgather": [None, 7],
            "reducescatter": [None, 7],
            "alltoall": [None, 7],
            "received": [None],
            "group": [None, 3],
            "unknown": None,
        }
        return found

    assert trace(tf.ones([SIZE, 7]), 1.0)["allgather"].shape == (2 * SIZE, 7)
    with pytest.raises(ValueError, match="at least rank 1"):
        tf.function(lambda: ops.allgather(tf.constant(1.0), name="scalar"))()


# --- orders and loops ------------------------------------------------------------------------------------------------------


def test_operations_of_a_graph_may_become_ready_in_any_order():
    """Each one waits for another one's result, in a chain that is reversed on the last rank."""
    names = [f"chain{i}" for i in range(12)]

    @tf.function
    def run(x):
        independent = {name: ops.allreduce(x + float(i), name=name) for i, name in enumerate(shuffled(names, 3))}
        with tf.control_dependencies(list(independent.values())):
            return independent, ops.allreduce(x, name="after")

    orders = WORLD.allgather(shuffled(names, 3))
    for _ in REPEATS:
        found, after = run(tf.constant([1.0]))
        for name in names:
            assert found[name].numpy() == sum(1.0 + order.index(name) for order in orders)
        assert after.numpy() == SIZE


def test_iterations_of_a_loop_may_overlap():
    @tf.function
    def run(x):
        total = tf.zeros([2])
        for i in tf.range(24):
            step = tf.cast(i, tf.float32)
            reduced = ops.allreduce(x * step, name="in_loop")
            pair = ops.grouped_allreduce([x, x + step], name="in_loop")
            total += reduced * (step + 1.0) + pair[1]
        return total

    x = tf.constant([RANK + 1.0, 2.0])
    sums = np.array([SIZE * (SIZE + 1) / 2, 2 * SIZE])
    for _ in REPEATS:
        np.testing.assert_array_equal(run(x), sum(sums * i * (i + 1) + sums + SIZE * i for i in range(24)))


def test_a_loop_of_dependent_steps_and_a_branch():
    @tf.function
    def run(x, take):
        for _ in tf.range(5):
            x = ops.allreduce(x, name="step", op=int(Op.AVERAGE))
            x += 1.0
        if take:
            x = ops.allreduce(x, name="taken")
        return x

    start = tf.constant(float(RANK))
    assert run(start, tf.constant(True)).numpy() == SIZE * (LAST / 2 + 5)
    assert run(start, tf.constant(False)).numpy() == LAST / 2 + 5


def test_graphs_of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        total = ops.allreduce(x, name="v1") + ops.allreduce(tf.constant(1.0), name="v1.constant")
        barrier = ops.barrier()
        for repeat in REPEATS:
            assert session.run([total, barrier], {x: [RANK, repeat]})[0].tolist() == [
                SIZE * LAST / 2 + SIZE,
                SIZE * repeat + SIZE,
            ]


# --- what the optimiser must leave alone -----------------------------------------------------------------------------------


def runs_in_each_call(function, *arguments):
    """How many operations each of three calls of a function asks the engine for."""
    counts = []
    for _ in REPEATS:
        before = submitted()
        function(*arguments)
        counts.append(submitted() - before)
    return counts


def test_constants_are_not_folded():
    variable = tf.Variable([1.0 + RANK, 2.0])

    @tf.function
    def linear():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * 3.0)
        return ops.allreduce(tape.gradient(loss, variable), name="linear")

    @tf.function
    def constants():
        return [
            ops.allreduce(tf.constant([1.0, 2.0]), name="c1"),
            ops.grouped_allreduce([tf.constant(1.0), tf.zeros([3])], name="c2"),
            ops.allgather(tf.ones([2]), name="c3"),
            ops.broadcast(tf.constant(float(RANK)), root_rank=LAST, name="c4"),
            ops.alltoall(tf.ones([SIZE]), name="c5"),
            ops.reducescatter(tf.ones([SIZE]), name="c6"),
        ]

    assert runs_in_each_call(linear) == [1, 1, 1]
    assert runs_in_each_call(constants) == [7, 7, 7]
    assert constants()[3].numpy() == LAST


def test_unused_results_are_dropped_unless_the_op_has_state():
    @tf.function
    def dropped(x):
        ops.allreduce(x, name="unused")
        return x + 1.0

    @tf.function
    def kept(x):
        ops.broadcast(x, root_rank=0, name="kept", stateful=True)
        ops.barrier()
        return x + 1.0

    assert runs_in_each_call(dropped, tf.ones([2])) == [0, 0, 0]
    assert runs_in_each_call(kept, tf.ones([2])) == [2, 2, 2]


def test_a_result_that_one_rank_alone_uses():
    @tf.function
    def run(x):
        sent = ops.broadcast(x, root_rank=LAST, name="logged", stateful=True)
        return sent if RANK == 0 else x

    for _ in REPEATS:
        assert run(tf.constant(float(RANK))).numpy() == (LAST if RANK == 0 else RANK)


def test_the_input_gives_its_memory_to_the_output():
    """Where nobody else refers to it, as TensorFlow's trace of a step shows."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [1000])
        temporary, shared = x * 2.0, x * 3.0
        fetched = [ops.allreduce(temporary, name="f1"), ops.allreduce(shared, name="f2"), shared]
        trace = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        metadata = tf.compat.v1.RunMetadata()
        feed = {x: np.full(1000, 1.0 + RANK, np.float32)}
        own, other, kept = session.run(fetched, feed, options=trace, run_metadata=metadata)
    addresses = {
        stats.node_name: stats.output[0].tensor_description.allocation_description.ptr
        for device in metadata.step_stats.dev_stats
        for stats in device.node_stats
        if stats.output
    }
    assert addresses[fetched[0].op.name] == addresses[temporary.op.name] != 0
    assert addresses[fetched[1].op.name] != addresses[shared.op.name]
    total = SIZE * (SIZE + 1) / 2
    assert (own[0], other[0], kept[0]) == (2 * total, 3 * total, 3.0 * (1 + RANK))
