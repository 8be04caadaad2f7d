"""Reads, compares and broadcasts variables of models and optimizers, for any Keras on any backend."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hvdlite import ops
from hvdlite.agreement import name_of, require_same_variables
from hvdlite.errors import UnsupportedError
from hvdlite.keras.library import keras
from hvdlite.process_sets import ProcessSet, global_process_set, root_arguments
from hvdlite.runtime import RUNTIME


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Always raises an error, as in Horovod with TensorFlow 2: an eager program has no list of all variables.

    Raises:
        UnsupportedError: always; the text says what to call instead.
    """
    raise UnsupportedError(
        f"broadcast_global_variables({root_rank}): an eager program has no list of all variables; pass "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank}) to fit(), or broadcast_variables() those of your model and "
        "of your optimizer"
    )


def broadcast_call(process_set: ProcessSet, is_split: bool = False) -> str:
    """For error texts: the call that gives all ranks of a process set the model and the optimizer of its first rank.

    is_split: has each rank only a part of the optimizer's slots?
    """
    of_optimizer = "optimizer.iterations" if is_split else "*optimizer.variables"
    return f"hvd.broadcast_variables([*model.variables, {of_optimizer}], {root_arguments(process_set)})"


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites variables in place with the root's values. Collective over `process_set`. Do not call it in a traced function.

    Args:
        variables: variables of Keras or TensorFlow, such as ``[*model.variables, *optimizer.variables]``. All ranks pass the
            same number of variables, with the same shapes and dtypes in the same order. Variables on GPUs are copied to host
            memory and back.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.

    Raises:
        MismatchError: the ranks have different numbers of variables, or variables of different shapes or dtypes.
        InvalidArgumentError: (on all ranks) a variable is of a dtype that cannot be sent, such as string.
        InvalidArgumentError, HorovodInternalError: as for `hvdlite.broadcast`.
    """
    variables = list(variables)
    arrays = [read(variable) for variable in variables]
    described = [(name_of(each), dtype_of(each), array.shape) for each, array in zip(variables, arrays, strict=True)]
    require_same_variables("broadcast_variables", described, process_set)
    is_root = RUNTIME.require_topology().rank == root_rank
    started = [
        ops.broadcast_async(array, root_rank, f"keras.variable.{place}", process_set) for place, array in enumerate(arrays)
    ]
    for variable, handle in zip(variables, started, strict=True):
        value = handle.synchronize()
        if not is_root:
            variable.assign(value)


@dataclass(frozen=True)
class Held:
    """A tensor of a torch module that is no variable of Keras, with the attributes that a variable of Keras has.

    Attributes:
        name: the tensor's name in the model.
        tensor: the tensor; `assign` overwrites its values in place.

    """

    name: str
    tensor: Any

    @property
    def dtype(self) -> str:
        """The name of the tensor's dtype, such as ``"float32"``."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def shape(self) -> Sequence[int]:
        """The tensor's shape."""
        return tuple(self.tensor.shape)

    def assign(self, value: Any) -> None:
        """Overwrites the tensor's values with an array of its shape."""
        self.tensor.data.copy_(keras.ops.convert_to_tensor(value))


def identity_of(variable: Any) -> int:
    """A number that identifies the variable as long as the model holds it."""
    return id(getattr(variable, "tensor", variable))


def is_among(variable: Any, ids: Set[int]) -> bool:
    """Whether `ids` contains the id of the variable, or of the framework's variable inside a variable of Keras 3."""
    # Not `value`: while a training step on JAX has taken the variable's value, `value` makes a new one.
    return id(variable) in ids or id(getattr(variable, "_value", variable)) in ids


def read(value: Any) -> npt.NDArray[Any]:
    """The values of a variable or an eager tensor as a contiguous array. The array may share the variable's memory."""
    value = getattr(value, "tensor", value)
    array = keras.ops.convert_to_numpy(value) if hasattr(keras, "ops") else keras.backend.get_value(value)
    return np.asarray(array, order="C")


def variables_of(optimizer: Any) -> Sequence[Any]:
    """All variables of an optimizer. In older optimizers `variables` is a method."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


def dtype_of(variable: Any) -> str:
    """The name of the variable's dtype."""
    return variable.dtype if isinstance(variable.dtype, str) else str(variable.dtype.name)


def facts_of(variables: Iterable[Any]) -> list[tuple[str, str]]:
    """For each variable a pair (name, text). The text has the dtype and the shape, which must be the same on all ranks."""
    return [(name_of(variable), f"{dtype_of(variable)} {list(variable.shape)}") for variable in variables]
