"""Broadcasts variables and objects from one rank to all, and gathers objects."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import objects, ops
from hvdlite.agreement import name_of, require_same_variables
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set, root_arguments
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.names import collective_name
from hvdlite.tensorflow.ops import member_of
from hvdlite.tensorflow.variables import of_tensorflow

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_calls(process_set: ProcessSet) -> str:
    """For error texts: the calls that copy the first rank's model and optimizer to all ranks of a process set."""
    arguments = root_arguments(process_set)
    return " and ".join(f"hvd.broadcast_variables({owner}.variables, {arguments})" for owner in ("model", "optimizer"))


@as_written
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root's values to variables on all ranks. Collective over `process_set`.

    Args:
        variables: variables of TensorFlow (also those of TensorFlow 1, also reference variables) or Keras. All ranks pass the
            same number of variables in the same order, with the same shapes and dtypes. They are paired by their order, because
            their names differ if a rank has made more models than others.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.
        inplace: accepted for compatibility with Horovod; not used. The values are always assigned.

    Returns:
        In a graph the operation that broadcasts and assigns. Eagerly None: the values are assigned when the call returns.

    Raises:
        InvalidArgumentError: this rank or the root is not a member of the process set, an element of `variables` is no
            variable, or a variable has a dtype that cannot be sent, such as string.
        MismatchError: (eagerly) the ranks have different numbers of variables, or variables of different shapes or dtypes.
        HorovodInternalError: (eagerly) as for `hvdlite.broadcast`.
        tf.errors.OpError: (when the graph runs) the collective failed.

    """
    assigned = _broadcast(variables, root_rank, "broadcast_variables", process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


@as_written
def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """As `broadcast_variables`, but returns the new values.

    Args:
        variables: as for `broadcast_variables`.
        root_rank: as for `broadcast_variables`.
        name: a name for this call, the same on all ranks: the ranks' calls are matched by their names.
        process_set: as for `broadcast_variables`.

    Returns:
        One tensor for each variable. In a graph a tensor is computed after its variable has been assigned.

    Raises:
        InvalidArgumentError, MismatchError, HorovodInternalError, tf.errors.OpError: as for `broadcast_variables`.

    """
    kept = list(variables)
    assigned = _broadcast(kept, root_rank, name or "broadcast_", process_set)
    with tf.control_dependencies(assigned):
        return [tf.identity(of_tensorflow(variable).read_value()) for variable in kept]


def _broadcast(variables: Iterable[Any], root_rank: int, name: str, process_set: ProcessSet) -> list[tf.Operation]:
    """In a graph: makes and returns the operations that broadcast and assign. Eagerly: assigns, and returns an empty list."""
    set_id = member_of(process_set, root_rank)
    kept = list(variables)
    targets = [_require_variable(name, place, variable) for place, variable in enumerate(kept)]
    labels, dtypes = [name_of(variable) for variable in kept], [target.dtype.base_dtype.name for target in targets]
    names = [f"{name}_{place + 1}of{len(targets)}" for place in range(len(targets))]
    if tf.executing_eagerly():
        # With the core API all broadcasts are in flight together. TensorFlow's ops would wait for each broadcast.
        arrays = [np.asarray(target.numpy()) for target in targets]
        shapes = [array.shape for array in arrays]
        require_same_variables(name, list(zip(labels, dtypes, shapes, strict=True)), process_set)
        pending = [ops.broadcast_async_(array, root_rank, own, process_set) for array, own in zip(arrays, names, strict=True)]
        for target, handle in zip(targets, pending, strict=True):
            target.assign(handle.synchronize())
        return []
    for label, dtype in zip(labels, dtypes, strict=True):
        code_of_name(dtype, f"variable {label!r} given to {name}")
    values = [
        collective_ops.broadcast(tf.identity(target), root_rank=root_rank, name=collective_name(own), set_id=set_id)
        for target, own in zip(targets, names, strict=True)
    ]
    return [tf.compat.v1.assign(target, value).op for target, value in zip(targets, values, strict=True)]


def _require_variable(name: str, place: int, variable: Any) -> Any:
    """The ``tf.Variable``. Raises InvalidArgumentError if `variable` is no variable."""
    target = of_tensorflow(variable)
    if not hasattr(target, "assign"):
        raise InvalidArgumentError(
            f"{name} takes variables, but element {place + 1} is a {type(variable).__name__}; pass tensors to broadcast() one "
            "by one (for a RaggedTensor its .flat_values and .row_lengths())"
        )
    return target


def broadcast_global_variables(root_rank: int) -> Any:
    """Makes the operation that assigns the root's values to all global variables of a graph of TensorFlow 1, on all ranks.

    Raises:
        UnsupportedError: it was called in eager mode, which has no list of all variables.

    """
    if tf.executing_eagerly():
        raise UnsupportedError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Assigns the root's values to all global variables after a session of ``tf.compat.v1.train`` was made.

    Args:
        root_rank: the root's rank in the whole job, the same on all ranks.
        device: device of the operations, such as ``"/cpu:0"``; "": TensorFlow chooses it.

    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._operation: Any = None

    def begin(self) -> None:
        """Makes the operation in the session's graph."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self._device or None):
                self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation. Collective over all ranks."""
        session.run(self._operation)


@as_written
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `hvdlite.broadcast_object`; `session` is not used, because objects are not sent through graphs."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts its argument: it calls `broadcast_object`, with the arguments given here."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@as_written
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As `hvdlite.allgather_object`; `session` is not used, because objects are not sent through graphs."""
    return objects.allgather_object(obj, name, process_set)
