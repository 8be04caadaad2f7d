"""Send and receive of JAX arrays: values, gradients, which go the message's way backwards, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.world import WORLD

from hvdlite.jax import recv, send

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)


def value(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_values(hvd, dtype):
    shape = (3, 2)
    if RANK == 0:
        zero = send(value(1, *shape).astype(dtype), 1, tag=4)
        assert (zero.dtype, zero.shape, bool(zero)) == (dtype, (), False)
    if RANK == 1:
        received = recv(jnp.zeros(shape, dtype), None, tag=4)
        assert (received.source, received.tag) == (0, 4)
        assert isinstance(received.tensor, jax.Array)
        assert np.array_equal(received.tensor, value(1, *shape).astype(dtype))
    hvd.barrier()


def test_gradients_of_two_halves_of_a_model(hvd):
    """Rank 0 has the first and the last layer, rank 1 the middle: every rank sends and receives, in both directions."""
    first, middle, last = (value(10 + place, 4, 4) for place in range(3))
    data, like = value(3, 3000, 4), jnp.zeros((3000, 4))

    def layer(hidden, weights):
        return jnp.tanh(hidden @ weights)

    def whole(weights):
        hidden = data
        for each in weights:
            hidden = layer(hidden, each)
        return jnp.sum(hidden**2)

    def outer(weights, like):
        sent = send(jax.jit(layer)(data, weights[0]), 1, name="hidden")
        return jnp.sum(layer(recv(like + sent, 1, tag=1), weights[1]) ** 2)

    def inner(weights, like):
        return send(layer(recv(like, 0, name="hidden"), weights), 0, tag=1)

    loss, expected = jax.value_and_grad(whole)([first, middle, last])
    if RANK == 0:
        found, (gradients, _) = jax.value_and_grad(outer, argnums=(0, 1))([first, last], like)
        np.testing.assert_allclose(found, loss)
        np.testing.assert_allclose(gradients, [expected[0], expected[2]])
    if RANK == 1:
        gradient, unused = jax.grad(inner, argnums=(0, 1))(middle, like)
        np.testing.assert_allclose(gradient, expected[1])
        assert not unused.any()
    hvd.barrier()


def test_what_is_refused(hvd):
    other = 1 - RANK
    for transformed in (jax.jit, jax.vmap, lambda function: jax.grad(jax.grad(function))):
        with pytest.raises(hvd.UnsupportedError, match=r"do not exist inside of jax\.jit"):
            transformed(lambda x: send(x, other))(jnp.ones(()) if transformed is not jax.vmap else jnp.ones(2))
        with pytest.raises(hvd.UnsupportedError, match=r"do not exist inside of jax\.jit"):
            transformed(lambda x: recv(x, other))(jnp.ones(()) if transformed is not jax.vmap else jnp.ones(2))
    with pytest.raises(hvd.UnsupportedError, match="needs the sender's rank"):
        jax.grad(lambda like: recv(like))(1.0)
    with pytest.raises(hvd.InvalidArgumentError, match=r"for recv of a TensorFlow or JAX tensor, that of .*hvdlite\.jax"):
        hvd.recv(jnp.ones(2), other)
    hvd.barrier()
