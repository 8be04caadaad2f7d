"""`weight=` of collectives on JAX arrays, inside compiled programs and outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError
from hvdlite.jax import grouped_allreduce
from hvdlite.xla import failure_in

RANKS = (2,)
MORE_RANKS = (3,)
RANK, SIZE = WORLD.rank, WORLD.size

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)


def mean(arrays, weight, name):
    return grouped_allreduce(arrays, name=name, weight=weight)


def rows_of(sizes, step, salt=0):
    """This rank's rows, and all ranks'."""
    whole = np.random.default_rng([step, salt]).standard_normal((sum(sizes), 3))
    before = sum(sizes[:RANK])
    return whole[before : before + sizes[RANK]], whole


def test_training_is_that_of_one_process(hvd):
    def loss(weights, inputs):
        return jnp.mean(jnp.tanh(inputs @ weights) ** 2)  # nan where there are no rows

    @jax.jit
    def step(weights, inputs, count):
        (gradient,) = mean([jax.grad(loss)(weights, inputs)], count, "training")
        return weights - 0.1 * gradient

    weights = alone = jnp.arange(1.0, 4.0)
    gradient_of_one_process = jax.jit(jax.grad(loss))
    for number, sizes in enumerate([[5, 1, 3], [0, 4, 2]]):
        mine, whole = rows_of(sizes[:SIZE], number)
        weights = step(weights, mine, jnp.asarray(sizes[RANK]))
        alone = alone - 0.1 * gradient_of_one_process(alone, whole)
        np.testing.assert_allclose(weights, alone, rtol=1e-12)
        assert len(set(WORLD.allgather(np.asarray(weights).tobytes()))) == 1


@pytest.mark.parametrize(("dtype", "x64"), [("int32", False), ("bfloat16", False), ("float32", True), ("number", True)])
def test_dtypes_of_weights_and_all_of_them_0(hvd, dtype, x64):
    kinds = ("float32", "bfloat16", "complex64")
    jax.config.update("jax_enable_x64", x64)
    try:
        for weights in ([3, 5, 2], [0, 7, 0], [0, 0, 0]):
            weight = weights[RANK] if dtype == "number" else jnp.asarray(weights[RANK], dtype)
            arrays = [jnp.full((2,), RANK + 1.0 if weights[RANK] else np.nan, kind) for kind in kinds]
            total = sum(weights[:SIZE])
            wanted = sum(weights[rank] * (rank + 1.0) for rank in range(SIZE)) / (total or 1)
            for run in (mean, jax.jit(mean, static_argnums=2)):
                for kind, found in zip(kinds, run(arrays, weight, "dtypes"), strict=True):
                    assert found.dtype == kind
                    np.testing.assert_allclose(np.asarray(found).astype(complex), wanted, rtol=5e-3)
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("op", ["Sum", "Adasum", "Min", "Max", "Product"])
def test_other_operators_refuse_a_weight(hvd, op):
    for weight in (1, jnp.asarray(1)):
        with pytest.raises(InvalidArgumentError, match=f"a weight needs op=Average, not {op}"):
            grouped_allreduce([jnp.ones(2)], name="refused", op=getattr(hvd, op), weight=weight)


def test_what_is_no_weight(hvd):
    for bad in (-1, np.nan, True, "5"):
        with pytest.raises(InvalidArgumentError, match="a weight is a finite number of 0 or more"):
            mean([jnp.ones(2)], bad, "bad")
    for array in (jnp.ones(2), jnp.asarray(True), jnp.asarray(1j)):
        with pytest.raises(InvalidArgumentError, match="a weight is one real number"):
            mean([jnp.ones(2)], array, "bad")
    with pytest.raises(InvalidArgumentError, match="the weight is -1; a weight is finite and 0 or more"):
        mean([jnp.ones(2)], jnp.asarray(-1), "bad")


def test_a_rank_that_forgets_its_weight(hvd):
    step = jax.jit(lambda array: mean([array], 3 if RANK else None, "forgotten"))
    with pytest.raises((RuntimeError, ValueError)) as caught:
        jax.block_until_ready(step(jnp.ones(2)))
    assert "weighting differs" in str(failure_in(caught.value))
    assert "give every rank a weight" in str(caught.value)
