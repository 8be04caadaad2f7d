"""Variables and objects from one rank to all."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import objects, ops
from hvdlite.agreement import name_of, require_same_variables
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set
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


@as_written
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives all ranks the root's values. Collective over `process_set`.

    Args:
        variables: ``tf.Variable``, of v1 (references too) or of Keras; equally many on all ranks, in the same order, with the
            same shapes and dtypes. They are paired by their order, as names differ where a rank has made more models.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.
        inplace: accepted for compatibility with Horovod; the values are assigned in either case.

    Returns:
        In a graph the operation that does it; eagerly, where it is done at once, None.

    Raises:
        InvalidArgumentError: this rank or the root is not a member of the process set, something is no variable, or a dtype
            cannot be sent, such as string.
        MismatchError: (eagerly) the ranks have different numbers of variables, or of different shapes or dtypes.
        HorovodInternalError: (eagerly) as for `hvdlite.broadcast`.
        tf.errors.OpError: (when the graph runs) the collective failed.

    """
    assigned = _broadcast(variables, root_rank, "broadcast_variables", process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


@as_written
def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """`broadcast_variables` that returns the new values.

    Args:
        variables: as for `broadcast_variables`.
        root_rank: as for `broadcast_variables`.
        name: pairs the ranks' calls.
        process_set: as for `broadcast_variables`.

    Returns:
        One tensor for each variable; in a graph it is there when the variable has been assigned.

    """
    kept = list(variables)
    assigned = _broadcast(kept, root_rank, name or "broadcast_", process_set)
    with tf.control_dependencies(assigned):
        return [tf.identity(of_tensorflow(variable).read_value()) for variable in kept]


def _broadcast(variables: Iterable[Any], root_rank: int, name: str, process_set: ProcessSet) -> list[tf.Operation]:
    """The assignments in a graph; an empty list in eager mode, where they are already done."""
    set_id = member_of(process_set, root_rank)
    kept = list(variables)
    targets = [_require_variable(name, place, variable) for place, variable in enumerate(kept)]
    labels, dtypes = [name_of(variable) for variable in kept], [target.dtype.base_dtype.name for target in targets]
    names = [f"{name}_{place + 1}of{len(targets)}" for place in range(len(targets))]
    if tf.executing_eagerly():
        # As arrays, all of which are in handle at once; TensorFlow would wait for each operation.
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
    """The ``tf.Variable``; raises InvalidArgumentError if it is none."""
    target = of_tensorflow(variable)
    if not hasattr(target, "assign"):
        raise InvalidArgumentError(
            f"{name} takes variables, and number {place + 1} of those given is a {type(variable).__name__}; pass tensors to "
            "broadcast() one by one (of a ragged one .flat_values and .row_lengths())"
        )
    return target


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all ranks the root's values of all global variables of the v1 graph.

    Raises:
        UnsupportedError: in eager mode, which keeps no list of variables.

    """
    if tf.executing_eagerly():
        raise UnsupportedError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the root's global variables when a session of ``tf.compat.v1.train`` has been made.

    Args:
        root_rank: the root's rank in the whole job, the same on all ranks.
        device: of the operations; "" leaves it to TensorFlow.

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
    """As `hvdlite.broadcast_object`; `session` is not used, because objects do not go through graphs."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function of one object, which it gives to `broadcast_object` with these arguments, with the errors of that one."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@as_written
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As `hvdlite.allgather_object`; `session` is not used, because objects do not go through graphs."""
    return objects.allgather_object(obj, name, process_set)
