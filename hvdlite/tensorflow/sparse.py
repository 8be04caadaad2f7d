"""Reduces IndexedSlices: every rank gets the rows of all ranks."""

from typing import Any

import tensorflow as tf

from hvdlite.compression import refuse_codec, split
from hvdlite.errors import UnsupportedError
from hvdlite.requests import OP_NAMES, Average, Sum
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.tensors import is_inexact, shares_of


def allreduce_slices(
    slices: tf.IndexedSlices,
    *,
    name: str,
    op: int,
    factor: float,
    compression: Any,
    set_id: int,
    weight: tf.Tensor | None = None,
) -> tf.IndexedSlices:
    """Gathers the rows and indices of all ranks; together they represent the sum or mean. Collective over the process set.

    Args:
        slices: rows of shape [n, ...] with indices of shape [n]. n may differ between ranks.
        name: name of the operation in the engine.
        op: Average or Sum.
        factor: a factor for the rows.
        compression: a class that compresses the rows, with the methods of `hvdlite.compression.Compressor`; or None.
        set_id: number of the process set.
        weight: the weight of this rank in a weighted mean, a float64 scalar.

    Returns:
        The rows in the order of the ranks. If an index occurs on several ranks, or several times on one, all its rows are kept.

    Raises:
        InvalidArgumentError: `compression` is no such class.
        UnsupportedError: `op` is not Average or Sum, `op` is Average and the rows are integers, or `compression` is a codec.

    """
    if op not in (Average, Sum):
        raise UnsupportedError(
            f"IndexedSlices are reduced with op=Average or op=Sum, not {OP_NAMES[op]}: pass sparse_as_dense=True to the tape "
            "or the optimizer, or tf.convert_to_tensor(slices) to the collective"
        )
    refuse_codec(compression, f"{repr(name) if name else 'a tensor'} is IndexedSlices, which (without sparse_as_dense=True)")
    compressor, _ = split(compression)
    own = slices.values
    if op == Average and not is_inexact(own):
        raise UnsupportedError(
            f"IndexedSlices of {own.dtype.name} have no mean, because each of their rows would be rounded: use op=Sum, or pass "
            "tf.convert_to_tensor(slices)"
        )
    if weight is not None:
        weights = collective_ops.allreduce(weight, name=name and f"{name}.weights", op=Sum, set_id=set_id)
        (own,) = shares_of([own], weight, weights)
    sent, context = compressor.compress(own)
    rows, indices = collective_ops.grouped_allgather([sent, slices.indices], name=name, set_id=set_id)
    rows = compressor.decompress(rows, context)
    if factor != 1.0:
        rows = tf.cast(tf.cast(rows, tf.float64) * factor, rows.dtype) if rows.dtype.is_integer else rows * factor
    if op == Average and weight is None:
        rows /= tf.cast(collective_ops.size(set_id), rows.dtype)
    return tf.IndexedSlices(rows, indices, slices.dense_shape)
