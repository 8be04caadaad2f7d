"""The collectives, written once for the tensors of every framework (`hvdlite.backends`).

Three rules hold for all of them:

*Names.* Ranks find each other's tensors by name. Each rank may make named calls in any order. hvdlite numbers calls
without a name, so all ranks of a process set must make their unnamed calls of one kind in the same order. A rank can have
only one operation of a name in flight on a process set (``ValueError`` otherwise), and may use the name again afterwards.

*Dtypes.* Broadcast, allgather and alltoall compute nothing: they move elements of 1, 2, 4, 8 or 16 bytes of any dtype, such as
float8 and ``datetime64``. They do not move text, records, Python objects and quantized tensors. Reductions take the dtypes of
`hvdlite.dtypes`.

*Errors.* A wrong argument raises `InvalidArgumentError` (a ``ValueError``) or `UnsupportedError` at the call, before
anything is sent. Without `init` a call raises `NotInitializedError`. If the ranks disagree, all of them raise `MismatchError`
with one text when they wait for the result; the engine stays usable. If a rank dies or raises an exception, the others raise
`HorovodInternalError`.

The functions whose names end in ``_async`` return a `Handle` at once. Do not write to a tensor until its handle is
synchronised. The functions whose names end in an underscore write the result into their argument.

Native code (csrc/bindings/python/plain_calls.cc) makes the requests of allreduces, broadcasts, allgathers, reducescatters,
sends and receives of tensors whose memory it can use directly; `hvdlite.submission` makes all others.

Over 400 lines, because every function has Horovod's full signature; `hvdlite.submission` has the code that they share.
"""

from collections.abc import Sequence
from typing import Any

from hvdlite import submission
from hvdlite.auto_compression import settle_for_tensors
from hvdlite.compression import codec_of, is_none, refuse_codec
from hvdlite.errors import InvalidArgumentError
from hvdlite.handles import Handle, poll, synchronize
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Adasum, Average, Kind, Max, Min, Product, Request, Sum, resolve_op
from hvdlite.runtime import RUNTIME

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]


# --- allreduce ------------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Any:
    """Reduces a tensor over the ranks: ``postscale_factor * op over ranks of (prescale_factor * tensor)``.

    Collective over `process_set`. Shape, dtype, op and factors must be the same on all ranks of the set; the values may
    differ. All ranks get the same bits. 16-bit floats are summed in float32 and rounded once. Average divides sums of
    integers exactly, and truncates toward zero.

    Args:
        tensor: any shape, also zero-dimensional; any dtype of `hvdlite.dtypes`. Not modified. For bool, Sum and Max mean "any",
            Min and Product mean "all", and Average is an error. Complex numbers have only Sum and Average. Adasum needs a
            floating-point dtype.
        average: Horovod's older argument in place of `op`; deprecated.
        name: see the module's rule on names.
        compression: a class such as ``Compression.fp16``, which compresses the tensor before the operation and restores the
            result; or a `Codec` such as ``Compression.int8()``, with which the engine codes what hosts or ranks send; or
            `Compression.auto`, which chooses a compression by a measurement at its first use.
        op: `Average` (the default), `Sum`, `Adasum`, `Min`, `Max` or `Product`. Adasum needs 2, 4, 8, ... ranks.
        prescale_factor: applied to each rank's tensor; integers are scaled in double and truncated.
        postscale_factor: applied to the result.
        process_set: the ranks that take part.
        weight: this rank's weight in a weighted mean, ``sum(weight * tensor) / sum(weight)`` over the ranks: 0 or more, such as
            the number of samples in this rank's batch. Weights may differ between ranks, but either all ranks give a weight or
            none does. A weight needs op Average and a floating-point or complex dtype. The tensor of a rank with weight 0 is
            ignored, even if the tensor has NaNs. If all weights are 0, the result is 0. A rank that has joined has weight 0.

    Returns:
        A new tensor of the same shape, dtype and framework. Lists and numbers give NumPy arrays.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: see the module's rule on errors.
    """
    if is_none(compression) and weight is None:
        engine = RUNTIME.engine
        if engine is not None:
            output = engine.allreduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, False, True)
            if output is not None:
                return output
    op = resolve_op(op, average)
    compression = settle_for_tensors(compression, process_set, op, (tensor,))
    compressor, contexts, (tensor,) = submission.compress(compression, (tensor,))
    scales = (prescale_factor, postscale_factor)
    output = submission.reduce(tensor, name, op, *scales, process_set, False, True, weight, codec_of(compression))
    return compressor.decompress(output, contexts[0]) if compressor else output


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Handle:
    """Starts `allreduce` and returns its handle."""
    return submission.start_reduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, False, weight)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Any:
    """`allreduce` in place: the result is written into the tensor, which must be writable. Returns the tensor.

    Arguments and errors are those of `allreduce`; there is no compression.
    """
    engine = RUNTIME.engine
    if engine is not None and weight is None:
        output = engine.allreduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, True)
        if output is not None:
            return output
    op = resolve_op(op, average)
    return submission.reduce(tensor, name, op, prescale_factor, postscale_factor, process_set, True, True, weight)


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Handle:
    """Starts `allreduce_` and returns its handle; the tensor holds the result once the handle is synchronised."""
    return submission.start_reduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, weight)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> list[Any]:
    """`allreduce` of a list of tensors that are agreed on and sent together.

    All ranks pass the same number of `tensors` in the same order. `name` is the name of the group; the other
    arguments and the errors are those of `allreduce`. Returns the results in order.
    """
    op = resolve_op(op, average)
    compression = settle_for_tensors(compression, process_set, op, tensors)
    compressor, contexts, tensors = submission.compress(compression, tensors)
    scales = (prescale_factor, postscale_factor)
    codec = codec_of(compression)
    outputs = submission.reduce_group(tensors, name, op, *scales, process_set, False, False, weight, codec).synchronize()
    return [compressor.decompress(*pair) for pair in zip(outputs, contexts, strict=True)] if compressor else outputs


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Handle:
    """Starts `grouped_allreduce` and returns one handle for the group."""
    op = resolve_op(op, average)
    return submission.reduce_group(tensors, name, op, prescale_factor, postscale_factor, process_set, False, True, weight)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> list[Any]:
    """`grouped_allreduce` in place: the results are written into the tensors, which are returned.

    Arguments and errors are those of `grouped_allreduce`; there is no compression.
    """
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    outputs: list[Any] = submission.reduce_group(tensors, name, op, *scales, process_set, True, False, weight).synchronize()
    return outputs


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Handle:
    """Starts `grouped_allreduce_` and returns one handle for the group."""
    op = resolve_op(op, average)
    return submission.reduce_group(tensors, name, op, prescale_factor, postscale_factor, process_set, True, True, weight)


# --- allgather ------------------------------------------------------------------------------------------------------


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Collective over `process_set`. Dtype and all dimensions but the first must be the same on all ranks of the set; the first
    may differ and may be 0.

    Args:
        tensor: at least one-dimensional, any dtype. Not modified.
        name: see the module's rule on names.
        process_set: the ranks that take part.

    Returns:
        A new tensor whose first dimension is the sum of the ranks' first dimensions.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: see the module's rule on errors.
    """
    return submission.gather(tensor, name, process_set, blocking=True)


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `allgather` and returns its handle."""
    handle: Handle = submission.gather(tensor, name, process_set, blocking=False)
    return handle


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of a list of tensors that are agreed on and sent together. `name` is the name of the group.

    All ranks pass the same number of `tensors` in the same order. Returns a list of the results in that order. The other
    arguments and the errors are those of `allgather`.
    """
    outputs: list[Any] = submission.gather_group(tensors, name, process_set, wake=False).synchronize()
    return outputs


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `grouped_allgather` and returns one handle for the group."""
    return submission.gather_group(tensors, name, process_set, wake=True)


# --- broadcast ------------------------------------------------------------------------------------------------------


def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Gives all ranks the root's tensor.

    Collective over `process_set`. Shape, dtype and root must be the same on all ranks of the set. Only the values of the
    root's tensor matter.

    Args:
        tensor: any shape and dtype. Not modified.
        root_rank: the root's rank in the whole job, for any process set.
        name: see the module's rule on names.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        A new tensor with the root's values.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: see the module's rule on errors.
    """
    return submission.broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=True)


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `broadcast` and returns its handle."""
    handle: Handle = submission.broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=False)
    return handle


def broadcast_(tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """`broadcast` in place: the root's values are written into the tensor, which must be writable. Returns the tensor.

    Arguments and errors are those of `broadcast`.
    """
    return submission.broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=True)


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `broadcast_` and returns its handle."""
    handle: Handle = submission.broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=False)
    return handle


# --- alltoall -------------------------------------------------------------------------------------------------------


def alltoall(tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Sends slices of the tensor's rows to the ranks, and concatenates the received slices in rank order.

    Collective over `process_set`. Dtype and all dimensions but the first must be the same on all ranks of the set; the splits
    and the first dimension may differ.

    Args:
        tensor: at least one-dimensional, any dtype. Not modified.
        splits: how many rows go to each rank of the set, in rank order: integers, as a list or a one-dimensional
            tensor. If their sum is less than the number of rows, the last rows are not sent. None sends equal parts.
        name: see the module's rule on names.
        process_set: the ranks that take part.

    Returns:
        The received rows; with splits the pair ``(rows, received_splits)``, where received_splits is an int32 tensor
        that says how many rows came from each rank.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: see the module's rule on errors.
    """
    output, received_splits = submission.alltoall(tensor, splits, name, process_set, blocking=True)
    return output if splits is None else (output, received_splits)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `alltoall`; its handle always gives the pair ``(rows, received_splits)``."""
    handle: Handle = submission.alltoall(tensor, splits, name, process_set, blocking=False)
    return handle


# --- reducescatter --------------------------------------------------------------------------------------------------


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over the ranks and gives each rank its part of the rows.

    Collective over `process_set`. Shape, dtype, op and factors must be the same on all n ranks of the set. Of d rows, each rank
    gets ``d // n``, and each of the first ``d % n`` ranks gets one more.

    Args:
        tensor: at least one-dimensional; dtypes as for `allreduce`. Not modified.
        name: see the module's rule on names.
        compression: a class such as ``Compression.fp16``, as for `allreduce`; no `Codec`.
        op: `Average` or `Sum`.
        process_set: the ranks that take part.
        prescale_factor: as for `allreduce`.
        postscale_factor: as for `allreduce`.

    Returns:
        A new tensor with this rank's rows, which may be none.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: see the module's rule on errors.
    """
    op = resolve_op(op, None)
    refuse_codec(compression, "reducescatter")
    compressor, contexts, (tensor,) = submission.compress(compression, (tensor,))
    output = submission.reduce_scatter(tensor, name, op, prescale_factor, postscale_factor, process_set, True)
    return compressor.decompress(output, contexts[0]) if compressor else output


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `reducescatter` and returns its handle."""
    op = resolve_op(op, None)
    handle: Handle = submission.reduce_scatter(tensor, name, op, prescale_factor, postscale_factor, process_set, blocking=False)
    return handle


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of a list of tensors that are agreed on and sent together. `name` is the name of the group.

    All ranks pass the same number of `tensors` in the same order. Returns a list of the results in that order. The other
    arguments and the errors are those of `reducescatter`.
    """
    op = resolve_op(op, None)
    refuse_codec(compression, "grouped_reducescatter")
    compressor, contexts, tensors = submission.compress(compression, tensors)
    scales = (prescale_factor, postscale_factor)
    outputs = submission.reduce_scatter_group(tensors, name, op, *scales, process_set, wake=False).synchronize()
    return [compressor.decompress(*pair) for pair in zip(outputs, contexts, strict=True)] if compressor else outputs


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `grouped_reducescatter` and returns one handle for the group."""
    op = resolve_op(op, None)
    return submission.reduce_scatter_group(tensors, name, op, prescale_factor, postscale_factor, process_set, wake=True)


# --- barrier and join -----------------------------------------------------------------------------------------------


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once all ranks of the set have called `barrier`. Collective over `process_set`; carries no data.

    Raises:
        InvalidArgumentError, HorovodInternalError: see the module's rule on errors.
    """
    submission.barrier(process_set)


def join(device: int = -1, *, process_set: ProcessSet = global_process_set, average: str = "all") -> int:
    """Says that this rank has no more data, and waits until all ranks of the set have said so. Collective over the set.

    While this rank waits in `join`, the other ranks continue their operations on this process set without this rank. To an
    allreduce or a reducescatter this rank contributes the identity of the op (0 for a sum), and to an allgather or an alltoall
    no rows. Only a broadcast still needs its root. This rank does not get the updates that the other ranks make meanwhile. So
    broadcast the weights afterwards from the rank that joined last, and also the optimizer's state if training continues.

    Args:
        device: accepted for compatibility with Horovod (the GPU for a joined rank's zeros); it changes nothing.
        process_set: the set whose operations this rank leaves. On other sets this rank takes part as before, once `join` has
            returned.
        average: does the divisor of an Average count this rank while this rank waits? ``"all"``: yes, as in Horovod.
            ``"contributing"``: no. Each rank decides only about itself. The ranks agree on the divisor with the operation: the
            size of the set less the number of ranks that joined with ``"contributing"`` before they asked for the operation.
            (Sparse torch tensors and IndexedSlices are gathered; their average always divides by the size of the set.)

    Returns:
        The rank that joined last, as a rank of the whole job; the same on all ranks.

    Raises:
        InvalidArgumentError: `average` is another text, or this rank is not a member of the set.
        HorovodInternalError: see the module's rule on errors.
    """
    if average not in ("all", "contributing"):
        raise InvalidArgumentError(f'join(average={average!r}): pass "all" or "contributing"')
    engine, set_id = submission.enter(Kind.JOIN, process_set)
    RUNTIME.wait_for_doors()
    request = Request(Kind.JOIN, "join", root=int(average == "contributing"), process_set=set_id)
    last = engine.submit((request,), wake=False).result().last_joined_rank
    for share in RUNTIME.after_join:
        share(process_set, last)
    return last
