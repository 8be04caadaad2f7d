"""Makes requests from tensors: the common part of all collectives of `hvdlite.ops`.

Each function checks its arguments, describes the tensors through their backends and submits the requests. A blocking call
waits for the work and returns the output. Any other call returns a `Handle`, whose last steps make the outputs. Native code
(csrc/bindings/python/plain_calls.cc) does all this for plain tensors. (Over 400 lines: one function for each collective.)
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from numbers import Real
from typing import TYPE_CHECKING, Any

from hvdlite.backends import Exported, TensorBackend, backend_of
from hvdlite.backends.base import CPU, ROW_MAJOR, SOME_GPU
from hvdlite.checks import member_id
from hvdlite.compression import Codec, check_compression, codec_of, is_none
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.handles import Finish, Handle, OnGpu
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import (
    KIND_NAMES,
    OP_NAMES,
    Average,
    Flag,
    Kind,
    Sum,
    integers_of,
    member_names,
    resolve_op,
    row_counts,
    tensor_name,
)
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = [
    "alltoall",
    "barrier",
    "broadcast",
    "check_weight",
    "check_weighted",
    "checked_root",
    "compress",
    "enter",
    "gather",
    "gather_group",
    "made_elsewhere",
    "on_its_gpu",
    "output_of",
    "reduce",
    "reduce_group",
    "reduce_scatter",
    "reduce_scatter_group",
    "start_reduce",
    "start_round",
    "start_sum",
    "written",
]

_ANY_DTYPE = (Kind.BROADCAST, Kind.ALLGATHER, Kind.ALLTOALL)  # the operation only moves bytes


def enter(kind: int, process_set: ProcessSet) -> "tuple[Engine, int]":
    """The engine and the id of the process set, for an operation of this kind.

    Raises:
        NotInitializedError: hvdlite is not initialised in this process.
        InvalidArgumentError: `process_set` is not a process set, is not registered, or does not include this rank.
    """
    return RUNTIME.require(), member_id(process_set, kind)


def compress(compression: Any, tensors: Sequence[Any]) -> tuple[Any, list[Any], Sequence[Any]]:
    """Applies a compression to tensors: returns the class (None if there is nothing to undo), the contexts, the tensors.

    A codec does nothing here: the request has it.
    """
    if is_none(compression) or codec_of(compression) is not None:
        return None, [], tensors
    check_compression(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    return compression, [context for _, context in pairs], [compressed for compressed, _ in pairs]


# One tensor of an operation: its backend, its memory, the address of the result (0: the engine allocates it), the last step
_Part = tuple[TensorBackend, Exported, Any, Finish]
# The fields that all tensors of a call share, in the order of `Request`: op, root, process set, prescale, postscale.
_Common = tuple[int, int, int, float, float]


def check_weight(weight: Any, op: int) -> float:
    """A rank's weight as a float.

    Raises:
        InvalidArgumentError: the weight is not a finite number of 0 or more, or the op is not Average.
    """
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
        raise InvalidArgumentError(
            f"weight={weight!r}: a weight is a finite number of 0 or more, such as the number of samples in this rank's batch"
        )
    check_weighted(op)
    return float(weight)


def check_weighted(op: int) -> None:
    """Raises InvalidArgumentError unless the op is Average, the only one that can have weights."""
    if op != Average:
        raise InvalidArgumentError(f"a weight needs op=Average, not {OP_NAMES[op]}; leave the weight out")


def reduce(
    tensor: Any,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
    blocking: bool,
    weight: float | None = None,
    codec: Codec | None = None,
) -> Any:
    """Submits an allreduce. weight: this rank's weight in a weighted mean, or None."""
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    weight = None if weight is None else check_weight(weight, op)
    part = _same_shape(engine, (Kind.ALLREDUCE, name, set_id), tensor, in_place)
    common = (op, 0, set_id, float(prescale), float(postscale))
    return _submit(engine, Kind.ALLREDUCE, name, part, common, blocking, weight=weight, codec=codec)


def start_reduce(
    tensor: Any,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
    weight: float | None = None,
) -> Handle:
    """Submits an allreduce without waiting for it."""
    engine = RUNTIME.engine
    if engine is not None and weight is None:
        started: Handle | None = engine.allreduce(
            tensor, average, name, op, prescale, postscale, process_set, in_place, blocking=False
        )
        if started is not None:
            return started
    op = resolve_op(op, average)
    handle: Handle = reduce(tensor, name, op, prescale, postscale, process_set, in_place, blocking=False, weight=weight)
    return handle


def reduce_group(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
    blocking: bool,
    weight: float | None = None,
    codec: Codec | None = None,
) -> Any:
    """Submits a group of allreduces. weight: this rank's weight in weighted means, or None."""
    tensors = list(tensors)
    if in_place and len(set(map(id, tensors))) < len(tensors):
        raise InvalidArgumentError(
            f"grouped_allreduce_ of {name!r}: a tensor is in the group twice, and could be reduced twice; list it once, or use "
            "the function without the trailing underscore"
        )
    known = RUNTIME.engine
    if known is not None and weight is None and codec is None:
        started = known.allreduce_group(tensors, name, op, prescale, postscale, process_set, in_place, not blocking)
        if started is not None:
            return started.synchronize() if blocking else started
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    call = (Kind.ALLREDUCE, name, set_id)
    weight = None if weight is None else check_weight(weight, op)
    parts = [_same_shape(engine, call, tensor, in_place) for tensor in tensors]
    common = (op, 0, set_id, float(prescale), float(postscale))
    return _submit_group(engine, Kind.ALLREDUCE, name, parts, common, blocking, weight, codec)


def start_round(
    tensors: Sequence[Any],
    name: str,
    scales: tuple[int, float, float],
    process_set: ProcessSet,
    weight: float | None,
    codec: Codec | None,
    notice: bool,
    counts: tuple[str, Any] | None,
    keep: Callable[[Handle], None],
) -> None:
    """Submits a group of allreduces in place and, in the same submission, the sum of the counts.

    Args:
        tensors: the tensors of the group.
        name: the name of the group.
        scales: the op, the prescale and the postscale.
        process_set: the ranks that take part.
        weight: this rank's weight in weighted means, or None.
        codec: how the elements travel.
        notice: does this rank give notice with its weight?
        counts: a name, and a tensor that is summed in place; None: there are no counts.
        keep: gets the handle before the submission. The handle's number is 0 until all is submitted.
    """
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    weight = None if weight is None else check_weight(weight, scales[0])
    parts = [_same_shape(engine, (Kind.ALLREDUCE, name, set_id), tensor, True) for tensor in tensors]
    common = (scales[0], 0, set_id, *scales[1:])
    requests = _requests_of_group(Kind.ALLREDUCE, name, parts, common, weight, codec, notice)
    if counts is not None:
        counted, tensor = counts
        parts.append(_same_shape(engine, (Kind.ALLREDUCE, counted, set_id), tensor, True))
        requests.append(_request_of(Kind.ALLREDUCE, counted, parts[-1], (Sum, 0, set_id, 1.0, 1.0)))
    handle = _handle_of(parts)
    keep(handle)
    engine.submit(requests, None, True, handle)


def start_sum(tensor: Any, name: str, process_set: ProcessSet, keep: Callable[[Handle], None]) -> None:
    """Submits the sum of a tensor, in place. keep: as for `start_round`."""
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    part = _same_shape(engine, (Kind.ALLREDUCE, name, set_id), tensor, True)
    handle = Handle(part[-1], False)
    keep(handle)
    engine.submit((_request_of(Kind.ALLREDUCE, name, part, (Sum, 0, set_id, 1.0, 1.0)),), None, True, handle)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool) -> Any:
    """Submits a broadcast."""
    known = RUNTIME.engine
    if known is not None:
        done = known.broadcast(tensor, root_rank, name, process_set, in_place, blocking)
        if done is not None:
            return done
    engine, set_id = enter(Kind.BROADCAST, process_set)
    root = checked_root(root_rank, name, process_set)
    part = _same_shape(engine, (Kind.BROADCAST, name, set_id), tensor, in_place)
    return _submit(engine, Kind.BROADCAST, name, part, (Sum, root, set_id, 1.0, 1.0), blocking)


def checked_root(root_rank: Any, name: str | None, process_set: ProcessSet) -> int:
    """The root of a broadcast as an int. Raises InvalidArgumentError unless it is a member of the set."""
    if root_rank not in (process_set.ranks or ()):
        raise InvalidArgumentError(
            f"{_describe((Kind.BROADCAST, name, process_set.process_set_id or 0))}: broadcast received invalid root rank "
            f"{root_rank!r} for provided process set (ranks {process_set.ranks}); root_rank counts in the whole job, and the "
            "root is a member of the set"
        )
    return int(root_rank)


def gather(tensor: Any, name: str | None, process_set: ProcessSet, blocking: bool, without_joined: bool = False) -> Any:
    """Submits an allgather. without_joined: may it run without joined ranks even if the knob horovod_rules forbids that?"""
    known = RUNTIME.engine
    if known is not None and blocking and not without_joined:
        output = known.new_shape(Kind.ALLGATHER, tensor, name, Sum, 1.0, 1.0, process_set)
        if output is not None:
            return output
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    part = _new_shape(engine, (Kind.ALLGATHER, name, set_id), tensor)
    return _submit(engine, Kind.ALLGATHER, name, part, (Sum, int(without_joined), set_id, 1.0, 1.0), blocking)


def gather_group(
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    blocking: bool,
    outputs: Sequence[Any] | None = None,
) -> Any:
    """Submits a group of allgathers. outputs: tensors for the results, as in `_new_shape`."""
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    call = (Kind.ALLGATHER, name, set_id)
    parts = [_new_shape(engine, call, *both) for both in zip(tensors, outputs or repeat(None), strict=False)]
    return _submit_group(engine, Kind.ALLGATHER, name, parts, (Sum, 0, set_id, 1.0, 1.0), blocking)


def reduce_scatter(
    tensor: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet, blocking: bool
) -> Any:
    """Submits a reducescatter."""
    known = RUNTIME.engine
    if known is not None and blocking:
        output = known.new_shape(Kind.REDUCESCATTER, tensor, name, op, prescale, postscale, process_set)
        if output is not None:
            return output
    engine, set_id = enter(Kind.REDUCESCATTER, process_set)
    part = _new_shape(engine, (Kind.REDUCESCATTER, name, set_id), tensor)
    return _submit(engine, Kind.REDUCESCATTER, name, part, (op, 0, set_id, float(prescale), float(postscale)), blocking)


def reduce_scatter_group(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    blocking: bool,
    outputs: Sequence[Any] | None = None,
) -> Any:
    """Submits a group of reducescatters. outputs: as in `gather_group`."""
    engine, set_id = enter(Kind.REDUCESCATTER, process_set)
    call = (Kind.REDUCESCATTER, name, set_id)
    parts = [_new_shape(engine, call, *both) for both in zip(tensors, outputs or repeat(None), strict=False)]
    common = (op, 0, set_id, float(prescale), float(postscale))
    return _submit_group(engine, Kind.REDUCESCATTER, name, parts, common, blocking)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Any:
    """Submits an alltoall."""
    engine, set_id = enter(Kind.ALLTOALL, process_set)
    call = (Kind.ALLTOALL, name, set_id)
    backend, source, _, step = _new_shape(engine, call, tensor)
    try:
        wanted = None if splits is None else integers_of(splits)
        counts = row_counts(wanted, source.shape[0], len(process_set.ranks or ()))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{_describe(call)}: {error}") from None
    # The engine sees only the rows within the splits.
    source = source._replace(shape=(sum(counts), *source.shape[1:]))
    part = (backend, source, 0, partial(_with_splits, step, backend))
    return _submit(engine, Kind.ALLTOALL, name, part, (Sum, 0, set_id, 1.0, 1.0), blocking, counts)


def barrier(process_set: ProcessSet, name: str | None = None, blocking: bool = True) -> Any:
    """Submits a barrier."""
    engine, set_id = enter(Kind.BARRIER, process_set)
    part = (backend_of(None), _NO_MEMORY, 0, _nothing)
    return _submit(engine, Kind.BARRIER, name, part, (Sum, 0, set_id, 1.0, 1.0), blocking)


# --- one tensor ----------------------------------------------------------------------------------------------------

# What error texts say of an operation: its kind, the user's name and the id of its process set.
_Call = tuple[int, str | None, int]


def _describe(call: _Call) -> str:
    kind, name, set_id = call
    return f"{KIND_NAMES[kind]} of {'an unnamed tensor' if name is None else repr(name)} in process set {set_id}"


def _same_shape(engine: "Engine", call: _Call, tensor: Any, in_place: bool) -> _Part:
    """An output like the input, for allreduce and broadcast."""
    backend = backend_of(tensor)
    try:
        adopted = backend.adopt_writable(tensor) if in_place else backend.adopt(tensor)
        source = backend.export(adopted, True, call[0] in _ANY_DTYPE)
        pointer, _, _, device, _, owner, _ = source
        if device == SOME_GPU:
            source = on_its_gpu(engine, source)
            device = source.device
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(call)}: {error}") from None
    private = owner is not adopted
    if in_place:
        step: Finish = partial(written, backend, tensor, adopted, owner if private else None)
        if private and device != CPU:
            step = partial(made_elsewhere, backend, source, owner, step)
        return backend, source, pointer, step
    if private:
        output, output_ptr = owner, pointer
    else:
        new_memory = engine.new_output if device == CPU else partial(engine.new_gpu_output, device, source.stream)
        output, output_ptr = backend.empty_like(owner, new_memory)
    step = partial(_made, output, owner)
    if device != CPU:
        step = partial(made_elsewhere, backend, source, output, step)
    return backend, source, output_ptr, step


def on_its_gpu(engine: "Engine", source: Exported) -> Exported:
    """Finds the GPU of a tensor whose device is `SOME_GPU`, and returns its description with the number of that GPU.

    Raises:
        InvalidArgumentError: the tensor is in host memory.
    """
    gpu = engine.gpu_of_address(source.pointer)
    if gpu == CPU:
        raise InvalidArgumentError("an object says that it is in CUDA memory, but its address is one of host memory")
    return source._replace(device=gpu)


def _new_shape(engine: "Engine", call: _Call, tensor: Any, output: Any = None) -> _Part:
    """An output that the engine allocates, for allgather, alltoall and reducescatter.

    output: a dense tensor in host memory for the result, large enough for equal parts of all ranks. It may overlap the input
        only where the result has the same values. If the sizes of the ranks' parts differ, the engine still allocates the
        result.
    """
    backend = backend_of(tensor)
    try:
        source = backend.export(backend.adopt(tensor), False, call[0] in _ANY_DTYPE)
        if source.device == SOME_GPU:
            source = on_its_gpu(engine, source)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(call)}: {error}") from None
    if not source.shape:
        operation = KIND_NAMES[call[0]].capitalize()
        raise InvalidArgumentError(
            f"{_describe(call)}: {operation} does not support scalar inputs: the tensor needs a first dimension; reshape it "
            "to [1]"
        )
    step: Finish = partial(output_of, backend, source, engine)
    if output is None or source.device != CPU:
        return backend, source, 0, step
    adopted = backend.adopt_writable(output)
    room = backend.export(adopted, False, True)
    if room.owner is not adopted:
        return backend, source, 0, step
    return backend, source, room.pointer, partial(_placed, backend, output, adopted, step)


# The tensor of a barrier.
_NO_MEMORY = Exported(0, (), 0, CPU, ROW_MAJOR, None)


def _nothing(_result: "Result") -> None:
    return None


def _made(output: Any, _input: Any, _result: "Result") -> Any:
    return output


def _placed(backend: TensorBackend, output: Any, adopted: Any, step: Finish, result: "Result") -> Any:
    """The given output, or the engine's tensor if the sizes of the ranks' parts differ."""
    if result.shape:
        return step(result)
    backend.mark_written(adopted)
    return output


def made_elsewhere(backend: TensorBackend, source: Exported, made: Any, step: Finish, result: "Result") -> Any:
    """Runs the step. If another stream than the submission's uses the tensor, it also tells the framework."""
    if backend.stream_now(source) != source.stream:
        backend.use_in_current_stream(made)
    return step(result)


def written(backend: TensorBackend, tensor: Any, adopted: Any, dense: Any, _result: "Result") -> Any:
    """The last step of an operation in place. `dense` is separate memory with the result, which it copies, or None."""
    if dense is not None:
        backend.copy_back(dense, adopted)
    else:
        backend.mark_written(adopted)
    return tensor


def output_of(backend: TensorBackend, source: Exported, engine: "Engine", result: "Result") -> Any:
    """The result that the engine has made from `source`. In host memory it is a tensor over the engine's memory.

    On a GPU it is a copy in the framework's memory, made in the order of the current stream: the engine's memory may be on
    another GPU, and frameworks reuse only their own memory.
    """
    shape = result.shape
    if source.device == CPU:
        return backend.wrap(result.data, shape, source.owner)
    stream = backend.stream_now(source)
    new_memory = partial(engine.new_gpu_output, source.device, stream)
    output, pointer = backend.empty_on_gpu(shape, source.owner, new_memory)
    if 0 not in shape:
        result.copy_to(pointer, stream)
    return output


def _with_splits(step: Finish, backend: TensorBackend, result: "Result") -> tuple[Any, Any]:
    return step(result), backend.integers(result.received_splits)


# --- the whole call ------------------------------------------------------------------------------------------------


def _submit(
    engine: "Engine",
    kind: int,
    name: str | None,
    part: _Part,
    common: _Common,
    blocking: bool,
    splits: Sequence[int] = (),
    weight: float | None = None,
    codec: Codec | None = None,
) -> Any:
    """Submits one operation: its output if the call blocks, otherwise its handle."""
    backend, source, _, finish = part
    device, stream = source.device, source.stream
    request = _request_of(kind, name, part, common, splits)
    if weight is not None or codec is not None:
        request = (*request, *_extras(weight, codec, stream))
    elif device != CPU:
        request = (*request, 0, 0, stream)
    if blocking:  # the stream that uses the result is the stream of the submission
        work = engine.submit((request,), finish, False)
        return finish(work.result(math.inf, () if device == CPU else (stream,)))
    handle = Handle(finish, False, () if device == CPU else ((backend, source),))
    engine.submit((request,), None, True, handle)
    return handle


def _request_of(kind: int, name: str | None, part: _Part, common: _Common, splits: Sequence[int] = ()) -> tuple[Any, ...]:
    """The request of one operation that is in no group, up to the layout."""
    _, source, output, _ = part
    pointer, shape, dtype, device, layout, _, _ = source
    op, root, set_id, prescale, postscale = common
    if name is not None:
        name = tensor_name(kind, name)
    return (
        kind, name, dtype, shape, pointer, output, op, root, set_id, prescale, postscale, "", 0, 0, splits, device, layout
    )  # fmt: skip


def _extras(weight: float | None, codec: Codec | None, stream: int, notice: bool = False) -> tuple[Any, ...]:
    """The last items of a request, beginning with its flags."""
    flags = 0 if weight is None else Flag.WEIGHTED | (Flag.NOTICE if notice else 0)
    return (flags, 0, stream, 0, weight or 0.0, *(() if codec is None else codec.fields.values()))


def _submit_group(
    engine: "Engine",
    kind: int,
    name: str | None,
    parts: Sequence[_Part],
    common: _Common,
    blocking: bool,
    weight: float | None = None,
    codec: Codec | None = None,
) -> Any:
    """Submits operations that are agreed on and sent together: a list of outputs if the call blocks, otherwise a handle."""
    requests = _requests_of_group(kind, name, parts, common, weight, codec)
    handle = _handle_of(parts)
    engine.submit(requests, None, not blocking, handle)
    return handle.synchronize() if blocking else handle


def _requests_of_group(
    kind: int,
    name: str | None,
    parts: Sequence[_Part],
    common: _Common,
    weight: float | None = None,
    codec: Codec | None = None,
    notice: bool = False,
) -> list[tuple[Any, ...]]:
    size = len(parts)
    group = "" if name is None else tensor_name(kind, name)
    names = [None] * size if name is None else member_names(group, size)
    requests = []
    for index, (member, part) in enumerate(zip(names, parts, strict=True)):
        _, source, output, _ = part
        pointer, shape, dtype, device, layout, _, stream = source
        place = (group, size, index, (), device, layout)
        requests.append((kind, member, dtype, shape, pointer, output, *common, *place, *_extras(weight, codec, stream, notice)))
    return requests


def _handle_of(parts: Sequence[_Part]) -> Handle:
    """A handle for operations that are submitted together."""
    on_gpu: list[OnGpu] = [None if source.device == CPU else (backend, source) for backend, source, _, _ in parts]
    return Handle([finish for _, _, _, finish in parts], True, on_gpu if any(on_gpu) else ())
