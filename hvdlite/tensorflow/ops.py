"""The collectives of ``horovod.tensorflow``: eager, in graphs and in ``tf.function``, with gradients.

Over 400 lines, because every function has Horovod's full signature. Gradients follow Horovod's convention, as in
`hvdlite.torch.ops`:

- allreduce and alltoall: the gradient of the sum of all ranks' losses (with Adasum: an Adasum of the gradients);
- allgather and broadcast: that gradient divided by the number of ranks;
- reducescatter: that gradient times the number of ranks.

`hvdlite.tensorflow.names` explains how operations without a name are matched, and the meaning of a name in a graph. If an
operation fails when it runs, it raises a ``tf.errors.OpError``: FailedPreconditionError if the ranks disagree or hvdlite is not
initialized, InvalidArgumentError for a bad argument (docs/errors.md lists all errors). XLA can compile only `allreduce` and
`grouped_allreduce`: the other functions raise UnsupportedError in a program for XLA.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from hvdlite.checks import member_id
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
        tensor: a tensor, or a value that ``tf.convert_to_tensor`` converts, with the same shape and dtype on all ranks. For
            ``tf.IndexedSlices`` the rows of all ranks are gathered; they represent the sum or the mean.
        average: Horovod's older argument for `op`; deprecated.
        device_dense: the device of the operation, such as ``"/cpu:0"``; "": TensorFlow chooses it.
        device_sparse: the device of the operation for IndexedSlices.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec such as ``Compression.int8()``, or
            `Compression.auto`.
        op: Average (the default), Sum, Adasum, Min, Max or Product; for IndexedSlices Average or Sum.
        prescale_factor: a factor for each rank's tensor.
        postscale_factor: a factor for the result.
        name: a name for the operation, the same on all ranks: the ranks' tensors are matched by their names.
        process_set: the ranks that take part.
        ignore_name_scope: True: in a graph, the name has no prefix of functions and name scopes.
        weight: the weight of this rank in a weighted mean, as for `hvdlite.allreduce`: a number, or a scalar tensor (eager or
            of a graph). The weight itself has no gradient.

    Returns:
        A new tensor (or IndexedSlices) of the same shape and dtype.

    Raises:
        InvalidArgumentError: an argument is wrong (None, a ragged tensor, strings), or this rank is not in the process set.
        UnsupportedError: for IndexedSlices, `op` is not Average or Sum, `compression` is a codec, or `op` is Average and the
            values are integers; or `compression` cannot be used here.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    op = resolve_op(op, average)
    own_weight = None if weight is None else as_weight(weight, op)
    set_id = member_id(process_set, Kind.ALLREDUCE)
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
    """`allreduce` of a list of tensors that are agreed on and sent together. `name` is the name of the group.

    IndexedSlices in the list are reduced separately, each in its own operation. Dtypes may differ. It returns a list of new
    tensors. The other arguments and the errors are those of `allreduce`.

    """
    op = resolve_op(op, average)
    own_weight = None if weight is None else as_weight(weight, op)
    set_id = member_id(process_set, Kind.ALLREDUCE)
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

    The gradient of a rank is its rows of the *average* of the ranks' incoming gradients. This is Horovod's convention: the
    gradient of the sum of all ranks' losses, divided by the number of ranks.

    Args:
        tensor: a tensor of shape [n, ...]. n may differ between ranks; the other dimensions and the dtype may not.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part.

    Returns:
        A new tensor of shape [sum of n, ...].

    Raises:
        InvalidArgumentError: the tensor is wrong, as for `allreduce`, or this rank is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    set_id = member_id(process_set, Kind.ALLGATHER)
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
    """`allgather` of a list of tensors that are agreed on and sent together. `name` is the name of the group.

    It returns a list of new tensors. The other arguments and the errors are those of `allgather`.
    """
    set_id = member_id(process_set, Kind.ALLGATHER)
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

    The gradient is the *average* of the ranks' incoming gradients on the root, and zeros on the other ranks. This is Horovod's
    convention: the gradient of the sum of all ranks' losses, divided by the number of ranks.

    Args:
        tensor: a tensor of any shape, with the same shape and dtype on all ranks.
        root_rank: the root's rank in the whole job, the same on all ranks.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        A new tensor with the root's values.

    Raises:
        InvalidArgumentError: the tensor is wrong, as for `allreduce`, or this rank or the root is not a member of the process
            set.
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
        tensor: a tensor of shape [n, ...]. n may differ between ranks; the other dimensions and the dtype may not.
        splits: number of rows for each rank of the set, in order: a list or a 1-D integer tensor. The sum may be less than n;
            the other rows are not sent. None: all ranks get the same number of rows.
        name: as for `allreduce`.
        ignore_name_scope: as for `allreduce`.
        process_set: the ranks that take part.

    Returns:
        The received rows in rank order. With `splits` a pair: these rows, and the number of rows from each rank (int32, 1-D).

    Raises:
        InvalidArgumentError: the tensor is wrong, as for `allreduce`, or this rank is not a member of the process set.
        tf.errors.OpError: (when it runs) the collective failed, or the splits are not possible.

    """
    set_id = member_id(process_set, Kind.ALLTOALL)
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
    """Reduces a tensor over the ranks and gives each rank a part of the rows. Collective over `process_set`.

    The gradient is the concatenation of the ranks' incoming gradients, times both factors, and with Sum times the number of
    ranks. This is Horovod's convention: the gradient of the sum of all ranks' losses, times the number of ranks.

    Args:
        tensor: a tensor of shape [n, ...], with the same shape and dtype on all ranks. If n is no multiple of the number of
            ranks, the first ranks get one row more than the others.
        device_dense: as for `allreduce`.
        compression: a class with the methods of `hvdlite.compression.Compressor`.
        op: Average (the default) or Sum.
        name: as for `allreduce`.
        process_set: the ranks that take part.
        ignore_name_scope: as for `allreduce`.
        prescale_factor: as for `allreduce`.
        postscale_factor: as for `allreduce`.

    Returns:
        A new tensor with this rank's rows.

    Raises:
        InvalidArgumentError: an argument is wrong, or this rank is not a member of the process set.
        UnsupportedError: the tensor is IndexedSlices, or `compression` is a codec or `Compression.auto`.
        tf.errors.OpError: (when it runs) the collective failed.

    """
    op = resolve_op(op, None)
    set_id = member_id(process_set, Kind.REDUCESCATTER)
    with _on(device_dense):
        tensor = _dense_only("reducescatter", tensor, name)
        refuse_codec(compression, "reducescatter")
        compressor, _ = split(compression)
        sent, context = compressor.compress(tensor)
        output = collective_ops.reducescatter(
            sent,
            op=op,
            name=collective_name(name, _default("reducescatter", tensor), ignore_name_scope),
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
        )
        return compressor.decompress(output, context)


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
    """`reducescatter` of a list of tensors that are agreed on and sent together.

    It returns a list of new tensors. The other arguments and the errors are those of `reducescatter`.
    """
    op = resolve_op(op, None)
    set_id = member_id(process_set, Kind.REDUCESCATTER)
    with _on(device_dense):
        members = [_dense_only("grouped_reducescatter", tensor) for tensor in tensors]
        if not members:
            return []
        refuse_codec(compression, "grouped_reducescatter")
        compressor, _ = split(compression)
        sent, contexts = zip(*(compressor.compress(member) for member in members), strict=True)
        outputs = collective_ops.grouped_reducescatter(
            list(sent),
            op=op,
            name=collective_name(None, _default("grouped_reducescatter", members[0])),
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=set_id,
        )
        return [compressor.decompress(output, context) for output, context in zip(outputs, contexts, strict=True)]


@as_written
def join() -> tf.Tensor:
    """Announces that this rank has no more batches, and waits until all ranks have done so. Collective over all ranks.

    While it waits, this rank contributes nothing to the others' operations, as in `hvdlite.join`.

    Returns:
        The rank that joined last, a scalar int32 tensor.

    Raises:
        tf.errors.OpError: (when it runs) hvdlite is not initialized, or a rank failed.

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
    """The number of ranks on this host when the operation runs, a scalar int32 tensor."""
    return collective_ops.plain_op("local_size", name=name)


@as_written
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank on its host when the operation runs, a scalar int32 tensor."""
    return collective_ops.plain_op("local_rank", name=name)


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is a member of the process set when the operation runs, otherwise 0; a scalar int32 tensor."""
    return collective_ops.plain_op("process_set_included", process_set=process_set_id, name=name)


def member_of(process_set: ProcessSet, root_rank: int) -> int:
    """Checks the process set of a broadcast, and returns the set's number.

    Raises:
        InvalidArgumentError: this rank or the root is not a member of the set.

    """
    set_id = member_id(process_set, Kind.BROADCAST)
    # The engine checks the root, too: a graph may be made before hvdlite is initialized, when the set's ranks are not known.
    if process_set.ranks is not None and root_rank not in process_set.ranks:
        raise InvalidArgumentError(
            f"broadcast received invalid root rank {root_rank!r} for provided process set ({process_set}): root_rank is a "
            "rank of the whole job, and must be a member of the set"
        )
    return set_id


def _on(device: str) -> AbstractContextManager[Any]:
    return tf.device(device) if device else nullcontext()


def _default(operation: str, tensor: tf.Tensor) -> str:
    """The name of an operation to which the user gave none: eagerly "", and in a graph made from the tensor's name.

    Eager tensors have no name; if a graph has captured one, "constant" stands for the name.
    """
    return "" if tf.executing_eagerly() else f"{operation}.{getattr(tensor, 'name', 'constant')}"


def _dense_only(operation: str, tensor: Any, name: str | None = None) -> tf.Tensor:
    if isinstance(tensor, tf.IndexedSlices):
        raise UnsupportedError(f"{operation} cannot reduce IndexedSlices: pass tf.convert_to_tensor(slices)")
    return as_tensor(operation, tensor, name)
