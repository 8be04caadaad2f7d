"""Checks the arguments of `DistributedOptimizer`. All checks run before the optimizer is wrapped."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from hvdlite.checks import check_predivide
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.keras.library import KERAS_3, keras
from hvdlite.keras.reducer import Groups
from hvdlite.requests import Average, Sum, resolve_op
from hvdlite.submission import check_weighted


def is_optimizer(value: Any) -> bool:
    """Whether the value is an optimizer of the Keras that this process trains with."""
    kinds = (keras.optimizers.Optimizer,) if KERAS_3 else (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)
    return isinstance(value, kinds)


def check_optimizer(optimizer: Any) -> None:
    """Raises InvalidArgumentError unless `optimizer` is an optimizer of the Keras that this process trains with."""
    if not is_optimizer(optimizer):
        kind = type(optimizer)
        legacy = keras.__name__ == "keras" and kind.__module__.startswith("tf_keras.")
        raise InvalidArgumentError(
            f"DistributedOptimizer wraps an optimizer of Keras {keras.__version__} (the module {keras.__name__}), got a "
            f"{kind.__module__}.{kind.__qualname__}" + ("; for tf_keras set TF_USE_LEGACY_KERAS=1" if legacy else "")
        )


def checked_op(op: int, predivide: float) -> int:
    """The reduce operator.

    Raises:
        InvalidArgumentError: `op` is neither Average nor Sum; or `predivide` is wrong, or needs Average.

    """
    op = resolve_op(op, None)
    if op not in (Average, Sum):
        raise InvalidArgumentError("op currently only supports Average and Sum (for an optimizer of Keras)")
    check_predivide(predivide, op)
    return op


def check_weighted_by_loss(weighted: Any, op: int) -> None:
    """Checks the argument `weighted`.

    Raises:
        InvalidArgumentError: `weighted` is no bool; or it is True, and `op` is not Average.
        UnsupportedError: `weighted` is True, and this is not Keras 3. Only in Keras 3 hvdlite can know by which number a loss
            divides its sum (`hvdlite.keras.loss_weights`).

    """
    if not isinstance(weighted, bool):
        raise InvalidArgumentError(f"weighted must be True or False, got {weighted!r}; set a number as optimizer.weight")
    if not weighted:
        return
    check_weighted(op)
    if not KERAS_3:
        raise UnsupportedError(
            f"weighted=True needs Keras 3, this is {keras.__name__} {keras.__version__}: leave weighted out, and set "
            "optimizer.weight in your own training step"
        )


def chosen_groups(num_groups: int, groups: Any) -> Any:
    """The groups that the user gave as `groups`, or under the deprecated name `num_groups`."""
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=3)
        return num_groups if groups is None else groups
    return groups


def checked_groups(groups: int | Sequence[Iterable[Any]] | None) -> Groups:
    """The groups, with each iterable as a tuple.

    Raises:
        InvalidArgumentError: `groups` is neither a positive integer nor a list of lists, or a variable is in two lists.

    """
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return groups
    if not isinstance(groups, list | tuple) or not all(isinstance(group, Iterable) for group in groups):
        raise InvalidArgumentError("groups should be a positive integer or a list of lists of variables")
    chosen = tuple(tuple(group) for group in groups)
    members = [id(variable) for group in chosen for variable in group]
    if len(set(members)) < len(members):
        raise InvalidArgumentError("A variable can only appear once in groups")
    return chosen


def checked_layers(local_layers: Any) -> list[Any]:
    """The layers as a list. Raises InvalidArgumentError if an element is no layer of Keras."""
    layers = [] if local_layers is None else [local_layers] if isinstance(local_layers, keras.layers.Layer) else local_layers
    if not isinstance(layers, list | tuple) or not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise InvalidArgumentError(f"All local layers must be of keras.layers.Layer type, got {local_layers!r}")
    return list(layers)


def scales_loss(optimizer: Any) -> bool:
    """Whether the optimizer is a loss scaler of Keras."""
    return isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)


def scaled(optimizer: Any) -> Any:
    """Puts the optimizer into a loss scaler if the policy is ``mixed_float16``. Otherwise returns the optimizer itself.

    ``compile()`` would do the same later. An optimizer that already is a loss scaler is returned as it is.
    """
    check_optimizer(optimizer)
    if keras.mixed_precision.global_policy().name != "mixed_float16" or scales_loss(optimizer):
        return optimizer
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def accumulate(optimizer: Any, passes: int) -> None:
    """Makes an optimizer of Keras 3 add up the gradients of `passes` backward passes, and then apply the mean.

    Raises:
        InvalidArgumentError: the optimizer already accumulates another number of passes, or its variables have been made.
        UnsupportedError: this Keras is older than 3.1, and cannot accumulate gradients.

    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "gradient_accumulation_steps"):
        raise UnsupportedError(
            f"backward_passes_per_step={passes} needs the gradient accumulation of Keras 3.1, this is Keras {keras.__version__}"
        )
    steps = inner.gradient_accumulation_steps
    if steps == passes:
        return
    if steps or inner.built:
        have = f"accumulates {steps} passes already" if steps else "is built already, without room for accumulated gradients"
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes}: the optimizer {have}; make it with gradient_accumulation_steps={passes}"
        )
    inner.gradient_accumulation_steps = passes
