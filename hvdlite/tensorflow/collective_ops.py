"""The ops of csrc/bindings/tensorflow as Python functions, with gradients.

They take plain arguments and check none of them; what users call is in `hvdlite.tensorflow.ops`. All are collective over the
process set `set_id`, and fail with a ``tf.errors.OpError`` when they run: FailedPreconditionError where ranks disagree or
hvdlite is not initialised, InvalidArgumentError for a bad argument, AbortedError where a rank was lost (docs/errors.md).

*Names.* `name` is what the ranks' tensors are paired by; "" numbers the operation when it runs, for eager mode only. In a
loop, whose iterations may overlap, each iteration but the first has names of its own.

*State.* In a graph an op has no state, unless `stateful` asks for it. Without state nothing orders it, so that all gradients
are in flight together, and TensorFlow drops it if the result is unused. With state it runs in the order of the program,
whether its result is used or not: right for what ranks use differently, and for what is done for its effect. (Where an op
has state in any case, is told in `hvdlite.tensorflow.making`.)

*Gradients* follow Horovod's convention, which `hvdlite.torch.ops` states. The backward of an op with a name goes by
``<name>.grad``; it has state if the op has.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvdlite.errors import UnsupportedError
from hvdlite.requests import OP_NAMES, Average, Max, Min, Product, Sum
from hvdlite.tensorflow.library import load
from hvdlite.tensorflow.making import bits_of, factor_of, make
from hvdlite.tensorflow.tensors import shares_of
from hvdlite.tensorflow.xla import require_no_xla

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


_NO_CODEC: Mapping[str, int] = {}


def _library(what: str) -> Any:
    """The wrappers of the ops, for one that cannot be compiled by XLA."""
    require_no_xla(what)
    return load()


# --- the collectives -------------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    weight: tf.Tensor | None = None,
    stateful: bool = False,
    codec: Mapping[str, int] = _NO_CODEC,
) -> tf.Tensor:
    """Reduces a tensor of any shape and dtype of `hvdlite.dtypes`; gives one like it, the same on all ranks.

    weight: a scalar of float64 in a weighted mean, which has no gradient itself. codec: `hvdlite.compression.Codec.fields`, or
    nothing.
    """
    attributes = {**_reduction(name, op, prescale, postscale, set_id), **codec}
    if weight is None:
        return make("Allreduce", tensor, stateful=stateful, **attributes)
    return make("WeightedAllreduce", tensor, weight, stateful=stateful, **attributes)


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    weight: tf.Tensor | None = None,
    stateful: bool = False,
    codec: Mapping[str, int] = _NO_CODEC,
) -> list[tf.Tensor]:
    """`allreduce` of tensors, of different dtypes too, that are agreed on and sent together; `name` is the group's."""
    if not tensors:
        return []
    attributes = {**_reduction(name, op, prescale, postscale, set_id), **codec}
    if weight is None:
        return list(make("GroupedAllreduce", list(tensors), stateful=stateful, **attributes))
    return list(make("GroupedWeightedAllreduce", list(tensors), weight, stateful=stateful, **attributes))


def allgather(tensor: Any, *, name: str = "", set_id: int = 0, stateful: bool = False) -> tf.Tensor:
    """The ranks' rows, in the order of ranks; they may differ in the first extent only."""
    return make("Allgather", tensor, stateful=stateful, tensor_name=name, process_set=set_id)


def grouped_allgather(tensors: Sequence[Any], *, name: str = "", set_id: int = 0, stateful: bool = False) -> list[tf.Tensor]:
    """`allgather` of tensors that are agreed on and sent together; `name` is the group's."""
    if not tensors:
        return []
    return list(make("GroupedAllgather", list(tensors), stateful=stateful, tensor_name=name, process_set=set_id))


def broadcast(tensor: Any, *, root_rank: int, name: str = "", set_id: int = 0, stateful: bool = False) -> tf.Tensor:
    """The tensor of the rank `root_rank` (of the whole job); shape and dtype are the same on all ranks."""
    attributes = {"root_rank": root_rank, "tensor_name": name, "process_set": set_id}
    return make("Broadcast", tensor, stateful=stateful, **attributes)


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
    output, received = make("Alltoall", tensor, sent, stateful=stateful, **attributes)
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
    return make("Reducescatter", tensor, stateful=stateful, **_reduction(name, op, prescale, postscale, set_id))


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
    attributes = _reduction(name, op, prescale, postscale, set_id)
    return list(make("GroupedReducescatter", list(tensors), stateful=stateful, **attributes))


def _reduction(name: str, op: int, prescale: float, postscale: float, set_id: int) -> dict[str, Any]:
    """The attributes of an op that reduces."""
    factors = {"prescale_bits": bits_of(prescale), "postscale_bits": bits_of(postscale)}
    return {"tensor_name": name, "reduce_op": op, "process_set": set_id, **factors}


def barrier(set_id: int = 0) -> tf.Operation | None:
    """Ends once all ranks of the set have called it. In a graph of TensorFlow 1 it returns the operation."""
    return _library("barrier").hvdlite_barrier(process_set=set_id, blocking=tf.executing_eagerly())


def join(set_id: int = 0) -> tf.Tensor:
    """Waits, without more data of its own, until all ranks of the set have joined; gives the last one's rank (int32)."""
    return _library("join").hvdlite_join(process_set=set_id, blocking=tf.executing_eagerly())


# --- evaluated when they run -----------------------------------------------------------------------------------------------


def size(set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set (int32)."""
    return _library("size").hvdlite_size(process_set=set_id, name=name)


def rank(name: str | None = None) -> tf.Tensor:
    """This process's rank (int32)."""
    return _library("rank").hvdlite_rank(name=name)


def local_rank(name: str | None = None) -> tf.Tensor:
    """This process's number among those on its host (int32)."""
    return _library("local_rank").hvdlite_local_rank(name=name)


def local_size(name: str | None = None) -> tf.Tensor:
    """The number of processes on this host (int32)."""
    return _library("local_size").hvdlite_local_size(name=name)


def process_set_included(set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this rank is a member of the process set, 0 where it is not (int32)."""
    return _library("process_set_included").hvdlite_process_set_included(process_set=set_id, name=name)


# --- gradients -------------------------------------------------------------------------------------------------------------


class _Backward:
    """The properties of an op that its backward needs. It makes more ops of the same kind, state and process set."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self._name = op.get_attr("tensor_name").decode()
        self.set_id = op.get_attr("process_set")
        self.has_state = op.type.endswith("Stateful")
        self.inputs = list(op.inputs) if self.has_state else list(op.inputs)[:-1]
        self._common = {"process_set": self.set_id, "stateful": self.has_state}

    def name(self, purpose: str) -> str:
        """A name that no other op of this graph has: the gradients of an op may be asked for more than once."""
        return _unique(f"{self._name}.{purpose}") if self._name else ""

    def factor(self, which: str) -> float:
        """The prescale or the postscale factor."""
        return factor_of(self.op.get_attr(f"{which}_bits"))

    def reduce(self, grads: Sequence[Any], op: int, purpose: str = "grad", **factors: int) -> list[tf.Tensor]:
        """Allreduces in one group, or a single tensor."""
        attributes = {"tensor_name": self.name(purpose), "reduce_op": op, **factors, **self._common}
        if len(grads) == 1:
            return [make("Allreduce", grads[0], **attributes)]
        return list(make("GroupedAllreduce", list(grads), **attributes))

    def gather(self, grads: Sequence[Any], purpose: str = "grad") -> list[tf.Tensor]:
        """Allgathers in one group, or a single tensor."""
        attributes = {"tensor_name": self.name(purpose), **self._common}
        if len(grads) == 1:
            return [make("Allgather", grads[0], **attributes)]
        return list(make("GroupedAllgather", list(grads), **attributes))

    def send_back(self, grad: Any, splits: Any) -> tf.Tensor:
        """An alltoall."""
        attributes = {"has_splits": True, "tensor_name": self.name("grad"), **self._common}
        return make("Alltoall", grad, splits, **attributes)[0]


_names_of: "WeakKeyDictionary[Any, Counter[str]]" = WeakKeyDictionary()


def _unique(name: str) -> str:
    if tf.executing_eagerly():
        return name
    names = _names_of.setdefault(tf.compat.v1.get_default_graph(), Counter())
    names[name] += 1
    return name if names[name] == 1 else f"{name}.{names[name]}"


def _register(kind: str, backward: Callable[..., list[Any]]) -> None:
    """Registers a function from (`_Backward`, incoming gradients) to one gradient for each tensor."""

    def gradient(op: Any, *grads: Any) -> list[Any]:
        found = backward(_Backward(op), *grads)
        return [*found, *[None] * (len(op.inputs) - len(found))]

    for state in ("", "Stateful"):
        tf.RegisterGradient(f"Hvdlite{kind}{state}")(gradient)


def _allreduce_backward(forward: _Backward, *grads: Any) -> list[Any]:
    op = forward.op.get_attr("reduce_op")
    if op not in (Min, Max, Product):
        kept = ("prescale_bits", "postscale_bits", "codec", "codec_between", "codec_block")
        return forward.reduce(grads, op, **{key: forward.op.get_attr(key) for key in kept})
    if forward.factor("prescale") != 1.0 or forward.factor("postscale") != 1.0:
        raise UnsupportedError(f"allreduce with op={OP_NAMES[op]} and scale factors has no gradient")
    totals = forward.reduce(grads, Sum)
    slopes = _product_slopes(forward) if op == Product else _choice_slopes(forward)
    return [total * slope for total, slope in zip(totals, slopes, strict=True)]


def _weighted_allreduce_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """This rank's share of all weights, times the sum: the weights belong to the tensors, not to the gradients."""
    factors = {key: forward.op.get_attr(key) for key in ("prescale_bits", "postscale_bits")}
    weight = forward.inputs[-1]
    totals = forward.reduce(grads, Sum, **factors)
    (weights,) = forward.reduce([weight], Sum, "weights")
    return shares_of(totals, weight, weights)


def _choice_slopes(forward: _Backward) -> list[tf.Tensor]:
    """The gradient of Min or Max for this rank's tensors: the ranks with the extreme value get equal parts."""
    pairs = zip(forward.inputs, forward.op.outputs, strict=True)
    chosen = [tf.cast(value == result, value.dtype) for value, result in pairs]
    holders = forward.reduce(chosen, Sum, "holders")
    return [mine / all_ranks for mine, all_ranks in zip(chosen, holders, strict=True)]


def _product_slopes(forward: _Backward) -> list[tf.Tensor]:
    """The products of the other ranks' values."""
    zeros = [tf.cast(value == 0, tf.int32) for value in forward.inputs]
    factors = [tf.where(value == 0, tf.ones_like(value), value) for value in forward.inputs]
    counts = forward.reduce(zeros, Sum, "zeros")
    products = forward.reduce(factors, Product, "factors")
    return [
        tf.where(count > zero, tf.zeros_like(product), product / factor)
        for count, zero, product, factor in zip(counts, zeros, products, factors, strict=True)
    ]


def _allgather_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """This rank's rows of the average."""
    mine = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in forward.inputs])
    (rows,) = forward.gather([mine[tf.newaxis]], "rows")
    starts = tf.reduce_sum(rows[: _place(forward.set_id)], axis=0)
    averages = forward.reduce(grads, Average)
    parts = []
    for i, (average, tensor) in enumerate(zip(averages, forward.inputs, strict=True)):
        part = average[starts[i] : starts[i] + mine[i]]
        part.set_shape(tensor.shape)
        parts.append(part)
    return parts


def _broadcast_backward(forward: _Backward, grad: Any) -> list[Any]:
    """The average for the root, zeros for the others."""
    (average,) = forward.reduce([grad], Average)
    is_root = tf.equal(rank(), forward.op.get_attr("root_rank"))
    return [tf.where(is_root, average, tf.zeros_like(average))]


def _alltoall_backward(forward: _Backward, grad: Any, _received: Any) -> list[Any]:
    """The rows go back to the ranks from which they came. Rows that were not sent get zeros."""
    tensor, _ = forward.inputs
    back = forward.send_back(grad, forward.op.outputs[1])
    if forward.op.get_attr("has_splits"):
        shape = tf.shape(tensor)
        unsent = tf.concat([shape[:1] - tf.shape(back)[:1], shape[1:]], axis=0)
        back = tf.concat([back, tf.zeros(unsent, back.dtype)], axis=0)
    back.set_shape(tensor.shape)
    return [back]


def _reducescatter_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """All ranks' rows, times the factors, and with Sum times the number of ranks."""
    factor = tf.constant(forward.factor("prescale") * forward.factor("postscale"), tf.float64)
    if forward.op.get_attr("reduce_op") == Sum:
        factor *= tf.cast(size(forward.set_id), tf.float64)
    gathered = forward.gather([grad * tf.cast(factor, grad.dtype) for grad in grads])
    for output, tensor in zip(gathered, forward.inputs, strict=True):
        output.set_shape(tensor.shape)
    return gathered


def _place(set_id: int) -> tf.Tensor:
    return load().hvdlite_rank(process_set=set_id)


for _prefix in ("", "Grouped"):
    _register(f"{_prefix}Allreduce", _allreduce_backward)
    _register(f"{_prefix}WeightedAllreduce", _weighted_allreduce_backward)
    _register(f"{_prefix}Allgather", _allgather_backward)
    _register(f"{_prefix}Reducescatter", _reducescatter_backward)
_register("Broadcast", _broadcast_backward)
_register("Alltoall", _alltoall_backward)
