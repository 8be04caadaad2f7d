"""What a model holds that training changes: its weights, and its optimizers in whichever attribute they are.

Neither random seeds nor metrics are among it. A rank's seeds make the masks and the augmentation of its own part of the data,
which are to differ from the other ranks'. Metrics tell of its own part, and begin anew in each epoch.
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
from hvdlite.keras.variables import identity_of, variables_of
from hvdlite.objects import allgather_object

__all__ = ["build_optimizer", "build_optimizers_alike", "is_built", "optimizers_of", "state_variables"]


def state_variables(model: Any, optimizers: Iterable[Any]) -> list[Any]:
    """The variables of a model and of optimizers, each once, but slots that one rank alone keeps."""
    variables = [*model.weights, *current_backend().other_variables(model)]
    for optimizer in optimizers:
        shards = shards_of(optimizer)
        variables += [each for each in variables_of(optimizer) if shards is None or not shards.is_slot(each)]
    return list({identity_of(variable): variable for variable in variables}.values())


def optimizers_of(model: Any) -> dict[str, Any]:
    """The optimizers among the attributes of a model and of its layers, by where they are; that of ``compile()`` is first."""
    return held_by(model, is_optimizer)


def is_built(model: Any) -> bool:
    """Have all variables of the model been made?"""
    return bool(model.built) and all(layer.built for layer in getattr(model, "layers", ()))


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Makes the optimizer's slots for the model, which is built, where they are missing; legacy ones make theirs later."""
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def build_optimizers_alike(model: Any, optimizers: dict[str, Any]) -> None:
    """Makes the slots that another rank's optimizer has, such as one from a checkpoint. Collective over all ranks.

    Args:
        model: whose weights the optimizers have slots for.
        optimizers: as `optimizers_of` gives them.

    Raises:
        MismatchError: the ranks hold other optimizers, or of another kind.

    """
    mine = {path: (_kind_of(each), _slots_of(each, model.weights)) for path, each in optimizers.items()}
    everyone = allgather_object(mine, "keras.optimizers")
    ranks = range(len(everyone))
    kinds = [sorted((path, kind) for path, (kind, _) in theirs.items()) for theirs in everyone]
    if any(theirs != kinds[0] for theirs in kinds):
        differing = only_on([list(theirs) for theirs in everyone], ranks) or difference(kinds, ranks)
        raise MismatchError(
            f"the ranks' models hold different optimizers: {differing}; build and compile the same model on every rank"
        )
    for path, optimizer in optimizers.items():
        slots = next((theirs[path][1] for theirs in everyone if theirs[path][1]), None)
        if slots and mine[path][1] is None and max(slots) < len(model.weights):
            optimizer.build([model.weights[place] for place in slots])


def _kind_of(optimizer: Any) -> str:
    """What has to be the same on all ranks; those outside of a process set need not wrap for it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    name = optimizer.__class__.__name__ + ("" if inner is None else f" around {inner.__class__.__name__}")
    everywhere = is_distributed(optimizer) and optimizer._hvdlite.settings.reduction.process_set.process_set_id == 0
    return f"{name}, wrapped" if everywhere else name


def _slots_of(optimizer: Any, weights: Sequence[Any]) -> list[int] | None:
    """The places of the weights that the optimizer has slots for, in its order; None where it has none, or for others too."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if KERAS_3:
        key_of, keys = id, [id(variable) for variable in optimizer._trainable_variables]
    else:
        key_of, keys = getattr(optimizer, "_var_key", id), list(getattr(optimizer, "_index_dict", ()))
    places = {key_of(weight): place for place, weight in enumerate(weights)}
    return [places[key] for key in keys] if keys and all(key in places for key in keys) else None
