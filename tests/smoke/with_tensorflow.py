"""TensorFlow: operations in eager code and in a graph, DistributedGradientTape against the whole batch, and a mismatch."""

import numpy as np
import tensorflow as tf
from checks import FEATURES, assert_close, assert_same_bits, mine, refused, samples

import hvdlite.tensorflow as hvd


def weights(seed: int) -> list[tf.Variable]:
    draw = np.random.default_rng(seed)
    shapes = ((FEATURES, 16), (16,), (16, 1))
    return [tf.Variable(draw.standard_normal(shape).astype(np.float32) * 0.3) for shape in shapes]


def training(variables: list[tf.Variable], distributed: bool):
    @tf.function
    def step(inputs, targets):
        tape = tf.GradientTape()
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        with tape:
            hidden = tf.tanh(inputs @ variables[0] + variables[1])
            loss = tf.reduce_mean((hidden @ variables[2] - targets) ** 2)
        gradients = tape.gradient(loss, variables)
        for i, variable in enumerate(variables):
            variable.assign_sub(0.1 * gradients[i])

    return step


hvd.init()
rank, size = hvd.rank(), hvd.size()
total = size * (size + 1) / 2


@tf.function
def in_a_graph(x):
    reduced = [hvd.allreduce(x * number, op=hvd.Sum, name=f"graph{number}") for number in range(20)]
    return tf.stack(reduced), hvd.allgather(tf.fill([rank + 1], rank), name="rows")


for _ in range(3):
    eager = hvd.allreduce(tf.fill([5, 2], rank + 1.0), op=hvd.Sum, name="eager")
    np.testing.assert_array_equal(eager, np.full((5, 2), total))
    stacked, rows = in_a_graph(tf.fill([3], rank + 1.0))
    np.testing.assert_array_equal(stacked, total * np.arange(20)[:, None] * np.ones(3))
    np.testing.assert_array_equal(rows, np.repeat(range(size), range(1, size + 1)))
halves = hvd.allreduce(tf.fill([4], tf.constant(rank + 0.5, tf.bfloat16)), name="half")
np.testing.assert_array_equal(tf.cast(halves, tf.float32), np.full(4, size / 2))
group = hvd.grouped_allreduce([tf.fill([2], float(rank)), tf.fill([3], float(rank + 1))], op=hvd.Sum)
assert [float(part[0]) for part in group] == [total - size, total]
np.testing.assert_array_equal(hvd.broadcast(tf.fill([3], rank), root_rank=1, name="root"), np.ones(3))
with tf.GradientTape() as tape:
    x = tf.Variable([1.0, 2.0])
    y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum, name="gradient"))
np.testing.assert_array_equal(tape.gradient(y, x), np.full(2, size))

inputs, targets = samples()
variables, reference = weights(seed=rank), weights(seed=0)
hvd.broadcast_variables(variables, root_rank=0)
steps = training(variables, distributed=True), training(reference, distributed=False)
for _ in range(5):
    steps[0](mine(inputs), mine(targets))
    steps[1](inputs, targets)
trained = [variable.numpy() for variable in variables]
assert_same_bits(trained, "weights after training")
assert_close(trained, [variable.numpy() for variable in reference], "weights of one process")

with refused(tf.errors.FailedPreconditionError, "shape differs", "other", "rank 1"):
    hvd.allreduce(tf.ones(4 + rank), name="other")
