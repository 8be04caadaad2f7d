"""Converts tensors and weights for the collectives of the TensorFlow door, and refuses those that cannot be sent."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdlite.auto_compression import settle
from hvdlite.checks import check_given
from hvdlite.compression import AutoCompression
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet
from hvdlite.submission import check_weight, check_weighted


def as_tensor(operation: str, value: Any, name: str | None = None) -> tf.Tensor:
    """A dense tensor that can be sent.

    Args:
        operation: name of the function, for error texts.
        value: a tensor, or a value that ``tf.convert_to_tensor`` converts.
        name: the user's name of the operation, for error texts.

    Raises:
        InvalidArgumentError: `value` is None, ragged or sparse, or its dtype cannot be sent, such as string.

    """
    check_given(operation, value, name)
    what = operation if name is None else f"{operation} of {name!r}"
    if isinstance(value, tf.RaggedTensor):
        raise InvalidArgumentError(
            f"{what}: a RaggedTensor cannot be sent; pass .to_tensor(), or send .flat_values and .row_lengths() separately"
        )
    if isinstance(value, tf.SparseTensor):
        raise InvalidArgumentError(
            f"{what}: a SparseTensor cannot be sent; pass tf.sparse.to_dense(x), or send .values and .indices separately"
        )
    tensor = tf.convert_to_tensor(value)
    code_of_name(tensor.dtype.base_dtype.name, f"tensor given to {what}")
    return tensor


def settle_for_dense(
    compression: Any, process_set: ProcessSet, op: int, tensors: Sequence[tf.Tensor], *, codes: bool = True
) -> Any:
    """The compression argument; for `Compression.auto` the compression that is chosen for these tensors.

    The engine codes no tensors on GPUs, and the devices of tensors in a graph are not known. So no codec is chosen if the
    process has GPUs. The other arguments are those of `hvdlite.auto_compression.settle`.

    Raises:
        InvalidArgumentError, HorovodInternalError: as for `hvdlite.auto_compression.settle`.
        UnsupportedError: as for `settle`; or, with `Compression.auto`, the shape of a tensor is unknown.

    """
    if not isinstance(compression, AutoCompression):
        return compression
    numbers = [(tensor.dtype.base_dtype.name, tensor.shape.num_elements()) for tensor in tensors]
    if any(count is None for _, count in numbers):
        raise UnsupportedError("compression is auto, and the shape of a tensor is unknown in this graph: name a compression")
    has_gpus = bool(tf.config.get_visible_devices("GPU"))
    return settle(compression, process_set, op, numbers, codes=codes and not has_gpus, traced=True)


def is_inexact(tensor: tf.Tensor) -> bool:
    """Has the tensor a floating-point or complex dtype? Only these dtypes have gradients, and means that are not integers."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def as_weight(weight: Any, op: int) -> tf.Tensor:
    """A rank's weight in a weighted mean, as a scalar float64 tensor.

    Args:
        weight: a number of 0 or more, or a real scalar tensor or variable. The value of a tensor of a graph is checked only
            when the graph runs, and never if IndexedSlices are reduced.
        op: the reduce operator.

    Raises:
        InvalidArgumentError: `weight` is no such number or tensor, or `op` is not Average.

    """
    if not tf.is_tensor(weight):
        return tf.constant(check_weight(weight, op), tf.float64)
    check_weighted(op)
    tensor = tf.convert_to_tensor(weight)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer) or tensor.shape.rank not in (0, None):
        raise InvalidArgumentError(
            f"a weight is one real number, such as the number of samples in this rank's batch, not a tensor of dtype "
            f"{tensor.dtype.name} and shape {tensor.shape}"
        )
    if hasattr(tensor, "numpy"):  # an eager tensor
        return tf.constant(check_weight(tensor.numpy().item(), op), tf.float64)
    return tf.cast(tensor, tf.float64)


def shares_of(tensors: Sequence[tf.Tensor], weight: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    """The tensors times this rank's share of all weights.

    Args:
        tensors: tensors of any shape and a floating-point or complex dtype. 16-bit floats are multiplied in float32 and rounded
            once.
        weight: the weight of this rank, a float64 scalar. If it is 0, the results are zeros, even for infinite or NaN elements.
        weights: the sum of all ranks' weights, a float64 scalar.

    Returns:
        Tensors of the same shapes and dtypes.

    """
    share = tf.math.divide_no_nan(weight, weights)
    wide = [tf.float32 if tensor.dtype.size == 2 else tensor.dtype for tensor in tensors]
    return [
        tf.cast(tf.math.multiply_no_nan(tf.cast(tensor, dtype), tf.cast(share, dtype)), tensor.dtype)
        for tensor, dtype in zip(tensors, wide, strict=True)
    ]
