"""What the losses of Keras 3 divide by, which is how much a rank's gradients count in the mean over all ranks.

A loss of Keras is a sum over elements, divided by a number that its reduction chooses: with "sum_over_batch_size" (the default,
also called "mean") by the number of elements that no mask leaves out, whatever `sample_weight` says; with
"mean_with_sample_weight" by the sum of the sample weights. One process divides the sum over the whole batch by the sum of these
numbers. So a rank's weight is the number by which its own loss was divided.
"""

import functools
import importlib
import math
import threading
from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.keras.library import keras

__all__ = ["follow_losses", "weight_of_last_loss"]

_REMEDY = "leave weighted out, and set optimizer.weight before each update in a training step of your own"


class _LastLoss(threading.local):
    """The number that the last loss of this thread divided by, or a text that says why there is none."""

    divisor: Any = None


_last = _LastLoss()


def follow_losses() -> None:
    """From now on each loss of Keras tells what it divides by."""
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

        self.call = keep  # for this object alone
        try:
            loss = plain(self, y_true, y_pred, sample_weight)
        finally:
            del self.call
        _last.divisor = _divisor(self, found[-1], y_pred, sample_weight)
        return loss

    call_and_tell._hvdlite = True  # type: ignore[attr-defined]
    kind.__call__ = call_and_tell


def weight_of_last_loss(label: str) -> Any:
    """The number that the last loss divided by: a number, or a scalar tensor of the backend. It is told once.

    Args:
        label: of the optimizer, for messages.

    Raises:
        InvalidArgumentError: there was no loss of Keras since the last call, or it is not known what it divides by.

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
    """Does this tensor exist only while another step is traced? `evaluate()`, say, traces a step without an update."""
    if isinstance(divisor, (int, str)):
        return False
    try:
        keras.ops.add(divisor, 0)
    except Exception:  # each backend has its own
        return True
    return False


def _divisor(loss: Any, values: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The number that a loss divides by, or a text that says why it is not known.

    Args:
        loss: of keras.losses.
        values: one for each element, from its `call`.
        y_pred: the model's output, which may have a mask.
        sample_weight: as the loss got it.

    """
    if loss.reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        return f"the loss {loss.name!r} has reduction={loss.reduction!r}, which divides by nothing (use op=hvd.Sum with sums)"
    if len(values.shape) == 0:
        return f"the loss {loss.name!r} gives one number, and not one for each sample"
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
    """The mask that Keras has attached to a tensor, or None. Arrays of JAX take no attributes: Keras has a table for them."""
    get_mask = getattr(importlib.import_module("keras.src.backend"), "get_keras_mask", None)
    return getattr(tensor, "_keras_mask", None) if get_mask is None else get_mask(tensor)
