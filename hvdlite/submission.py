"""Makes requests from tensors: the common part of all collectives of `hvdlite.ops`.

Each function checks its arguments, describes the tensors through their backends and submits the requests. A blocking call
waits for the work and returns the output. Any other call returns a `Handle`, whose last steps make the outputs. For tensors
whose memory it can use directly, native code (csrc/bindings/python/plain_calls.cc) does all this. (Over 400 lines: one function
for each collective.)
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

# One call: the engine, the id of the process set, the kind of operation, and the user's name.
_Call = tuple["Engine", int, int, str | None]

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

    A codec changes nothing here: it is part of the request.
    """
    if is_none(compression) or codec_of(compression) is not None:
        return None, [], tensors
    check_compression(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    return compression, [context for _, context in pairs], [compressed for compressed, _ in pairs]


# One tensor of an operation: its backend, its memory, the address of the result (0: the engine allocates it), the last step
_Part = tuple[TensorBackend, Exported, Any, Finish]
# The operation of a call: the op, the root, the prescale and the postscale.
_Scales = tuple[int, int, float, float]
_UNSCALED: _Scales = (Sum, 0, 1.0, 1.0)


def check_weight(weight: Any, op: int) -> float:
    """A rank's weight as a float.

    Raises:
        InvalidArgumentError: the weight is not a finite number of 0 or more, or the op is not Average.
    """
    try:
        value = -1.0 if isinstance(weight, bool) or not isinstance(weight, Real) else float(weight)
    except OverflowError:
        value = math.inf
    if not 0 <= value < math.inf:
        raise InvalidArgumentError(
            f"weight={weight!r}: a weight is a finite number of 0 or more, such as the number of samples in this rank's batch"
        )
    check_weighted(op)
    return value


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
    call = (*enter(Kind.ALLREDUCE, process_set), Kind.ALLREDUCE, name)
    weight = None if weight is None else check_weight(weight, op)
    part = _same_shape(call, tensor, in_place)
    return _submit(call, part, (op, 0, float(prescale), float(postscale)), blocking, weight=weight, codec=codec)


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
    wake: bool,
    weight: float | None = None,
    codec: Codec | None = None,
) -> Handle:
    """Submits a group of allreduces.

    wake: False if the caller is about to wait for the handle. weight: this rank's weight in weighted means, or None.
    """
    tensors = list(tensors)
    if in_place and len(set(map(id, tensors))) < len(tensors):
        raise InvalidArgumentError(
            f"grouped_allreduce_ of {name!r}: a tensor is in the group twice, and could be reduced twice; list it once, or use "
            "the function without the trailing underscore"
        )
    known = RUNTIME.engine
    if known is not None and weight is None and codec is None:
        started: Handle | None = known.allreduce_group(tensors, name, op, prescale, postscale, process_set, in_place, wake)
        if started is not None:
            return started
    call = (*enter(Kind.ALLREDUCE, process_set), Kind.ALLREDUCE, name)
    weight = None if weight is None else check_weight(weight, op)
    parts = [_same_shape(call, tensor, in_place) for tensor in tensors]
    return _submit_group(call, parts, (op, 0, float(prescale), float(postscale)), wake, weight, codec)


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
        codec: how the elements travel; None: not coded.
        notice: does this rank give notice with its weight?
        counts: a name, and a tensor that is summed in place; None: there are no counts.
        keep: a function that gets the handle before the submission. The handle's number is 0 until all is submitted.
    """
    call = engine, set_id, kind, _ = (*enter(Kind.ALLREDUCE, process_set), Kind.ALLREDUCE, name)
    op, prescale, postscale = scales
    weight = None if weight is None else check_weight(weight, op)
    parts = [_same_shape(call, tensor, True) for tensor in tensors]
    requests = _requests_of_group(call, parts, (op, 0, prescale, postscale), weight, codec, notice)
    if counts is not None:
        counted, tensor = counts
        parts.append(_same_shape((engine, set_id, kind, counted), tensor, True))
        requests.append(_request_of(kind, tensor_name(kind, counted), set_id, parts[-1], _UNSCALED))
    handle = handle_of([(finish, _on_gpu(backend, source)) for backend, source, _, finish in parts])
    keep(handle)
    engine.submit(requests, None, True, handle)


def start_sum(tensor: Any, name: str, process_set: ProcessSet, keep: Callable[[Handle], None]) -> None:
    """Submits the sum of a tensor, in place. keep: as for `start_round`."""
    call = engine, set_id, kind, _ = (*enter(Kind.ALLREDUCE, process_set), Kind.ALLREDUCE, name)
    part = _same_shape(call, tensor, True)
    handle = Handle(part[-1], False)
    keep(handle)
    engine.submit((_request_of(kind, tensor_name(kind, name), set_id, part, _UNSCALED),), None, True, handle)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool) -> Any:
    """Submits a broadcast."""
    known = RUNTIME.engine
    if known is not None:
        done = known.broadcast(tensor, root_rank, name, process_set, in_place, blocking)
        if done is not None:
            return done
    call = (*enter(Kind.BROADCAST, process_set), Kind.BROADCAST, name)
    root = checked_root(root_rank, name, process_set)
    return _submit(call, _same_shape(call, tensor, in_place), (Sum, root, 1.0, 1.0), blocking)


def checked_root(root_rank: Any, name: str | None, process_set: ProcessSet) -> int:
    """The root of a broadcast as an int. Raises InvalidArgumentError unless it is a member of the set."""
    if root_rank not in (process_set.ranks or ()):
        raise InvalidArgumentError(
            f"{_describe(process_set.process_set_id or 0, Kind.BROADCAST, name)}: broadcast received invalid root rank "
            f"{root_rank!r} for provided process set (ranks {process_set.ranks}); root_rank counts in the whole job, and the "
            "root is a member of the set"
        )
    return int(root_rank)


def gather(tensor: Any, name: str | None, process_set: ProcessSet, blocking: bool, without_joined: bool = False) -> Any:
    """Submits an allgather. without_joined: may it run while ranks have joined, even if the knob horovod_rules forbids that?"""
    known = RUNTIME.engine
    if known is not None and blocking and not without_joined:
        output = known.new_shape(Kind.ALLGATHER, tensor, name, Sum, 1.0, 1.0, process_set)
        if output is not None:
            return output
    call = (*enter(Kind.ALLGATHER, process_set), Kind.ALLGATHER, name)
    return _submit(call, _new_shape(call, tensor), (Sum, int(without_joined), 1.0, 1.0), blocking)


def gather_group(
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    wake: bool,
    outputs: Sequence[Any] | None = None,
) -> Handle:
    """Submits a group of allgathers. wake: as for `reduce_group`. outputs: tensors for the results, as in `_new_shape`."""
    call = (*enter(Kind.ALLGATHER, process_set), Kind.ALLGATHER, name)
    parts = [_new_shape(call, *both) for both in zip(tensors, outputs or repeat(None), strict=False)]
    return _submit_group(call, parts, _UNSCALED, wake)


def reduce_scatter(
    tensor: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet, blocking: bool
) -> Any:
    """Submits a reducescatter."""
    known = RUNTIME.engine
    if known is not None and blocking:
        output = known.new_shape(Kind.REDUCESCATTER, tensor, name, op, prescale, postscale, process_set)
        if output is not None:
            return output
    call = (*enter(Kind.REDUCESCATTER, process_set), Kind.REDUCESCATTER, name)
    return _submit(call, _new_shape(call, tensor), (op, 0, float(prescale), float(postscale)), blocking)


def reduce_scatter_group(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wake: bool,
    outputs: Sequence[Any] | None = None,
) -> Handle:
    """Submits a group of reducescatters. wake, outputs: as in `gather_group`."""
    call = (*enter(Kind.REDUCESCATTER, process_set), Kind.REDUCESCATTER, name)
    parts = [_new_shape(call, *both) for both in zip(tensors, outputs or repeat(None), strict=False)]
    return _submit_group(call, parts, (op, 0, float(prescale), float(postscale)), wake)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Any:
    """Submits an alltoall."""
    call = (*enter(Kind.ALLTOALL, process_set), Kind.ALLTOALL, name)
    backend, source, _, step = _new_shape(call, tensor)
    try:
        wanted = None if splits is None else integers_of(splits)
        counts = row_counts(wanted, source.shape[0], len(process_set.ranks or ()))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{_describe(*call[1:])}: {error}") from None
    # The engine sees only the rows within the splits.
    source = source._replace(shape=(sum(counts), *source.shape[1:]))
    part = (backend, source, 0, partial(_with_splits, step, backend))
    return _submit(call, part, _UNSCALED, blocking, counts)


def barrier(process_set: ProcessSet, name: str | None = None, blocking: bool = True) -> Any:
    """Submits a barrier."""
    call = (*enter(Kind.BARRIER, process_set), Kind.BARRIER, name)
    return _submit(call, (backend_of(None), _NO_MEMORY, 0, lambda _: None), _UNSCALED, blocking)


# --- one tensor ----------------------------------------------------------------------------------------------------


def _describe(set_id: int, kind: int, name: str | None) -> str:
    return f"{KIND_NAMES[kind]} of {'an unnamed tensor' if name is None else repr(name)} in process set {set_id}"


def _same_shape(call: _Call, tensor: Any, in_place: bool) -> _Part:
    """An output like the input, for allreduce and broadcast."""
    engine, _, kind, _ = call
    backend = backend_of(tensor)
    try:
        adopted = backend.adopt_writable(tensor) if in_place else backend.adopt(tensor)
        source = backend.export(adopted, True, kind in _ANY_DTYPE)
        pointer, _, _, device, _, owner, _ = source
        if device == SOME_GPU:
            source = on_its_gpu(engine, source)
            device = source.device
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(*call[1:])}: {error}") from None
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


def _new_shape(call: _Call, tensor: Any, output: Any = None) -> _Part:
    """An output that the engine allocates, for allgather, alltoall and reducescatter.

    output: a dense tensor in host memory for the result, large enough for equal parts of all ranks. It may overlap the input
        only where result and input have the same values. If the sizes of the ranks' parts differ, the engine allocates the
        result all the same.
    """
    engine, _, kind, _ = call
    backend = backend_of(tensor)
    try:
        source = backend.export(backend.adopt(tensor), False, kind in _ANY_DTYPE)
        if source.device == SOME_GPU:
            source = on_its_gpu(engine, source)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(*call[1:])}: {error}") from None
    if not source.shape:
        operation = KIND_NAMES[kind].capitalize()
        raise InvalidArgumentError(
            f"{_describe(*call[1:])}: {operation} does not support scalar inputs: the tensor needs a first dimension; "
            "reshape it to [1]"
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


def _made(output: Any, _input: Any, _result: "Result") -> Any:
    return output


def _placed(backend: TensorBackend, output: Any, adopted: Any, step: Finish, result: "Result") -> Any:
    """The given output, or the engine's tensor if the sizes of the ranks' parts differ."""
    if result.shape:
        return step(result)
    backend.mark_written(adopted)
    return output


def made_elsewhere(backend: TensorBackend, source: Exported, made: Any, step: Finish, result: "Result") -> Any:
    """Runs the step. If the current stream is not the submission's, first tells the framework that this stream uses `made`."""
    if backend.stream_now(source) != source.stream:
        backend.use_in_current_stream(made)
    return step(result)


def written(backend: TensorBackend, tensor: Any, adopted: Any, dense: Any, _result: "Result") -> Any:
    """The last step of an operation in place. `dense` is separate memory with the result, which is copied back, or None."""
    if dense is not None:
        backend.copy_back(dense, adopted)
    else:
        backend.mark_written(adopted)
    return tensor


def output_of(backend: TensorBackend, source: Exported, engine: "Engine", result: "Result") -> Any:
    """The result that the engine has made from `source`. In host memory the output is a tensor over the engine's memory.

    On a GPU the output is a copy in the framework's memory, made in the order of the current stream, because the engine's
    memory may be on another GPU, and frameworks reuse only their own memory.
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
    call: _Call,
    part: _Part,
    scales: _Scales,
    blocking: bool,
    splits: Sequence[int] = (),
    weight: float | None = None,
    codec: Codec | None = None,
) -> Any:
    """Submits one operation. Returns its output if the call blocks, otherwise its handle."""
    engine, set_id, kind, name = call
    backend, source, _, finish = part
    key = None if name is None else tensor_name(kind, name)
    request = _request_of(kind, key, set_id, part, scales, splits)
    if weight is not None or codec is not None:
        request = (*request, *_extras(weight, codec, source.stream))
    elif source.device != CPU:
        request = (*request, 0, 0, source.stream)
    return submit_one(engine, request, finish, None if source.device == CPU else (backend, source), blocking)


def submit_one(engine: "Engine", request: tuple[Any, ...], finish: Finish, on_gpu: OnGpu, blocking: bool) -> Any:
    """Submits one request. Returns the output of its last step if the call blocks, otherwise a handle."""
    if blocking:  # the stream that uses the result is the stream of the submission
        work = engine.submit((request,), finish, False)
        return finish(work.result(math.inf, () if on_gpu is None else (on_gpu[1].stream,)))
    handle = Handle(finish, False, () if on_gpu is None else (on_gpu,))
    engine.submit((request,), None, True, handle)
    return handle


def _on_gpu(backend: TensorBackend, source: Exported) -> OnGpu:
    return None if source.device == CPU else (backend, source)


def _request_of(
    kind: int,
    key: str | None,
    set_id: int,
    part: _Part,
    scales: _Scales,
    splits: Sequence[int] = (),
) -> tuple[Any, ...]:
    """The request of one operation that is in no group, up to the layout. key: the operation's name in the negotiation."""
    _, (pointer, shape, dtype, device, layout, _, _), output, _ = part
    op, root, prescale, postscale = scales
    return (
        kind, key, dtype, shape, pointer, output, op, root, set_id, prescale, postscale, "", 0, 0, splits, device, layout
    )  # fmt: skip


def _extras(weight: float | None, codec: Codec | None, stream: int, notice: bool = False) -> tuple[Any, ...]:
    """The last items of a request, beginning with its flags."""
    flags = 0 if weight is None else Flag.WEIGHTED | (Flag.NOTICE if notice else 0)
    return (flags, 0, stream, 0, weight or 0.0, *(() if codec is None else codec.fields.values()))


def _submit_group(
    call: _Call,
    parts: Sequence[_Part],
    scales: _Scales,
    wake: bool,
    weight: float | None = None,
    codec: Codec | None = None,
) -> Handle:
    """Submits operations that are agreed on and sent together. Returns one handle for them."""
    requests = _requests_of_group(call, parts, scales, weight, codec)
    handle = handle_of([(finish, _on_gpu(backend, source)) for backend, source, _, finish in parts])
    call[0].submit(requests, None, wake, handle)
    return handle


def _requests_of_group(
    call: _Call,
    parts: Sequence[_Part],
    scales: _Scales,
    weight: float | None,
    codec: Codec | None,
    notice: bool = False,
) -> list[tuple[Any, ...]]:
    _, set_id, kind, name = call
    op, root, prescale, postscale = scales
    size = len(parts)
    group = "" if name is None else tensor_name(kind, name)
    keys = [None] * size if name is None else member_names(group, size)
    common = (op, root, set_id, prescale, postscale, group, size)
    requests = []
    for index, (key, part) in enumerate(zip(keys, parts, strict=True)):
        _, source, output, _ = part
        pointer, shape, dtype, device, layout, _, stream = source
        memory = (kind, key, dtype, shape, pointer, output)
        requests.append((*memory, *common, index, (), device, layout, *_extras(weight, codec, stream, notice)))
    return requests


def handle_of(operations: Sequence[tuple[Finish, OnGpu]]) -> Handle:
    """A handle for operations that are submitted together."""
    on_gpu = [place for _, place in operations]
    return Handle([finish for finish, _ in operations], True, on_gpu if any(on_gpu) else ())
