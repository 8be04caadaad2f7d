"""Variables of models and optimizers, of any Keras on any backend: as arrays, and the same on all ranks."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import numpy.typing as npt

from hvdlite import ops
from hvdlite.errors import MismatchError, UnsupportedError
from hvdlite.objects import allgather_object
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.runtime import RUNTIME

__all__ = ["broadcast_global_variables", "broadcast_variables", "build_optimizer", "is_built", "read", "variables_of"]


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Not offered, as in Horovod with TensorFlow 2: eager programs have no collection of all variables.

    Raises:
        UnsupportedError: always; the text names what to call instead.
    """
    raise UnsupportedError(
        f"broadcast_global_variables({root_rank}): an eager program has no list of all variables; pass "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank}) to fit(), or broadcast_variables() those of your model and "
        "of your optimizer"
    )


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites variables with the root's, in place. Collective over `process_set`; not for use inside a traced function.

    Args:
        variables: of Keras or TensorFlow, such as ``[*model.variables, *optimizer.variables]``: as many on all ranks, with the
            same shapes and dtypes in the same order. Those of a GPU go through host memory.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.

    Raises:
        MismatchError: the ranks have different numbers of variables, or of different shapes or dtypes.
        InvalidArgumentError, HorovodInternalError: as for `hvdlite.broadcast`.
    """
    variables = list(variables)
    counts = allgather_object(len(variables), "keras.variables", process_set)
    if len(set(counts)) > 1:
        raise MismatchError(
            f"broadcast_variables in process set {process_set.process_set_id}: the ranks have {counts} variables; build the "
            "same model and the same optimizer on every rank before they are broadcast"
        )
    is_root = RUNTIME.require_topology().rank == root_rank
    started = [
        ops.broadcast_async(read(variable), root_rank, f"keras.variable.{place}", process_set)
        for place, variable in enumerate(variables)
    ]
    for variable, handle in zip(variables, started, strict=True):
        value = handle.synchronize()
        if not is_root:
            variable.assign(value)


def read(value: Any) -> npt.NDArray[Any]:
    """A variable or an eager tensor as a contiguous array, which may share its memory."""
    array = keras.ops.convert_to_numpy(value) if hasattr(keras, "ops") else keras.backend.get_value(value)
    return np.asarray(array, order="C")


def variables_of(optimizer: Any) -> Sequence[Any]:
    """All variables of an optimizer; `variables` is a method in older ones."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


def is_built(model: Any) -> bool:
    """Have all variables of the model been made?"""
    return bool(model.built) and all(layer.built for layer in getattr(model, "layers", ()))


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Makes the optimizer's slots for the model, which is built, where they are missing; legacy ones make theirs later."""
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)
