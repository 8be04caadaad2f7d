"""Finds the divisors of Keras 3's losses, which ``weighted=True`` takes as the ranks' weights in the mean of the gradients.

A loss of Keras is a sum over elements, divided by a number: the divisor of the loss. The loss's `reduction` chooses the
divisor. With "sum_over_batch_size" (the default, also called "mean") the divisor is the number of elements that no mask leaves
out; `sample_weight` does not change this number. With "mean_with_sample_weight" the divisor is the sum of the sample weights.
If one process had the whole batch, its divisor would be the sum of all ranks' divisors. So the weight of a rank is the divisor
of this rank's loss.
"""

import functools
import importlib
import math
import threading
from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.keras.library import keras

_REMEDY = "leave weighted out, and set optimizer.weight before each update in your own training step"


class _LastLoss(threading.local):
    """The divisor of the loss that this thread computed last, or a text that says why the divisor is not known."""

    divisor: Any = None


_last = _LastLoss()


def follow_losses() -> None:
    """From now on, each loss of Keras that is computed stores its divisor. Further calls do nothing."""
    kind = keras.losses.Loss
    plain = kind.__call__
    if hasattr(plain, "_hvdlite"):
        return

    @functools.wraps(plain)
    def call_and_tell(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        found = []
        call = self.call

        def keep(*args: Any, **kwargs: Any) -> Any:
            found.append(call(*args, **kwargs))
            return found[-1]

        self.call = keep  # an attribute of this object, so that other losses do not change
        try:
            loss = plain(self, y_true, y_pred, sample_weight)
        finally:
            del self.call
        _last.divisor = _divisor(self, found[-1], y_pred, sample_weight)
        return loss

    call_and_tell._hvdlite = True  # type: ignore[attr-defined]
    kind.__call__ = call_and_tell


def weight_of_last_loss(label: str) -> Any:
    """Takes the divisor of the loss that this thread computed last: a number, or a scalar tensor of the backend.

    Args:
        label: name of the optimizer for error texts.

    Raises:
        InvalidArgumentError: this thread computed no loss of Keras since the last call, or the loss's divisor is not known.

    """
    divisor, _last.divisor = _last.divisor, None
    if divisor is None or _is_of_another_program(divisor):
        raise InvalidArgumentError(
            f"{label} with weighted=True: no loss of keras.losses was computed since the last update; {_REMEDY}"
        )
    if isinstance(divisor, str):
        raise InvalidArgumentError(f"{label} with weighted=True: {divisor}; {_REMEDY}")
    return divisor


def _is_of_another_program(divisor: Any) -> bool:
    """Whether this tensor belongs to the trace of another program, so that it has no value here.

    For example, `evaluate()` traces a step that computes a loss and makes no update, so nothing takes the loss's divisor.
    """
    if isinstance(divisor, (int, str)):
        return False
    try:
        keras.ops.add(divisor, 0)
    except Exception:  # each backend raises another type
        return True
    return False


def _divisor(loss: Any, values: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The divisor of a loss, or a text that says why the divisor is not known.

    Args:
        loss: an instance of a class of keras.losses.
        values: result of the loss's `call`: a tensor with one value for each element.
        y_pred: the model's output. It may have a mask.
        sample_weight: the sample weights that the loss got, or None.

    """
    if loss.reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        return f"the loss {loss.name!r} has reduction={loss.reduction!r}, which divides by nothing (use op=hvd.Sum with sums)"
    if len(values.shape) == 0:
        return f"the loss {loss.name!r} gives one number instead of one for each sample"
    count = math.prod(keras.ops.shape(values))
    masks = [mask for mask in map(_mask_of, (y_pred, values)) if mask is not None]
    mask = functools.reduce(keras.ops.multiply, [keras.ops.cast(mask, "float32") for mask in masks]) if masks else None
    if loss.reduction != "mean_with_sample_weight":
        return count if mask is None else keras.ops.mean(mask) * count
    if sample_weight is None:
        return count if mask is None else keras.ops.sum(mask)
    weights = keras.ops.convert_to_tensor(sample_weight, "float32")
    if mask is None:
        return keras.ops.sum(weights)
    if len(weights.shape) != len(mask.shape):  # one of them has a last dimension of 1
        weights = keras.ops.reshape(weights, keras.ops.shape(mask))
    return keras.ops.sum(mask * weights)


def _mask_of(tensor: Any) -> Any:
    """The mask that Keras has attached to a tensor, or None.

    An array of JAX cannot have attributes, so Keras keeps masks in a table, which `get_keras_mask` reads.
    """
    get_mask = getattr(importlib.import_module("keras.src.backend"), "get_keras_mask", None)
    return getattr(tensor, "_keras_mask", None) if get_mask is None else get_mask(tensor)
