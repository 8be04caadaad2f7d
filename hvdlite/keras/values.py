"""Collectives on single values, with the signatures of ``horovod.keras``; the values are tensors of Keras's backend."""

from typing import Any

from hvdlite.checks import check_given
from hvdlite.compression import Compression
from hvdlite.keras.backends import current_backend
from hvdlite.requests import Average, resolve_op

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a value over all ranks, which all call this.

    Args:
        value: a tensor or variable of Keras's backend, or what it makes a tensor of: numbers, arrays, lists. Any shape.
        name: as for `hvdlite.allreduce`, and so are the arguments below.
        average: Horovod's older spelling of `op`; deprecated.
        prescale_factor: applied before the reduction.
        postscale_factor: applied after it.
        op: `Average` (the default), `Sum`, `Min`, ...
        compression: applied before and undone after.

    Returns:
        A tensor of Keras's backend with the value's shape and dtype.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `hvdlite.allreduce`; with
            TensorFlow, ``tf.errors`` where an operation of its own is run.
    """
    check_given("allreduce", value, name)
    op = resolve_op(op, average)
    return current_backend().allreduce(value, name, op, prescale_factor, postscale_factor, compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates all ranks' values along the first dimension, in rank order.

    Args:
        value: as for `allreduce`; at least one-dimensional. Ranks may differ in the first dimension only.
        name: as for `hvdlite.allgather`.

    Returns:
        A tensor of Keras's backend whose first dimension is the sum of the ranks' first dimensions.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    check_given("allgather", value, name)
    return current_backend().allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Gives all ranks the value of one rank.

    Args:
        value: as for `allreduce`; the same shape and dtype on all ranks.
        root_rank: the rank that has the value.
        name: as for `hvdlite.broadcast`.

    Returns:
        A tensor of Keras's backend with the root's values.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    check_given("broadcast", value, name)
    return current_backend().broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value and leaves each rank with its part of the rows.

    Args:
        value: as for `allreduce`; at least one-dimensional, the same shape on all ranks.
        name: as for `hvdlite.reducescatter`.
        op: `Average` (the default) or `Sum`.

    Returns:
        A tensor of Keras's backend with this rank's rows: of d rows each of n ranks gets ``d // n``, and the first ``d % n``
        ranks one more.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    check_given("reducescatter", value, name)
    return current_backend().reducescatter(value, name, op)
