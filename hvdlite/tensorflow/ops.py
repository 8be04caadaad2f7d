"""The collectives of ``horovod.tensorflow``: eager, in graphs and in ``tf.function``, with gradients.

Over 400 lines, because every function spells out Horovod's signature. Gradients follow Horovod's convention, as in
`hvdlite.torch.ops`:

- allreduce and alltoall: the gradient of the sum of all ranks' losses (with Adasum: an Adasum of the gradients);
- allgather and broadcast: that gradient divided by the number of ranks;
- reducescatter: that gradient times the number of ranks.

`hvdlite.tensorflow.names` explains how operations without a name are paired, and the meaning of a name in a graph. Errors
across ranks raise a ``tf.errors.OpError`` when the operation runs: FailedPreconditionError
if the ranks disagree, InvalidArgumentError for a bad argument (docs/errors.md has all).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from hvdlite.compression import Compression, refuse_codec, split
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average, Kind, resolve_op
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.names import collective_name
from hvdlite.tensorflow.sparse import allreduce_slices
from hvdlite.tensorflow.tensors import as_tensor, as_weight, settle_for_dense

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


@as_written
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    *,
    weight: Any = None,
) -> Any:
    """Reduces a tensor over the ranks. Collective over `process_set`.

    Args:
        tensor: a tensor, or what ``tf.convert_to_tensor`` takes; shape and dtype the same on all ranks. Of ``tf.IndexedSlices``
            all ranks' rows are gathered, which stand for their sum.
        average: deprecated, see `op`.
        device_dense: the device of the operation, such as ``"/cpu:0"``; "" leaves it to TensorFlow.
        device_sparse: the same for IndexedSlices.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec such as ``Compression.int8()``, or
            `Compression.auto`.
        op: Average (the default), Sum, Adasum, Min, Max or Product; for IndexedSlices Average or Sum.
        prescale_factor: multiplies each rank's tensor.
        postscale_factor: multiplies the result.
        name: pairs the ranks' tensors.
        process_set: the ranks that take part.
        ignore_name_scope: in a graph, leave functions and name scopes out of the name.
        weight: of this rank in a weighted mean, as for `hvdlite.allreduce`: a number, or a scalar tensor, whose value may be
            known only when a graph runs. The weight itself has no gradient.

    Returns:
        A new tensor (or IndexedSlices) of the same shape and dtype.

    Raises:
        InvalidArgumentError: an argument is wrong (None, a ragged tensor, strings), or this rank is not in the process set.
        UnsupportedError: IndexedSlices with another op.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    op = resolve_op(op, average)
    own_weight = None if weight is None else as_weight(weight, op)
    set_id = process_set.require_member(Kind.ALLREDUCE)
    if isinstance(tensor, tf.IndexedSlices):
        with _on(device_sparse):
            return allreduce_slices(
                tensor,
                name=collective_name(name, _default("allreduce", tensor.values), ignore_name_scope),
                op=op,
                factor=prescale_factor * postscale_factor,
                compression=settle_for_dense(compression, process_set, op, ()),
                set_id=set_id,
                weight=own_weight,
            )
    with _on(device_dense):
        tensor = as_tensor("allreduce", tensor, name)
        compressor, codec = split(settle_for_dense(compression, process_set, op, [tensor]))
        sent, context = compressor.compress(tensor)
        output = collective_ops.allreduce(
            sent,
            name=collective_name(name, _default("allreduce", tensor), ignore_name_scope),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
            weight=own_weight,
            codec=codec,
        )
        return compressor.decompress(output, context)


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    *,
    weight: Any = None,
) -> list[Any]:
    """`allreduce` of a list of tensors that are agreed on and sent together; `name` is the group's.

    IndexedSlices among them travel beside the group. Dtypes may differ. Returns a list of new tensors. The other arguments and
    the errors are those of `allreduce`.

    """
    op = resolve_op(op, average)
    own_weight = None if weight is None else as_weight(weight, op)
    set_id = process_set.require_member(Kind.ALLREDUCE)
    outputs = list(tensors)
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            own_name = None if name is None else f"{name}_{place}"
            scales = (prescale_factor, postscale_factor)
            outputs[place] = allreduce(
                *(tensor, None, "", device_sparse, compression, op, *scales),
                name=own_name,
                process_set=process_set,
                ignore_name_scope=ignore_name_scope,
                weight=own_weight,
            )
    dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if not dense:
        return outputs
    with _on(device_dense):
        members = [as_tensor("grouped_allreduce", tensors[place], name) for place in dense]
        compressor, codec = split(settle_for_dense(compression, process_set, op, members))
        sent, contexts = zip(*(compressor.compress(member) for member in members), strict=True)
        reduced = collective_ops.grouped_allreduce(
            list(sent),
            name=collective_name(name, _default("grouped_allreduce", members[0]), ignore_name_scope),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
            weight=own_weight,
            codec=codec,
        )
        for place, output, context in zip(dense, reduced, contexts, strict=True):
            outputs[place] = compressor.decompress(output, context)
    return outputs


@as_written
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order. Collective over `process_set`.

    The gradient gives each rank its rows of the *average* of the ranks' incoming gradients: Horovod's convention, the gradient
    of the sum of all ranks' losses divided by their number.

    Args:
        tensor: of shape [n, ...]; n may differ between ranks, everything else and the dtype is the same on all.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part.

    Returns:
        A new tensor of shape [sum of n, ...].

    Raises:
        InvalidArgumentError: this rank is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    set_id = process_set.require_member(Kind.ALLGATHER)
    tensor = as_tensor("allgather", tensor, name)
    name = collective_name(name, _default("allgather", tensor), ignore_name_scope)
    return collective_ops.allgather(tensor, name=name, set_id=set_id)


@as_written
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """`allgather` of a list of tensors that are agreed on and sent together; `name` is the group's.

    Returns a list of new tensors. The other arguments and the errors are those of `allgather`.
    """
    set_id = process_set.require_member(Kind.ALLGATHER)
    members = [as_tensor("grouped_allgather", tensor, name) for tensor in tensors]
    if not members:
        return []
    name = collective_name(name, _default("grouped_allgather", members[0]), ignore_name_scope)
    return list(collective_ops.grouped_allgather(members, name=name, set_id=set_id))


@as_written
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives all ranks the root's tensor. Collective over `process_set`.

    The gradient gives the root the *average* of the ranks' incoming gradients, and the others zeros: Horovod's convention, the
    gradient of the sum of all ranks' losses divided by their number.

    Args:
        tensor: shape and dtype the same on all ranks.
        root_rank: the root's rank in the whole job, the same on all ranks.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        A new tensor.

    Raises:
        InvalidArgumentError: this rank or the root is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    set_id = member_of(process_set, root_rank)
    tensor = as_tensor("broadcast", tensor, name)
    name = collective_name(name, _default("broadcast", tensor), ignore_name_scope)
    return collective_ops.broadcast(tensor, root_rank=root_rank, name=name, set_id=set_id)


@as_written
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of the tensor to each rank. Collective over `process_set`.

    Args:
        tensor: of shape [n, ...]; n may differ between ranks, everything else and the dtype is the same on all.
        splits: how many rows each rank of the set gets, in order: a 1-D integer tensor or list. They may add up to less than
            n: the rest is not sent. None: equal parts.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part.

    Returns:
        The rows received, in rank order; with `splits` also how many came from each rank (int32).

    Raises:
        InvalidArgumentError: this rank is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed, or the splits do not fit.

    """
    set_id = process_set.require_member(Kind.ALLTOALL)
    tensor = as_tensor("alltoall", tensor, name)
    name = collective_name(name, _default("alltoall", tensor), ignore_name_scope)
    output, received = collective_ops.alltoall(tensor, splits, name=name, set_id=set_id)
    return output if splits is None else (output, received)


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over the ranks and gives each a part of the rows. Collective over `process_set`.

    The gradient gathers the ranks' incoming gradients, times both factors, and with Sum times the number of ranks: Horovod's
    convention, the gradient of the sum of all ranks' losses times their number.

    Args:
        tensor: of shape [n, ...]; shape and dtype the same on all ranks. Where n is no multiple of the number of ranks, the
            first ones get a row more.
        device_dense: as for `allreduce`.
        compression: as for `allreduce`.
        op: Average, or another operator of `allreduce` but Adasum; only Average and Sum have gradients.
        name: as for `allreduce`.
        process_set: the ranks that take part.
        ignore_name_scope: as for `allreduce`.
        prescale_factor: as for `allreduce`.
        postscale_factor: as for `allreduce`.

    Returns:
        A new tensor of this rank's rows.

    Raises:
        InvalidArgumentError: an argument is wrong, or this rank is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    op = resolve_op(op, None)
    set_id = process_set.require_member(Kind.REDUCESCATTER)
    with _on(device_dense):
        tensor = _dense_only("reducescatter", tensor, name)
        refuse_codec(compression, "reducescatter")
        sent, context = compression.compress(tensor)
        output = collective_ops.reducescatter(
            sent,
            op=op,
            name=collective_name(name, _default("reducescatter", tensor), ignore_name_scope),
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
        )
        return compression.decompress(output, context)


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """`reducescatter` of a list of tensors that are agreed on and sent together; `name` is the group's.

    Returns a list of new tensors. The other arguments and the errors are those of `reducescatter`.
    """
    op = resolve_op(op, None)
    set_id = process_set.require_member(Kind.REDUCESCATTER)
    with _on(device_dense):
        members = [_dense_only("grouped_reducescatter", tensor) for tensor in tensors]
        if not members:
            return []
        refuse_codec(compression, "grouped_reducescatter")
        sent, contexts = zip(*(compression.compress(member) for member in members), strict=True)
        outputs = collective_ops.grouped_reducescatter(
            list(sent),
            op=op,
            name=collective_name(None, _default("grouped_reducescatter", members[0])),
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
        )
        return [compression.decompress(output, context) for output, context in zip(outputs, contexts, strict=True)]


@as_written
def join() -> tf.Tensor:
    """Says that this rank has no more batches, and waits for all others to say so. Collective over all ranks.

    Meanwhile it takes part in the others' allreduces without a value.

    Returns:
        The rank that joined last, a scalar int32 tensor.

    Raises:
        NotInitializedError: `hvdlite.init` has not been called.
        tf.errors.OpError: (when it runs) a rank failed.

    """
    return collective_ops.join(global_process_set.require_member(Kind.JOIN))


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set when the operation runs, a scalar int32 tensor."""
    return collective_ops.size(process_set_id, name)


@as_written
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank when the operation runs, a scalar int32 tensor."""
    return collective_ops.rank(name)


@as_written
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks of this node when the operation runs, a scalar int32 tensor."""
    return collective_ops.local_size(name)


@as_written
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank on its node when the operation runs, a scalar int32 tensor."""
    return collective_ops.local_rank(name)


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is a member of the process set when the operation runs, otherwise 0; a scalar int32 tensor."""
    return collective_ops.process_set_included(process_set_id, name)


def member_of(process_set: ProcessSet, root_rank: int) -> int:
    """The id of a process set for a broadcast.

    Raises:
        InvalidArgumentError: this rank or the root is not a member of it.

    """
    set_id = process_set.require_member(Kind.BROADCAST)
    # Graphs may be made before hvdlite is initialised; the engine looks again.
    if process_set.ranks is not None and root_rank not in process_set.ranks:
        raise InvalidArgumentError(
            f"broadcast received invalid root rank {root_rank} for provided process set ({process_set}): root_rank counts in "
            "the whole job, and the root is a member of the set"
        )
    return set_id


def _on(device: str) -> AbstractContextManager[Any]:
    return tf.device(device) if device else nullcontext()


def _default(operation: str, tensor: tf.Tensor) -> str:
    """The name of an operation in a graph that the user gave none. Eager tensors, captured ones too, have no names."""
    return "" if tf.executing_eagerly() else f"{operation}.{getattr(tensor, 'name', 'constant')}"


def _dense_only(operation: str, tensor: Any, name: str | None = None) -> tf.Tensor:
    if isinstance(tensor, tf.IndexedSlices):
        raise UnsupportedError(f"{operation} takes no IndexedSlices: pass tf.convert_to_tensor(slices)")
    return as_tensor(operation, tensor, name)
