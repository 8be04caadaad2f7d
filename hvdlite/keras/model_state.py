"""Finds the state of a model: its weights, and the variables of its optimizers, in whichever attributes these are.

Random seeds and metrics are no part of the state. Seeds must differ between ranks, so that masks and augmentation differ.
Metrics describe a rank's own part of the data, and start at 0 in each epoch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from hvdlite.agreement import difference, only_on
from hvdlite.errors import MismatchError
from hvdlite.keras.arguments import is_optimizer
from hvdlite.keras.attributes import held_by
from hvdlite.keras.backends import current_backend
from hvdlite.keras.library import KERAS_3
from hvdlite.keras.optimizer import is_distributed
from hvdlite.keras.sharding import shards_of
from hvdlite.keras.variables import identity_of, read, variables_of
from hvdlite.objects import allgather_object


def state_variables(model: Any, optimizers: Iterable[Any]) -> list[Any]:
    """The variables of a model and of optimizers, each once. Slots that ``shard=True`` splits over the ranks are left out."""
    variables = [*model.weights, *current_backend().other_variables(model)]
    for optimizer in optimizers:
        shards = shards_of(optimizer)
        variables += [each for each in variables_of(optimizer) if shards is None or not shards.is_slot(each)]
    return list({identity_of(variable): variable for variable in variables}.values())


def optimizers_of(model: Any) -> dict[str, Any]:
    """The optimizers among the attributes of a model and of its layers, by path, in the order of `held_by`."""
    return held_by(model, is_optimizer)


def is_built(model: Any) -> bool:
    """Whether all variables of the model have been made."""
    return bool(model.built) and all(layer.built for layer in getattr(model, "layers", ()))


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Makes an optimizer's slots for a built model, if there are none. Legacy optimizers make slots in their first step."""
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def first_values(optimizer: Any, weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The variables of a built optimizer, each with the value that a new optimizer gives it; empty if that is not known.

    Args:
        optimizer: an optimizer with slots.
        weights: the weights of the model that the optimizer trains; not used with Keras 3.

    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    places = None if KERAS_3 else _slots_of(optimizer, weights)
    trained = inner._trainable_variables if KERAS_3 else [weights[place] for place in places or ()]
    variables = variables_of(optimizer)
    fresh = optimizer.__class__.from_config(optimizer.get_config())
    if trained:
        fresh.build(list(trained))
    values = [read(variable) for variable in variables_of(fresh)]
    return list(zip(variables, values, strict=True)) if len(values) == len(variables) else []


def build_optimizers_alike(model: Any, optimizers: dict[str, Any]) -> None:
    """Makes the slots that only optimizers of other ranks have, for example from a checkpoint. Collective over all ranks.

    Args:
        model: the model that the optimizers train.
        optimizers: optimizers by path, from `optimizers_of`.

    Raises:
        MismatchError: the ranks have different optimizers, or optimizers of different classes.

    """
    mine = {path: (_kind_of(each), _slots_of(each, model.weights)) for path, each in optimizers.items()}
    everyone = allgather_object(mine, "keras.optimizers")
    ranks = range(len(everyone))
    kinds = [sorted((path, kind) for path, (kind, _) in theirs.items()) for theirs in everyone]
    if any(theirs != kinds[0] for theirs in kinds):
        differing = only_on([list(theirs) for theirs in everyone], ranks) or difference(dict(enumerate(kinds)))
        raise MismatchError(
            f"the ranks' models hold different optimizers: {differing}; build and compile the same model on every rank"
        )
    for path, optimizer in optimizers.items():
        slots = next((theirs[path][1] for theirs in everyone if theirs[path][1]), None)
        if slots and mine[path][1] is None and max(slots) < len(model.weights):
            optimizer.build([model.weights[place] for place in slots])


def _kind_of(optimizer: Any) -> str:
    """A text that must be the same on all ranks: the optimizer's classes, and whether it is wrapped for process set 0.

    Wrapping for another set does not count, because ranks outside of that set need not wrap their optimizers.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    name = optimizer.__class__.__name__ + ("" if inner is None else f" around {inner.__class__.__name__}")
    everywhere = is_distributed(optimizer) and optimizer._hvdlite.settings.reduction.process_set.process_set_id == 0
    return f"{name}, wrapped" if everywhere else name


def _slots_of(optimizer: Any, weights: Sequence[Any]) -> list[int] | None:
    """The indices in `weights` of the weights for which the optimizer has slots, in the optimizer's order.

    None: the optimizer has no slots, or it also has slots for variables that are not in `weights`.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if KERAS_3:
        key_of, keys = id, [id(variable) for variable in optimizer._trainable_variables]
    else:
        key_of, keys = getattr(optimizer, "_var_key", id), list(getattr(optimizer, "_index_dict", ()))
    places = {key_of(weight): place for place, weight in enumerate(weights)}
    return [places[key] for key in keys] if keys and all(key in places for key in keys) else None
