"""Training on all ranks' parts of a batch, beside one process (each rank, for itself) on the whole batch."""

import numpy as np
import tensorflow as tf
from support.world import WORLD

ROWS = 4  # of the batch, for each rank
FEATURES = 6
CLASSES = 3
WORDS = 5


def modes(function):
    """A training step eagerly, as a tf.function, and compiled by XLA."""
    return {"eager": function, "graph": tf.function(function), "compiled": tf.function(function, jit_compile=True)}


def whole_batch(step, size):
    """The same on all ranks, different for each step; the parts differ by construction."""
    random = np.random.default_rng(1000 + step)
    inputs = random.standard_normal((ROWS * size, FEATURES))
    return tf.constant(inputs), tf.constant(random.standard_normal((ROWS * size, CLASSES)))


def part_of(tensors, place):
    """A rank's rows of each tensor."""
    return [tensor[place * ROWS : (place + 1) * ROWS] for tensor in tensors]


class Network:
    """Two layers in float64, the same wherever it is made with the same seed; the last variable has no gradient."""

    def __init__(self, seed=7):
        random = np.random.default_rng(seed)
        shapes = {"first": (FEATURES, 8), "first_bias": (8,), "second": (8, CLASSES), "second_bias": (CLASSES,), "unused": (2,)}
        self.variables = [tf.Variable(random.standard_normal(shape) / 3, name=name) for name, shape in shapes.items()]

    def loss(self, inputs, targets):
        """The mean over the rows, so that the ranks' average is that of the whole batch."""
        first, first_bias, second, second_bias, _ = self.variables
        outputs = tf.tanh(inputs @ first + first_bias) @ second + second_bias
        return tf.reduce_mean(tf.square(outputs - targets))


def own_gradients(network, batch):
    """Those of one process."""
    with tf.GradientTape() as tape:
        loss = network.loss(*batch)
    return tape.gradient(loss, network.variables)


def descend(variables, gradients, rate=0.1):
    """A step of gradient descent."""
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(tf.convert_to_tensor(gradient) * rate)


def assert_same_bits(tensors):
    """All ranks hold the same bits; compared through mpi4py, not through hvdlite."""
    mine = [None if tensor is None else tf.convert_to_tensor(tensor).numpy().tobytes() for tensor in tensors]
    for rank, theirs in enumerate(WORLD.allgather(mine)):
        differing = [place for place, pair in enumerate(zip(theirs, mine, strict=True)) if pair[0] != pair[1]]
        assert not differing, f"tensors {differing} differ between this rank and rank {rank}"


def assert_close(found, expected, tolerance=1e-12):
    """Lists of tensors, or of None in the same places, are equal up to rounding."""
    assert len(found) == len(expected)
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one is None) == (other is None), f"tensor {place}: {one} and {other}"
        if one is not None:
            one, other = (tf.convert_to_tensor(tensor).numpy() for tensor in (one, other))
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1.0, np.abs(other).max(initial=0)))
