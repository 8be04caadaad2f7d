"""Collectives on single values, with the signatures of ``horovod.keras``; the values are tensors of Keras's backend.

In a compiled program of JAX only `allreduce` and `broadcast` work, and they need a name. In a program for XLA on TensorFlow
only `allreduce` works. All other functions raise UnsupportedError in such programs.
"""

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
    """Reduces a value over all ranks. Collective over all ranks.

    Args:
        value: a tensor or variable of Keras's backend, or a value that it can convert (number, array, list). It has any shape.
        name: as for `hvdlite.allreduce`.
        average: Horovod's older argument for `op`; deprecated.
        prescale_factor: a factor for each rank's value, before the reduction.
        postscale_factor: a factor for the result.
        op: `Average` (the default), `Sum`, `Min`, ...
        compression: compresses the value before it is sent; the result is decompressed.

    Returns:
        A tensor of Keras's backend with the value's shape and dtype.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `hvdlite.allreduce`. If the
            operation fails when it runs, TensorFlow raises a subclass of ``tf.errors.OpError`` instead, and a compiled program
            of JAX raises ``JaxRuntimeError``.
    """
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _run("allreduce", value, name, op=resolve_op(op, average), compression=compression, **factors)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates all ranks' values along the first dimension, in rank order. Collective over all ranks.

    Args:
        value: as for `allreduce`; at least one-dimensional. Ranks may differ in the first dimension only.
        name: as for `hvdlite.allgather`.

    Returns:
        A tensor of Keras's backend whose first dimension is the sum of the ranks' first dimensions.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    return _run("allgather", value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Gives all ranks the value of one rank. Collective over all ranks.

    Args:
        value: as for `allreduce`; the same shape and dtype on all ranks.
        root_rank: the rank whose value all ranks get.
        name: as for `hvdlite.broadcast`.

    Returns:
        A tensor of Keras's backend with the root's values.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    return _run("broadcast", value, name, root_rank=root_rank)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value and gives each rank a part of its rows. Collective over all ranks.

    Args:
        value: as for `allreduce`; at least one-dimensional, the same shape on all ranks.
        name: as for `hvdlite.reducescatter`.
        op: `Average` (the default) or `Sum`.

    Returns:
        A tensor of Keras's backend with this rank's rows. If there are d rows and n ranks, each rank gets ``d // n`` rows,
        and the first ``d % n`` ranks get one more.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `allreduce`.
    """
    return _run("reducescatter", value, name, op=op)


def _run(function: str, value: Any, name: str | None, **arguments: Any) -> Any:
    check_given(function, value, name)
    return current_backend().collective(function, value, name, **arguments)
