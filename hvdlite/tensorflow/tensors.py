"""The values that the TensorFlow door's collectives accept as tensors; they refuse all others by name."""

from typing import Any

import tensorflow as tf

from hvdlite.checks import check_given
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError

__all__ = ["as_tensor"]


def as_tensor(operation: str, value: Any, name: str | None = None) -> tf.Tensor:
    """A dense tensor that can be sent.

    Args:
        operation: for messages, and so is the name.
        value: what ``tf.convert_to_tensor`` takes.
        name: the user's.

    Raises:
        InvalidArgumentError: it is None, ragged or sparse, or of a dtype that cannot be sent, such as string.

    """
    check_given(operation, value, name)
    what = operation if name is None else f"{operation} of {name!r}"
    if isinstance(value, tf.RaggedTensor):
        raise InvalidArgumentError(
            f"{what}: a RaggedTensor cannot be sent; pass .to_tensor(), or .flat_values and .row_lengths() by themselves"
        )
    if isinstance(value, tf.SparseTensor):
        raise InvalidArgumentError(
            f"{what}: a SparseTensor cannot be sent; pass tf.sparse.to_dense(x), or .values and .indices by themselves"
        )
    tensor = tf.convert_to_tensor(value)
    code_of_name(tensor.dtype.base_dtype.name, f"tensor given to {what}")
    return tensor
