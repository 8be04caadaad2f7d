"""The ops of csrc/bindings/tensorflow as Python functions, with gradients.

They take plain arguments and check none of them; what users call is in `hvdlite.tensorflow.ops`. All are collective over the
process set `set_id`, and fail with a ``tf.errors.OpError`` when they run: FailedPreconditionError where ranks disagree or
hvdlite is not initialised, InvalidArgumentError for a bad argument, AbortedError where a rank was lost (docs/errors.md).

*Names.* `name` is what the ranks' tensors are paired by; "" numbers the operation when it runs, for eager mode only. In a
loop, whose iterations may overlap, each iteration but the first has names of its own.

*State.* In a graph an op has no state, unless `stateful` asks for it. Without state nothing orders it, so that all gradients
are in flight together, and TensorFlow drops it where nobody uses the result. With state it runs in the order of the program,
whether its result is used or not: right for what ranks use differently, and for what is done for its effect.

*Constants.* A stateless op of constants, as the gradient of a linear loss is one, would be evaluated once while the graph is
optimised, if all its inputs were constants. So it has one more, the anchor, that never is: a tensor of the function's
surroundings, too large to become a constant of the function. In graphs of TensorFlow 1, which have no surroundings, and in
the gradients of loops, which cannot refer to new ones, ops are stateful.

*Gradients* follow Horovod's convention, as in `hvdlite.torch.ops`. The backward of an op that has a name goes by
``<name>.grad``, and it has state if the op has.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from hvdlite.requests import Sum
from hvdlite.tensorflow.library import load

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank",
    "local_size",
    "process_set_included",
    "rank",
    "reducescatter",
    "size",
]

_OPS = load()


# --- stateless, stateful, eager --------------------------------------------------------------------------------------------

# Captured tensors of up to 128 elements become constants of a function.
_ANCHOR_ELEMENTS = 256


@cache
def _eager_anchor() -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.zeros([_ANCHOR_ELEMENTS], tf.uint8)


def _new_anchor() -> tf.Tensor | None:
    """The anchor for a stateless op that is about to be made; None if it has to be stateful."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "capture"):  # no function: a graph of TensorFlow 1
        return None
    while graph is not None:
        if type(graph).__name__ == "_WhileBodyGradFuncGraph":
            return None
        graph = getattr(graph, "outer_graph", None)
    return _eager_anchor()


def _make(kind: str, *inputs: Any, stateful: bool, anchor: tf.Tensor | None = None, **attributes: Any) -> Any:
    """Makes the op of a kind (``"Allreduce"``) that fits the mode and the graph."""
    if tf.executing_eagerly():
        return _wrapper(kind, True)(*inputs, blocking=True, **attributes)
    if not stateful and anchor is None:
        anchor = _new_anchor()
    if stateful or anchor is None:
        return _wrapper(kind, True)(*inputs, **attributes)
    return _wrapper(kind, False)(*inputs, anchor, **attributes)


@cache
def _wrapper(kind: str, stateful: bool) -> Any:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind)
    return getattr(_OPS, f"hvdlite{words}_stateful" if stateful else f"hvdlite{words}")


@cache
def _bits(factor: float) -> int:
    """A factor as an attribute of an op: floats there have 32 bits only."""
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


def _factor(bits: int) -> float:
    factor: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return factor


# --- the collectives -------------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    stateful: bool = False,
) -> tf.Tensor:
    """Reduces a tensor of any shape and dtype of `hvdlite.dtypes`; gives one like it, the same on all ranks."""
    factors = {"prescale_bits": _bits(prescale), "postscale_bits": _bits(postscale)}
    return _make("Allreduce", tensor, stateful=stateful, tensor_name=name, reduce_op=op, process_set=set_id, **factors)


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    stateful: bool = False,
) -> list[tf.Tensor]:
    """`allreduce` of tensors, of different dtypes too, that are agreed on and sent together; `name` is the group's."""
    if not tensors:
        return []
    factors = {"prescale_bits": _bits(prescale), "postscale_bits": _bits(postscale)}
    attributes = {"tensor_name": name, "reduce_op": op, "process_set": set_id, **factors}
    return list(_make("GroupedAllreduce", list(tensors), stateful=stateful, **attributes))


def allgather(tensor: Any, *, name: str = "", set_id: int = 0, stateful: bool = False) -> tf.Tensor:
    """The ranks' rows, in the order of ranks; they may differ in the first extent only."""
    return _make("Allgather", tensor, stateful=stateful, tensor_name=name, process_set=set_id)


def grouped_allgather(tensors: Sequence[Any], *, name: str = "", set_id: int = 0, stateful: bool = False) -> list[tf.Tensor]:
    """`allgather` of tensors that are agreed on and sent together; `name` is the group's."""
    if not tensors:
        return []
    return list(_make("GroupedAllgather", list(tensors), stateful=stateful, tensor_name=name, process_set=set_id))


def broadcast(tensor: Any, *, root_rank: int, name: str = "", set_id: int = 0, stateful: bool = False) -> tf.Tensor:
    """The tensor of the rank `root_rank` (of the whole job); shape and dtype are the same on all ranks."""
    attributes = {"root_rank": root_rank, "tensor_name": name, "process_set": set_id}
    return _make("Broadcast", tensor, stateful=stateful, **attributes)


def alltoall(
    tensor: Any, splits: Any = None, *, name: str = "", set_id: int = 0, stateful: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends ``splits[i]`` rows to the set's i-th rank, or equally many to each.

    Args:
        tensor: at least one-dimensional.
        splits: a vector of int32 or int64 with an entry for each rank of the set, or None.
        name: see the module.
        set_id: see the module.
        stateful: see the module.

    Returns:
        The rows received, in the order of ranks, and how many came from each (int32).

    """
    has_splits = splits is not None
    sent = tf.zeros([0], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    attributes = {"has_splits": has_splits, "tensor_name": name, "process_set": set_id}
    output, received = _make("Alltoall", tensor, sent, stateful=stateful, **attributes)
    return output, received


def reducescatter(
    tensor: Any,
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    stateful: bool = False,
) -> tf.Tensor:
    """This rank's rows of the reduced tensor; op is Average or Sum."""
    factors = {"prescale_bits": _bits(prescale), "postscale_bits": _bits(postscale)}
    return _make("Reducescatter", tensor, stateful=stateful, tensor_name=name, reduce_op=op, process_set=set_id, **factors)


def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    stateful: bool = False,
) -> list[tf.Tensor]:
    """`reducescatter` of tensors that are agreed on and sent together; `name` is the group's."""
    if not tensors:
        return []
    factors = {"prescale_bits": _bits(prescale), "postscale_bits": _bits(postscale)}
    attributes = {"tensor_name": name, "reduce_op": op, "process_set": set_id, **factors}
    return list(_make("GroupedReducescatter", list(tensors), stateful=stateful, **attributes))


def barrier(set_id: int = 0) -> tf.Operation | None:
    """Ends once all ranks of the set have come to it. In a graph of TensorFlow 1 the operation; in a function it runs."""
    return _OPS.hvdlite_barrier(process_set=set_id, blocking=tf.executing_eagerly())


def join(set_id: int = 0) -> tf.Tensor:
    """Waits, without more data of its own, until all ranks of the set have joined; gives the last one's rank (int32)."""
    return _OPS.hvdlite_join(process_set=set_id, blocking=tf.executing_eagerly())


# --- evaluated when they run -----------------------------------------------------------------------------------------------


def size(set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set (int32)."""
    return _OPS.hvdlite_size(process_set=set_id, name=name)


def rank(name: str | None = None) -> tf.Tensor:
    """This process's rank (int32)."""
    return _OPS.hvdlite_rank(name=name)


def local_rank(name: str | None = None) -> tf.Tensor:
    """This process's number among those on its host (int32)."""
    return _OPS.hvdlite_local_rank(name=name)


def local_size(name: str | None = None) -> tf.Tensor:
    """The number of processes on this host (int32)."""
    return _OPS.hvdlite_local_size(name=name)


def process_set_included(set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this rank is a member of the process set, 0 where it is not (int32)."""
    return _OPS.hvdlite_process_set_included(process_set=set_id, name=name)
