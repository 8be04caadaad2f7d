"""Variables of models and optimizers, of any Keras on any backend: as arrays, and the same on all ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hvdlite import ops
from hvdlite.agreement import name_of, require_same_variables
from hvdlite.errors import UnsupportedError
from hvdlite.keras.library import keras
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.runtime import RUNTIME

__all__ = [
    "Held",
    "broadcast_global_variables",
    "broadcast_variables",
    "dtype_of",
    "facts_of",
    "identity_of",
    "read",
    "variables_of",
]


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
    """A tensor of torch that a module holds and Keras knows nothing of, with what variables of Keras have.

    Attributes:
        name: in the model.
        tensor: of which the values are overwritten in place.

    """

    name: str
    tensor: Any

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def shape(self) -> Sequence[int]:
        """Its extents."""
        return tuple(self.tensor.shape)

    def assign(self, value: Any) -> None:
        """Overwrites it."""
        self.tensor.data.copy_(keras.ops.convert_to_tensor(value))


def identity_of(variable: Any) -> int:
    """What tells variables apart as long as the model holds them."""
    return id(getattr(variable, "tensor", variable))


def read(value: Any) -> npt.NDArray[Any]:
    """A variable or an eager tensor as a contiguous array, which may share its memory."""
    value = getattr(value, "tensor", value)
    array = keras.ops.convert_to_numpy(value) if hasattr(keras, "ops") else keras.backend.get_value(value)
    return np.asarray(array, order="C")


def variables_of(optimizer: Any) -> Sequence[Any]:
    """All variables of an optimizer; `variables` is a method in older ones."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


def dtype_of(variable: Any) -> str:
    """The name of its dtype."""
    return variable.dtype if isinstance(variable.dtype, str) else str(variable.dtype.name)


def facts_of(variables: Iterable[Any]) -> list[tuple[str, str]]:
    """Each variable's name, and what must be the same on all ranks."""
    return [(name_of(variable), f"{dtype_of(variable)} {list(variable.shape)}") for variable in variables]
