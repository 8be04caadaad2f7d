"""Grouped collectives on JAX arrays, inside `jax.jit` and outside."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite.auto_compression import settle
from hvdlite.compression import Compression, split
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.jax.ffi import ffi_call, require_cpu
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average, Kind, resolve_op
from hvdlite.submission import check_weight, check_weighted, checked_root, enter
from hvdlite.xla import TensorGroup, describe, failure_in


def grouped_allreduce(
    arrays: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: Any = None,
    compression: Any = Compression.none,
) -> list[jax.Array]:
    """Reduces arrays of any shapes and dtypes over the ranks, in one call. Collective over the set.

    In a compiled program the call runs each time the program runs, with the same name. If programs, or calls of one program,
    may run at the same time, they need different names. The call has no gradient.

    Args:
        arrays: arrays, or objects that JAX converts to arrays; each must have the same shape and dtype on all ranks.
        name: the name of the group; it is required, because a compiled call cannot be numbered.
        op: Average, Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies each rank's arrays.
        postscale_factor: multiplies the results.
        process_set: the ranks that take part. A compiled program contains the set's id: compile again after `hvdlite.init`.
        weight: this rank's weight in a weighted mean, as for `hvdlite.allreduce`: a number, or a scalar array that may be
            traced. It has the precision of JAX's floats: float32, or float64 with ``jax_enable_x64``.
        compression: as for `hvdlite.allreduce`.

    Returns:
        The results in order, with the shapes and dtypes of the arrays and the same bits on all ranks.

    Raises:
        NotInitializedError: hvdlite is not initialised.
        InvalidArgumentError: an argument or a dtype is wrong, or this rank is not in the set.
        UnsupportedError: JAX's default device is no CPU, the operation cannot use `compression`, or an array is on several
            devices (in a compiled program XLA refuses such an array, and says that an HLO must have sharding).
        HorovodInternalError: the operation failed. A compiled program raises JAX's `JaxRuntimeError` with the same text
            instead; `hvdlite.xla.failure_in` converts it to hvdlite's error.

    """
    _, process_set_id = enter(Kind.ALLREDUCE, process_set)
    op = resolve_op(op, None)
    own_weight = None if weight is None else as_weight(weight, op)
    made = [jnp.asarray(array) for array in arrays]
    numbers = [(array.dtype.name, array.size) for array in made]
    compressor, codec = split(settle(compression, process_set, op, numbers, traced=True))
    pairs = [compressor.compress(array) for array in made]
    sent = [array for array, _ in pairs]
    group = TensorGroup(
        Kind.ALLREDUCE,
        name,
        _kinds_of(sent),
        op=op,
        process_set=process_set_id,
        prescale=prescale_factor,
        postscale=postscale_factor,
        weighted=weight is not None,
        codec=codec,
    )
    outputs = call([group], sent, weight=own_weight)
    return [compressor.decompress(output, context) for output, (_, context) in zip(outputs, pairs, strict=True)]


def grouped_broadcast(
    arrays: Sequence[Any], root_rank: int, *, name: str, process_set: ProcessSet = global_process_set
) -> list[jax.Array]:
    """Gives all ranks the root's arrays, in one call. Collective over the set.

    Args:
        arrays: as for `grouped_allreduce`.
        root_rank: the root's rank in the whole job.
        name: as for `grouped_allreduce`.
        process_set: as for `grouped_allreduce`.

    Returns:
        The root's arrays, in order.

    Raises:
        HvdliteError: as for `grouped_allreduce`.

    """
    _, process_set_id = enter(Kind.BROADCAST, process_set)
    root = checked_root(root_rank, name, process_set)
    made = [jnp.asarray(array) for array in arrays]
    return call([TensorGroup(Kind.BROADCAST, name, _kinds_of(made), root=root, process_set=process_set_id)], made)


def call(
    groups: Sequence[TensorGroup], arrays: Sequence[jax.Array], *, alone: bool = False, weight: jax.Array | None = None
) -> list[jax.Array]:
    """Runs several groups in one call of XLA: it submits all of them before it waits for any.

    Args:
        groups: the operations, with the arrays' dtypes and shapes.
        arrays: the arrays of all groups, in order.
        alone: True makes the call faster, and has two conditions. No other call with `alone` of the program can run at the same
            time: otherwise ranks may wait for each other in two such calls. And every rank uses results of the call: otherwise
            XLA drops the call.
        weight: this rank's weight, from `as_weight`; None if no group is weighted.

    Returns:
        The results in order.

    Raises:
        InvalidArgumentError: the arrays have other dtypes or shapes than the groups say.
        HvdliteError: as for `grouped_allreduce`.

    """
    require_cpu()
    if not arrays:
        return []
    description = describe(groups)
    _check_kinds([kind for group in groups for kind in group.tensors], _kinds_of(arrays))
    try:
        results = ffi_call(description, arrays, alone, weight)
        if not any(isinstance(result, jax.core.Tracer) for result in results):
            for result in results:
                result.block_until_ready()
    except (RuntimeError, ValueError) as error:  # XLA's own, and from before JAX 0.4.32
        failure = failure_in(error) or _refusal_of_devices(arrays)
        if failure is None:
            raise
        raise failure from error
    return results


def _refusal_of_devices(arrays: Sequence[jax.Array]) -> UnsupportedError | None:
    """The error if an array is on several devices, because XLA's own text does not mention them; None: no array is."""
    several = [array for array in arrays if not isinstance(array, jax.core.Tracer) and len(array.devices()) > 1]
    if not several:
        return None
    return UnsupportedError(
        f"an array of shape {several[0].shape} is on {len(several[0].devices())} devices, and hvdlite's collectives for JAX "
        "take arrays on one device: pass jax.device_put(array, jax.devices()[0])"
    )


def as_weight(weight: Any, op: int) -> jax.Array:
    """A rank's weight as the operand of a call: a scalar of JAX's default float dtype.

    Args:
        weight: a number, or a real scalar array, which may be traced.
        op: the reduce operator.

    Raises:
        InvalidArgumentError: the weight is something else, or the op is not Average. (The value of an array is checked when
            the call runs.)

    """
    if not isinstance(weight, jax.Array):
        return jnp.asarray(check_weight(weight, op), dtype=float)
    check_weighted(op)
    if weight.ndim or not jnp.issubdtype(weight.dtype, np.number) or jnp.issubdtype(weight.dtype, np.complexfloating):
        raise InvalidArgumentError(
            f"a weight is one real number, such as the number of samples in this rank's batch, not an array of dtype "
            f"{weight.dtype} and shape {weight.shape}"
        )
    return weight.astype(float)


def _kinds_of(arrays: Sequence[jax.Array]) -> list[tuple[str, tuple[int, ...]]]:
    return [(array.dtype.name, array.shape) for array in arrays]


def _check_kinds(said: Sequence[tuple[str, Sequence[int]]], given: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Refuses arrays of other dtypes or shapes than the groups say, because native code would read wrong numbers."""
    if len(said) != len(given):
        raise InvalidArgumentError(f"hvdlite.jax.call: the groups have {len(said)} tensors, but there are {len(given)} arrays")
    for index, ((dtype, shape), (given_dtype, given_shape)) in enumerate(zip(said, given, strict=True)):
        if (dtype, tuple(shape)) != (given_dtype, tuple(given_shape)):
            raise InvalidArgumentError(
                f"hvdlite.jax.call: array {index} is {given_dtype} {list(given_shape)}, but its group says {dtype} "
                f"{list(shape)}; give the group the array's dtype and shape (with jax_enable_x64, JAX's default is float64)"
            )
