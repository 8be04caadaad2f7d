"""The ops of csrc/bindings/tensorflow as Python functions, with gradients.

These functions do not check their arguments. Users call the functions of `hvdlite.tensorflow.ops`, which check them. All
functions except those that read the topology are collective over the process set with the number `set_id`. When an op fails, it
raises a ``tf.errors.OpError``: FailedPreconditionError if the ranks disagree or hvdlite is not initialized,
InvalidArgumentError for a bad argument, AbortedError if a rank was lost (docs/errors.md).

*Names.* The ranks' tensors are matched by `name`. An operation with the name "" gets a number when it runs; this name is for
eager mode only. The iterations of a loop in a graph may overlap, so each iteration after the first adds its number to the name.

*State.* In a graph an op has no state, unless `stateful` is True. TensorFlow does not order ops without state, so all gradients
can be in flight together. But TensorFlow removes an op without state if its result is not used. Ops with state always run, in
the order of the program. So a broadcast needs `stateful` if a rank does not use the result. (`hvdlite.tensorflow.making` lists
cases in which an op always has state.)

*Gradients* follow Horovod's convention (see `hvdlite.torch.ops`). If an op has a name, the op that reduces its gradient has the
name ``<name>.grad``; it has state if the first op has state. Ranks that have joined count as if their incoming gradients were
zero.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.errors import ErrorCode, UnsupportedError
from hvdlite.requests import OP_NAMES, Average, Max, Min, Product, Sum
from hvdlite.tensorflow.library import load
from hvdlite.tensorflow.making import bits_of, factor_of, make
from hvdlite.tensorflow.names import numbered
from hvdlite.tensorflow.tensors import is_inexact, shares_of
from hvdlite.tensorflow.xla import require_no_xla

_NO_CODEC: Mapping[str, int] = {}


def plain_op(what: str, **attributes: Any) -> Any:
    """Makes an op that is no collective on tensors. Raises UnsupportedError in a function for XLA, which cannot compile it."""
    require_no_xla(what)
    return getattr(load(), f"hvdlite_{what}")(**attributes)


# --- the collectives -------------------------------------------------------------------------------------------------------


def allreduce(tensor: Any, *, weight: tf.Tensor | None = None, **reduction: Any) -> tf.Tensor:
    """Reduces a tensor of any shape and any dtype of `hvdlite.dtypes`.

    Args:
        tensor: the tensor, with the same shape and dtype on all ranks.
        weight: the weight of this rank in a weighted mean, a float64 scalar. It has no gradient.
        reduction: the arguments of `_reduction`.

    Returns:
        A tensor of the same shape and dtype, with the same values on all ranks.

    """
    if weight is None:
        return make("Allreduce", tensor, **_reduction(**reduction))
    return make("WeightedAllreduce", tensor, weight, **_reduction(**reduction))


def grouped_allreduce(tensors: Sequence[Any], *, weight: tf.Tensor | None = None, **reduction: Any) -> list[tf.Tensor]:
    """`allreduce` of tensors that are agreed on and sent together. Dtypes may differ. `name` is the name of the group."""
    if weight is None:
        return list(make("GroupedAllreduce", list(tensors), **_reduction(**reduction)))
    return list(make("GroupedWeightedAllreduce", list(tensors), weight, **_reduction(**reduction)))


def allgather(tensor: Any, *, name: str = "", set_id: int = 0) -> tf.Tensor:
    """Concatenates the ranks' tensors of shape [n, ...] in the order of ranks. n may differ between ranks."""
    return make("Allgather", tensor, tensor_name=name, process_set=set_id)


def grouped_allgather(tensors: Sequence[Any], *, name: str = "", set_id: int = 0) -> list[tf.Tensor]:
    """`allgather` of tensors that are agreed on and sent together. `name` is the name of the group."""
    return list(make("GroupedAllgather", list(tensors), tensor_name=name, process_set=set_id))


def broadcast(tensor: Any, *, root_rank: int, name: str = "", set_id: int = 0, stateful: bool = False) -> tf.Tensor:
    """The tensor of rank `root_rank` of the job. Shape and dtype must be the same on all ranks."""
    return make("Broadcast", tensor, stateful=stateful, root_rank=root_rank, tensor_name=name, process_set=set_id)


def alltoall(tensor: Any, splits: Any = None, *, name: str = "", set_id: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends ``splits[i]`` rows to the i-th rank of the set.

    Args:
        tensor: a tensor of shape [n, ...].
        splits: number of rows for each rank of the set, an int32 or int64 vector; None: all ranks get the same number.
        name: see the module.
        set_id: see the module.

    Returns:
        The received rows in the order of ranks, and the number of rows from each rank (an int32 vector).

    """
    sent = tf.zeros([0], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    output, received = make("Alltoall", tensor, sent, has_splits=splits is not None, tensor_name=name, process_set=set_id)
    return output, received


def reducescatter(tensor: Any, **reduction: Any) -> tf.Tensor:
    """Reduces a tensor of shape [n, ...], and gives each rank a part of the rows. Takes op Average or Sum, and no `codec`."""
    return make("Reducescatter", tensor, **_reduction(**reduction))


def grouped_reducescatter(tensors: Sequence[Any], **reduction: Any) -> list[tf.Tensor]:
    """`reducescatter` of tensors that are agreed on and sent together. `name` is the name of the group."""
    return list(make("GroupedReducescatter", list(tensors), **_reduction(**reduction)))


def _reduction(
    name: str = "",
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    codec: Mapping[str, int] = _NO_CODEC,
) -> dict[str, Any]:
    """The attributes of an op that reduces.

    Args:
        name: see the module.
        op: the reduce operator.
        prescale: a factor for each rank's tensor.
        postscale: a factor for the result.
        set_id: see the module.
        codec: `hvdlite.compression.Codec.fields`, or an empty mapping.

    """
    factors = {"prescale_bits": bits_of(prescale), "postscale_bits": bits_of(postscale)}
    return {"tensor_name": name, "reduce_op": op, "process_set": set_id, **factors, **codec}


def barrier(set_id: int = 0) -> tf.Operation | None:
    """Waits until all ranks of the set have called it. In a graph it returns the operation, and eagerly None."""
    return plain_op("barrier", process_set=set_id, blocking=tf.executing_eagerly())


def join(set_id: int = 0) -> tf.Tensor:
    """Waits until all ranks of the set have joined. Returns the rank that joined last (int32)."""
    return plain_op("join", process_set=set_id, blocking=tf.executing_eagerly())


# --- topology, read when the op runs ----------------------------------------------------------------------------------------


def size(set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set (int32)."""
    return plain_op("size", process_set=set_id, name=name)


def rank(name: str | None = None) -> tf.Tensor:
    """This process's rank (int32)."""
    return plain_op("rank", name=name)


# --- gradients (with tf.equal, because == compares no values in graphs of TensorFlow 1) ---------------------------------------


class _Backward:
    """What the gradient function of an op needs to know about the op. The methods make ops with the op's state and process set.

    Attributes:
        places: the indices of the tensors that have a gradient: those of floating-point and complex dtypes. A group may also
            have tensors of other dtypes.
        tensors: the inputs of the op at `places`.
        results: the outputs of the op at `places`.
        last: the last input, without the anchor (`hvdlite.tensorflow.making`): the weight or the splits if the op has them.

    """

    def __init__(self, op: Any) -> None:
        self.op = op
        self._name = op.get_attr("tensor_name").decode()
        self.label = repr(self._name) if self._name else "an unnamed tensor"
        self.set_id = op.get_attr("process_set")
        self.has_state = op.type.endswith("Stateful")
        self.places = [i for i, output in enumerate(op.outputs) if is_inexact(output)]
        self.tensors = [op.inputs[i] for i in self.places]
        self.results = [op.outputs[i] for i in self.places]
        self.last = op.inputs[-1 if self.has_state else -2]  # in front of the anchor
        self._common = {"process_set": self.set_id, "stateful": self.has_state}

    def name(self, purpose: str) -> str:
        """A name that no other op of this graph has, because a program may ask for the gradient of an op more than once."""
        return numbered(f"{self._name}.{purpose}") if self._name else ""

    def factor(self, which: str) -> float:
        """The factor `which`: ``"prescale"`` or ``"postscale"``."""
        return factor_of(self.op.get_attr(f"{which}_bits"))

    def reduce(self, grads: Sequence[Any], op: int, purpose: str = "grad", **factors: int) -> list[tf.Tensor]:
        """Allreduces the tensors, in one group if there are several."""
        return self._make("Allreduce", grads, purpose, reduce_op=op, **factors)

    def gather(self, grads: Sequence[Any], purpose: str = "grad") -> list[tf.Tensor]:
        """Allgathers the tensors, in one group if there are several."""
        return self._make("Allgather", grads, purpose)

    def _make(self, kind: str, grads: Sequence[Any], purpose: str, **attributes: Any) -> list[tf.Tensor]:
        attributes = {"tensor_name": self.name(purpose), **attributes, **self._common}
        if len(grads) == 1:
            return [make(kind, grads[0], **attributes)]
        return list(make(f"Grouped{kind}", list(grads), **attributes))

    def send_back(self, grad: Any, splits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends rows of a gradient to the ranks of the set, by an alltoall with `splits`. Returns what `alltoall` returns."""
        attributes = {"has_splits": True, "tensor_name": self.name("grad"), **self._common}
        output, returned = make("Alltoall", grad, splits, **attributes)
        return output, returned


def _register(kind: str, backward: Callable[..., list[Any]]) -> None:
    """Registers the gradient of an op: `backward` gets the gradients of `_Backward.results`, returns those of `.tensors`."""

    def gradient(op: Any, *grads: Any) -> list[Any]:
        forward = _Backward(op)
        found = dict(zip(forward.places, backward(forward, *(grads[i] for i in forward.places)), strict=True))
        return [found.get(i) for i in range(len(op.inputs))]

    for state in ("", "Stateful"):
        tf.RegisterGradient(f"Hvdlite{kind}{state}")(gradient)


def _allreduce_backward(forward: _Backward, *grads: Any) -> list[Any]:
    op = forward.op.get_attr("reduce_op")
    if op not in (Min, Max, Product):
        kept = ("prescale_bits", "postscale_bits", "codec", "codec_between", "codec_block")
        return forward.reduce(grads, op, **{key: forward.op.get_attr(key) for key in kept})
    if forward.factor("prescale") != 1.0 or forward.factor("postscale") != 1.0:
        raise UnsupportedError(
            f"allreduce with op={OP_NAMES[op]} and scale factors has no gradient; multiply the tensor before the call, and the "
            "result after it"
        )
    totals = forward.reduce(grads, Sum)
    slopes = _product_slopes(forward) if op == Product else _choice_slopes(forward)
    return [total * slope for total, slope in zip(totals, slopes, strict=True)]


def _weighted_allreduce_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """The sum of all ranks' gradients, without weights, times this rank's share of all weights."""
    factors = {key: forward.op.get_attr(key) for key in ("prescale_bits", "postscale_bits")}
    weight = forward.last
    totals = forward.reduce(grads, Sum, **factors)
    (weights,) = forward.reduce([weight], Sum, "weights")
    return shares_of(totals, weight, weights)


def _choice_slopes(forward: _Backward) -> list[tf.Tensor]:
    """The derivatives of Min or Max: on ranks that have the extreme value 1 divided by their number, on other ranks 0."""
    pairs = zip(forward.tensors, forward.results, strict=True)
    chosen = [tf.cast(tf.equal(value, result), value.dtype) for value, result in pairs]
    holders = forward.reduce(chosen, Sum, "holders")
    return [mine / all_ranks for mine, all_ranks in zip(chosen, holders, strict=True)]


def _product_slopes(forward: _Backward) -> list[tf.Tensor]:
    """The derivatives of Product: the product of the other ranks' values."""
    zeros = [tf.cast(tf.equal(value, 0), tf.int32) for value in forward.tensors]
    factors = [tf.where(tf.equal(value, 0), tf.ones_like(value), value) for value in forward.tensors]
    counts = forward.reduce(zeros, Sum, "zeros")
    products = forward.reduce(factors, Product, "factors")
    return [
        tf.where(count > zero, tf.zeros_like(product), product / factor)
        for count, zero, product, factor in zip(counts, zeros, products, factors, strict=True)
    ]


def _allgather_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """This rank's rows of the average of all ranks' gradients."""
    place = tf.cast(_place(forward.set_id), tf.int64)
    mine = [tf.shape(tensor, tf.int64)[0] for tensor in forward.tensors]
    # Each rank also sends its place in the set: ranks that have joined send nothing, so row i need not be that of place i.
    (rows,) = forward.gather([tf.stack([[place, *mine]])], "rows")
    text = (
        f"allgather of {forward.label}: a rank has joined between the call and its backward, so the gradients cannot be "
        "divided among the ranks; call join() after the gradient"
    )
    whole = tf.reduce_all(tf.equal(tf.reduce_sum(rows, 0)[1:], [tf.shape(grad, tf.int64)[0] for grad in grads]))
    with tf.control_dependencies([_require(whole, text)]):
        starts = tf.reduce_sum(tf.where(rows[:, :1] < place, rows, 0), 0)
    averages = forward.reduce(grads, Average)
    parts = []
    for i, (average, tensor) in enumerate(zip(averages, forward.tensors, strict=True)):
        part = average[starts[i + 1] : starts[i + 1] + mine[i]]
        part.set_shape(tensor.shape)
        parts.append(part)
    return parts


def _broadcast_backward(forward: _Backward, grad: Any) -> list[Any]:
    """The average of the gradients for the root, zeros for the other ranks."""
    (average,) = forward.reduce([grad], Average)
    is_root = tf.equal(rank(), forward.op.get_attr("root_rank"))
    return [tf.where(is_root, average, tf.zeros_like(average))]


def _alltoall_backward(forward: _Backward, grad: Any) -> list[Any]:
    """Sends gradients of rows back to the ranks from which the rows came. Rows that were not sent get zeros."""
    (tensor,) = forward.tensors
    back, returned = forward.send_back(grad, forward.op.outputs[1])

    def parts() -> tuple[tf.Tensor, tf.Tensor]:
        members = tf.size(returned)
        even = tf.fill([members], tf.shape(tensor)[0] // members)
        return returned > 0, forward.last if forward.op.get_attr("has_splits") else even

    return [_with_zeros(back, tensor, parts)]


def _reducescatter_backward(forward: _Backward, *grads: Any) -> list[Any]:
    """All ranks' gradients concatenated, times both scale factors, and with Sum times the number of ranks."""
    members = size(forward.set_id)
    factor = tf.constant(forward.factor("prescale") * forward.factor("postscale"), tf.float64)
    if forward.op.get_attr("reduce_op") == Sum:
        factor *= tf.cast(members, tf.float64)
    gathered = forward.gather([grad * tf.cast(factor, grad.dtype) for grad in grads])

    def parts_of(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (working,) = forward.gather([_place(forward.set_id)[tf.newaxis]], "working")
        places = tf.range(members)
        rows = tf.shape(tensor)[0]
        counts = rows // members + tf.cast(places < rows % members, tf.int32)
        return tf.reduce_any(tf.equal(places[:, tf.newaxis], working), 1), counts

    pairs = zip(gathered, forward.tensors, strict=True)
    return [_with_zeros(rows, tensor, partial(parts_of, tensor)) for rows, tensor in pairs]


def _with_zeros(rows: tf.Tensor, like: tf.Tensor, parts: Callable[[], tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Fills in zeros for missing rows: those of ranks that have joined, and the rows of an alltoall that were not sent.

    Args:
        rows: the rows of the ranks that have not joined, one rank after the other.
        like: a tensor with the shape of the result.
        parts: a function that returns two vectors, with an element for each rank: whether `rows` has this rank's rows, and the
            number of this rank's rows in the result. The function runs only if rows are missing.

    """
    filled = tf.cond(
        tf.equal(tf.shape(rows)[0], tf.shape(like)[0]),
        lambda: rows,
        lambda: tf.scatter_nd(tf.where(tf.repeat(*parts())), rows, tf.shape(like, tf.int64)),
    )
    filled.set_shape(like.shape)
    return filled


def _require(condition: tf.Tensor, text: str) -> tf.Tensor:
    """Makes an op that fails with `text`, as ops fail on a mismatch of the ranks, unless `condition` is true."""
    code = tf.where(condition, int(ErrorCode.OK), int(ErrorCode.MISMATCH))
    return load().hvdlite_outcome(code=code, text=np.frombuffer(text.encode(), np.uint8))


def _place(set_id: int) -> tf.Tensor:
    return load().hvdlite_rank(process_set=set_id)


for _prefix in ("", "Grouped"):
    _register(f"{_prefix}Allreduce", _allreduce_backward)
    _register(f"{_prefix}WeightedAllreduce", _weighted_allreduce_backward)
    _register(f"{_prefix}Allgather", _allgather_backward)
    _register(f"{_prefix}Reducescatter", _reducescatter_backward)
_register("Broadcast", _broadcast_backward)
_register("Alltoall", _alltoall_backward)
