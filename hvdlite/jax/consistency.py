"""`check_consistency` for JAX: pytrees of all ranks are compared (`hvdlite.consistency`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hvdlite.consistency import ConsistencyChecker, RankComparison, check_objects
from hvdlite.leaves import Leaf, leaves_in
from hvdlite.process_sets import ProcessSet, global_process_set, root_arguments, root_of


def check_consistency(
    *trees: Any, every: int | None = None, process_set: ProcessSet = global_process_set
) -> ConsistencyChecker | None:
    """Checks that all ranks hold the same values, bit by bit. Collective over `process_set`; not for use in compiled programs.

    NaNs and infinities are compared by their bits, too. Arrays on CPUs are not copied.

    Args:
        trees: pytrees of arrays and numbers; random keys are compared by their data.
        every: None to compare now. A number of steps to get a checker, whose ``step(*trees)`` you call after each step.
        process_set: the ranks to compare. The call does nothing on a rank that is not a member.

    Returns:
        None; or, with `every`, the `hvdlite.consistency.ConsistencyChecker`.

    Raises:
        MismatchError, InvalidArgumentError, HorovodInternalError: as for `hvdlite.check_consistency`.

    """

    def remedy(among: ProcessSet) -> str:
        return f"hvdlite.broadcast_object(tree, {root_arguments(among)}) returns the tree of rank {root_of(among)} on all ranks"

    return check_objects(trees, every, RankComparison(_leaves, process_set, remedy))


def _leaves(trees: Sequence[Any]) -> Iterable[tuple[str, Leaf]]:
    for number, tree in enumerate(trees, 1):
        owner = f"argument {number} ({type(tree).__name__})"
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            array = jax.random.key_data(value) if is_key else value
            for leaf in leaves_in(array, jax.tree_util.keystr(path), lambda *_: None):
                yield owner, leaf
