"""From tensors to requests: what all collectives of `hvdlite.ops` have in common.

Each function checks its arguments, describes the tensors through their backends and submits the requests. A blocking call
waits and returns the output, in one go with the submission where it can; any other returns a `Handle`, whose finishing
steps make the outputs.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdlite.backends import Exported, TensorBackend, backend_of
from hvdlite.backends.base import CPU, ROW_MAJOR
from hvdlite.compression import is_none
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.handles import Finish, Handle
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import (
    KIND_NAMES,
    Kind,
    Sum,
    integers_of,
    member_names,
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
    "compress",
    "enter",
    "gather",
    "gather_group",
    "reduce",
    "reduce_group",
    "reduce_scatter",
    "reduce_scatter_group",
]

_KEEP = RUNTIME.keep_unfinished


def enter(kind: int, process_set: ProcessSet) -> "tuple[Engine, int]":
    """The engine and the id of the process set, for an operation of this kind.

    Raises:
        NotInitializedError: hvdlite is not initialised in this process.
        InvalidArgumentError: the set is none, is not registered, or does not include this rank.
    """
    engine = RUNTIME.require()
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is no ProcessSet; hvdlite.add_process_set returns one")
    return engine, process_set.require_member(kind)


def compress(compression: Any, tensors: Sequence[Any]) -> tuple[Any, list[Any], Sequence[Any]]:
    """Applies a compression to tensors: the class (None where there is nothing to undo), the contexts, the tensors."""
    if is_none(compression):
        return None, [], tensors
    pairs = [compression.compress(tensor) for tensor in tensors]
    return compression, [context for _, context in pairs], [compressed for compressed, _ in pairs]


# One tensor of an operation: its memory, where the result goes (0: the engine allocates it), and the last step.
_Part = tuple[Exported, Any, Finish]
# What all tensors of a call have in common, in the order of `Request`: op, root, process set, prescale, postscale.
_Common = tuple[int, int, int, float, float]


def reduce(
    tensor: Any,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
    blocking: bool,
) -> Any:
    """Submits an allreduce."""
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    part = _same_shape(engine, (Kind.ALLREDUCE, name, set_id), tensor, in_place)
    return _submit(engine, Kind.ALLREDUCE, name, part, (op, 0, set_id, float(prescale), float(postscale)), blocking)


def reduce_group(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
    blocking: bool,
) -> Any:
    """Submits a group of allreduces."""
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    call = (Kind.ALLREDUCE, name, set_id)
    parts = [_same_shape(engine, call, tensor, in_place) for tensor in tensors]
    return _submit_group(engine, Kind.ALLREDUCE, name, parts, (op, 0, set_id, float(prescale), float(postscale)), blocking)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool) -> Any:
    """Submits a broadcast."""
    engine, set_id = enter(Kind.BROADCAST, process_set)
    call = (Kind.BROADCAST, name, set_id)
    if root_rank not in (process_set.ranks or ()):
        raise InvalidArgumentError(
            f"{_describe(call)}: broadcast received invalid root rank {root_rank} for provided process set (ranks "
            f"{process_set.ranks}); root_rank counts in the whole job, and the root is a member of the set"
        )
    part = _same_shape(engine, call, tensor, in_place)
    return _submit(engine, Kind.BROADCAST, name, part, (Sum, int(root_rank), set_id, 1.0, 1.0), blocking)


def gather(tensor: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Any:
    """Submits an allgather."""
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    part = _new_shape((Kind.ALLGATHER, name, set_id), tensor)
    return _submit(engine, Kind.ALLGATHER, name, part, (Sum, 0, set_id, 1.0, 1.0), blocking)


def gather_group(tensors: Sequence[Any], name: str | None, process_set: ProcessSet, blocking: bool) -> Any:
    """Submits a group of allgathers."""
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    parts = [_new_shape((Kind.ALLGATHER, name, set_id), tensor) for tensor in tensors]
    return _submit_group(engine, Kind.ALLGATHER, name, parts, (Sum, 0, set_id, 1.0, 1.0), blocking)


def reduce_scatter(
    tensor: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet, blocking: bool
) -> Any:
    """Submits a reducescatter."""
    engine, set_id = enter(Kind.REDUCESCATTER, process_set)
    part = _new_shape((Kind.REDUCESCATTER, name, set_id), tensor)
    return _submit(engine, Kind.REDUCESCATTER, name, part, (op, 0, set_id, float(prescale), float(postscale)), blocking)


def reduce_scatter_group(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    blocking: bool,
) -> Any:
    """Submits a group of reducescatters."""
    engine, set_id = enter(Kind.REDUCESCATTER, process_set)
    parts = [_new_shape((Kind.REDUCESCATTER, name, set_id), tensor) for tensor in tensors]
    common = (op, 0, set_id, float(prescale), float(postscale))
    return _submit_group(engine, Kind.REDUCESCATTER, name, parts, common, blocking)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Any:
    """Submits an alltoall."""
    engine, set_id = enter(Kind.ALLTOALL, process_set)
    call = (Kind.ALLTOALL, name, set_id)
    source, _, step = _new_shape(call, tensor)
    try:
        wanted = None if splits is None else integers_of(splits)
        counts = row_counts(wanted, source.shape[0], len(process_set.ranks or ()))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{_describe(call)}: {error}") from None
    # Rows beyond the splits are not sent: to the engine the tensor ends before them.
    source = source._replace(shape=(sum(counts), *source.shape[1:]))
    part = (source, 0, partial(_with_splits, step, backend_of(tensor)))
    return _submit(engine, Kind.ALLTOALL, name, part, (Sum, 0, set_id, 1.0, 1.0), blocking, counts)


def barrier(process_set: ProcessSet, name: str | None = None, blocking: bool = True) -> Any:
    """Submits a barrier."""
    engine, set_id = enter(Kind.BARRIER, process_set)
    part = (_NO_MEMORY, 0, _nothing)
    return _submit(engine, Kind.BARRIER, name, part, (Sum, 0, set_id, 1.0, 1.0), blocking)


# --- one tensor ----------------------------------------------------------------------------------------------------

# For messages: the kind, the user's name and the process set of an operation.
_Call = tuple[int, str | None, int]


def _describe(call: _Call) -> str:
    kind, name, set_id = call
    return f"{KIND_NAMES[kind]} of {'an unnamed tensor' if name is None else repr(name)} in process set {set_id}"


def _same_shape(engine: "Engine", call: _Call, tensor: Any, in_place: bool) -> _Part:
    """An output like the input, for allreduce and broadcast."""
    backend = backend_of(tensor)
    try:
        adopted = backend.adopt_writable(tensor) if in_place else backend.adopt(tensor)
        source = backend.export(adopted, True)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(call)}: {error}") from None
    private = source.owner is not adopted
    if in_place:
        step = partial(_written, backend, tensor, adopted, source.owner if private else None)
        return source, source.pointer, step
    output, output_ptr = (source.owner, source.pointer) if private else backend.empty_like(source.owner, engine.new_output)
    return source, output_ptr, partial(_made, output, source.owner)


def _new_shape(call: _Call, tensor: Any) -> _Part:
    """An output that the engine allocates, for allgather, alltoall and reducescatter."""
    backend = backend_of(tensor)
    try:
        source = backend.export(backend.adopt(tensor), False)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{_describe(call)}: {error}") from None
    if not source.shape:
        operation = KIND_NAMES[call[0]].capitalize()
        raise InvalidArgumentError(
            f"{_describe(call)}: {operation} does not support scalar inputs: the tensor needs a first dimension; reshape it "
            "to [1]"
        )
    return source, 0, partial(_wrapped, backend, source.owner)


# What a barrier reduces.
_NO_MEMORY = Exported(0, (), 0, CPU, ROW_MAJOR, None)


def _nothing(_result: "Result") -> None:
    return None


def _made(output: Any, _input: Any, _result: "Result") -> Any:
    return output


def _written(backend: TensorBackend, tensor: Any, adopted: Any, dense: Any, _result: "Result") -> Any:
    if dense is not None:
        backend.copy_back(dense, adopted)
    else:
        backend.mark_written(adopted)
    return tensor


def _wrapped(backend: TensorBackend, owner: Any, result: "Result") -> Any:
    shape = result.shape
    data = memoryview(b"") if 0 in shape else result.take_data()
    return backend.wrap(data, shape, owner)


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
) -> Any:
    """Submits one operation: its output if the call blocks, otherwise its handle."""
    (pointer, shape, dtype, device, layout, _), output, finish = part
    what = (dtype, shape, pointer, output, *common, "", 0, 0, splits, device, layout)
    request = (kind, None if name is None else tensor_name(kind, name), *what)
    if blocking:
        return finish(engine.run(request, finish, _KEEP))
    return Handle(engine, engine.submit_many((request,)), (finish,), False)


def _submit_group(
    engine: "Engine", kind: int, name: str | None, parts: Sequence[_Part], common: _Common, blocking: bool
) -> Any:
    """Submits operations that are agreed on and sent together: a list of outputs if the call blocks, otherwise a handle."""
    size = len(parts)
    group = "" if name is None else tensor_name(kind, name)
    names = [None] * size if name is None else member_names(group, size)
    requests = []
    for index, (member, part) in enumerate(zip(names, parts, strict=True)):
        (pointer, shape, dtype, device, layout, _), output, _ = part
        place = (group, size, index, (), device, layout)
        requests.append((kind, member, dtype, shape, pointer, output, *common, *place))
    handle = Handle(engine, engine.submit_many(requests, not blocking), [finish for _, _, finish in parts], True)
    return handle.synchronize() if blocking else handle
