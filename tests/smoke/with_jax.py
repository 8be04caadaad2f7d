"""JAX: a compiled training step that reduces its gradients against one process on the whole batch, and a mismatch."""

import jax
import jax.numpy as jnp
import numpy as np
from checks import FEATURES, assert_close, assert_same_bits, mine, refused, samples

import hvdlite
import hvdlite.jax as hvd


def weights(seed: int) -> list[jax.Array]:
    draw = np.random.default_rng(seed)
    return [jnp.asarray(draw.standard_normal(shape) * 0.3, jnp.float32) for shape in ((FEATURES, 16), (16,), (16, 1))]


def loss(parameters, inputs, targets):
    first, offset, second = parameters
    return jnp.mean((jnp.tanh(inputs @ first + offset) @ second - targets) ** 2)


@jax.jit
def alone(parameters, inputs, targets):
    return [value - 0.1 * slope for value, slope in zip(parameters, jax.grad(loss)(parameters, inputs, targets), strict=True)]


@jax.jit
def together(parameters, inputs, targets):
    slopes = hvd.grouped_allreduce(jax.grad(loss)(parameters, inputs, targets), name="gradients")
    return [value - 0.1 * slope for value, slope in zip(parameters, slopes, strict=True)]


hvdlite.init()
rank, size = hvdlite.rank(), hvdlite.size()

group = [jnp.full((3,), rank + 1, jnp.bfloat16), jnp.full((2, 2), rank, jnp.int32)]
halves, numbers = hvd.grouped_allreduce(group, name="group", op=hvdlite.Sum)
assert halves.dtype == jnp.bfloat16
assert (np.asarray(halves, np.float32) == size * (size + 1) / 2).all()
assert (np.asarray(numbers) == size * (size - 1) / 2).all()

inputs, targets = samples()
trained, reference = hvd.grouped_broadcast(weights(seed=rank), 0, name="start"), weights(seed=0)
for _ in range(5):
    trained = together(trained, mine(inputs), mine(targets))
    reference = alone(reference, inputs, targets)
trained = [np.asarray(value) for value in trained]
assert_same_bits(trained, "weights after training")
assert_close(trained, [np.asarray(value) for value in reference], "weights of one process")

with refused(hvdlite.MismatchError, "shape differs", "other", "rank 1"):
    hvd.grouped_allreduce([jnp.ones(4 + rank)], name="other")
