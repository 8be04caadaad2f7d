"""`check_consistency` of pytrees."""

import collections

import jax
import jax.numpy as jnp
import pytest

from hvdlite.errors import MismatchError
from hvdlite.jax import check_consistency

RANKS = (2,)
MORE_RANKS = (3,)

jax.config.update("jax_platforms", "cpu")

Moments = collections.namedtuple("Moments", ["mean", "count"])


def test_trees_by_their_paths(hvd):
    params = {"dense": {"kernel": jnp.ones((2, 3), jnp.float32), "bias": jnp.ones(3, jnp.bfloat16)}}
    state = (Moments(jnp.zeros(3), 4), None, jax.random.key(7))
    check_consistency(params, state)
    params["dense"]["kernel"] = params["dense"]["kernel"].at[1, 2].add(hvd.rank())
    with pytest.raises(MismatchError) as raised:
        check_consistency(params, state)
    text = str(raised.value)
    assert "['dense']['kernel'] of argument 1 (dict)\", float32 [2, 3]: its first element that differs, [1, 2], is 1 on" in text
    with pytest.raises(MismatchError, match=r"\[0\].count of argument 1 \(tuple\)', int\d+ \[\]: it is 4 on rank 0, but 5 on"):
        check_consistency((Moments(jnp.zeros(3), 4 + hvd.rank()), None))
    with pytest.raises(MismatchError, match=r"PRNGKeyArray.*uint32"):
        check_consistency(jax.random.key(hvd.rank()))


def test_every_so_many_steps_that_make_new_trees(hvd):
    checker = check_consistency(every=2)
    for step in range(3):
        checker.step({"w": jnp.full(3, step + 0.5 * hvd.rank() * (step % 2 == 0))})
    with pytest.raises(MismatchError, match=r"after step 4 \(all ranks were equal after step 2\)"):
        checker.step({"w": jnp.full(3, hvd.rank())})
