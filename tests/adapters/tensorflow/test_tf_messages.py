"""Send and receive of TensorFlow's tensors: values, gradients, which go the message's way backwards, and what is refused."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tf_reference import WORLD  # noqa: E402

from hvdlite import errors  # noqa: E402

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size


def value(seed, *shape):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_values(hvd, dtype):
    shape = (3, 2)
    sent = tf.cast(value(1, *shape) * 10, dtype)
    if RANK == 0:
        zero = hvd.send(tf.Variable(sent), 1, tag=4)
        assert (zero.dtype.name, zero.shape, bool(zero.numpy())) == (dtype, (), False)
    if RANK == 1:
        received = hvd.recv(tf.zeros(shape, dtype), None, tag=4)
        assert (received.source, received.tag) == (0, 4)
        assert isinstance(received.tensor, tf.Tensor)
        assert np.array_equal(received.tensor, sent)


def test_gradients_of_two_halves_of_a_model(hvd):
    """Rank 0 has the first and the last layer, rank 1 the middle: every rank sends and receives, in both directions."""
    weights = [tf.Variable(value(10 + place, 4, 4)) for place in range(3)]
    data, like = value(3, 3000, 4), tf.zeros((3000, 4), tf.float64)

    @tf.function
    def layer(hidden, weights):
        return tf.tanh(hidden @ weights)

    with tf.GradientTape() as tape:
        hidden = data
        for each in weights:
            hidden = layer(hidden, each)
        loss = tf.reduce_sum(hidden**2)
    expected = tape.gradient(loss, weights)
    with tf.GradientTape() as tape:
        tape.watch(like)
        if RANK == 0:
            sent = hvd.send(layer(data, weights[0]), 1, name="hidden")
            found = tf.reduce_sum(layer(hvd.recv(like + sent, 1, tag=1), weights[2]) ** 2)
        else:
            found = hvd.send(layer(hvd.recv(like, 0, name="hidden"), weights[1]), 0, tag=1)
    mine = [0, 2] if RANK == 0 else [1]
    *gradients, unused = tape.gradient(found, [weights[place] for place in mine] + [like])
    np.testing.assert_allclose(found, loss if RANK == 0 else 0)
    np.testing.assert_allclose(gradients, [expected[place] for place in mine])
    assert not unused.numpy().any()


def test_second_derivatives_are_refused(hvd):
    x = tf.Variable([2.0])
    with tf.GradientTape() as outer:
        outer.watch(like := tf.zeros([1]))
        with tf.GradientTape() as inner:
            inner.watch(like)
            loss = hvd.send(x * x, 1) if RANK == 0 else hvd.recv(like, 0) ** 2
        gradient = inner.gradient(loss, x if RANK == 0 else like)
    assert gradient.numpy().tolist() == ([32.0] if RANK == 0 else [0.0])
    with pytest.raises(errors.UnsupportedError, match="differentiated once only"):
        outer.gradient(gradient, x if RANK == 0 else like)


def test_what_is_refused(hvd):
    for call in (hvd.send, hvd.recv):
        with pytest.raises(errors.UnsupportedError, match="works eagerly only, and this is a graph"):
            tf.function(lambda x, call=call: call(x, 1 - RANK))(tf.ones(2))
    with tf.GradientTape() as tape:
        tape.watch(like := tf.zeros([1]))
        received = hvd.recv(like) if RANK == 1 else hvd.send(tf.ones([1]), 1)
    if RANK == 1:
        with pytest.raises(errors.UnsupportedError, match="needs the sender's rank"):
            tape.gradient(received.tensor, like)
