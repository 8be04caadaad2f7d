"""From tensors to requests: what all collectives of `hvdlite.ops` have in common.

Each function checks its arguments, describes the tensors through their backends, submits the requests, and returns a
`Handle` whose finishing steps make the outputs. `wake` is false where the caller is about to wait anyway.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdlite.backends import Exported, TensorBackend, backend_of
from hvdlite.compression import is_none
from hvdlite.errors import InvalidArgumentError
from hvdlite.handles import Finish, Handle
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import (
    KIND_NAMES,
    GroupPlace,
    Kind,
    Request,
    Sum,
    group_places,
    integers_of,
    row_counts,
    tensor_name,
)
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = ["alltoall", "broadcast", "compress", "enter", "gather", "reduce", "reduce_scatter"]


def enter(kind: int, process_set: ProcessSet) -> "tuple[Engine, int]":
    """The engine and the id of the process set, for an operation of this kind.

    Raises:
        NotInitializedError: hvdlite is not initialised in this process.
        InvalidArgumentError: the set is none, is not registered, or does not include this rank.
    """
    engine = RUNTIME.require()
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is no ProcessSet; hvdlite.add_process_set returns one")
    return engine, process_set.require_member(KIND_NAMES[kind].capitalize())


def compress(compression: Any, tensors: Sequence[Any]) -> tuple[Any, list[Any], Sequence[Any]]:
    """Applies a compression to tensors: the class (None where there is nothing to undo), the contexts, the tensors."""
    if is_none(compression):
        return None, [], tensors
    pairs = [compression.compress(tensor) for tensor in tensors]
    return compression, [context for _, context in pairs], [compressed for compressed, _ in pairs]


class _Part(NamedTuple):
    """One tensor of an operation: its memory, where the result goes (0: the engine allocates it), and the last step."""

    source: Exported
    output_ptr: int
    finish: Finish


class _Operation(NamedTuple):
    """What all tensors of one call have in common."""

    kind: int
    process_set: int
    name: str | None
    grouped: bool
    wake: bool
    op: int = Sum
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: Sequence[int] = ()


def reduce(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    in_place: bool,
    wake: bool = True,
) -> Handle:
    """Submits an allreduce."""
    engine, set_id = enter(Kind.ALLREDUCE, process_set)
    parts = [_same_shape(engine, tensor, in_place) for tensor in tensors]
    shared = _Operation(Kind.ALLREDUCE, set_id, name, grouped, wake, op, 0, float(prescale), float(postscale))
    return _submit(engine, shared, parts)


def broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, wake: bool = True
) -> Handle:
    """Submits a broadcast."""
    engine, set_id = enter(Kind.BROADCAST, process_set)
    if root_rank not in (process_set.ranks or ()):
        raise InvalidArgumentError(
            f"broadcast received invalid root rank {root_rank} for provided process set (ranks {process_set.ranks})"
        )
    shared = _Operation(Kind.BROADCAST, set_id, name, False, wake, root=int(root_rank))
    return _submit(engine, shared, [_same_shape(engine, tensor, in_place)])


def gather(tensors: Sequence[Any], name: str | None, process_set: ProcessSet, grouped: bool, wake: bool = True) -> Handle:
    """Submits an allgather."""
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    parts = [_new_shape(Kind.ALLGATHER, tensor) for tensor in tensors]
    return _submit(engine, _Operation(Kind.ALLGATHER, set_id, name, grouped, wake), parts)


def reduce_scatter(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    wake: bool = True,
) -> Handle:
    """Submits a reducescatter."""
    engine, set_id = enter(Kind.REDUCESCATTER, process_set)
    parts = [_new_shape(Kind.REDUCESCATTER, tensor) for tensor in tensors]
    shared = _Operation(Kind.REDUCESCATTER, set_id, name, grouped, wake, op, 0, float(prescale), float(postscale))
    return _submit(engine, shared, parts)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, wake: bool = True) -> Handle:
    """Submits an alltoall."""
    engine, set_id = enter(Kind.ALLTOALL, process_set)
    wanted = None if splits is None else integers_of(splits)
    source, _, step = _new_shape(Kind.ALLTOALL, tensor)
    counts = row_counts(wanted, source.shape[0], len(process_set.ranks or ()))
    # Rows beyond the splits are not sent: to the engine the tensor ends before them.
    source = source._replace(shape=(sum(counts), *source.shape[1:]))
    finish = partial(_with_splits, step, backend_of(tensor))
    shared = _Operation(Kind.ALLTOALL, set_id, name, False, wake, splits=counts)
    return _submit(engine, shared, [_Part(source, 0, finish)])


# --- one tensor ----------------------------------------------------------------------------------------------------


def _same_shape(engine: "Engine", tensor: Any, in_place: bool) -> _Part:
    """An output like the input, for allreduce and broadcast."""
    backend = backend_of(tensor)
    adopted = backend.adopt_writable(tensor) if in_place else backend.adopt(tensor)
    source = backend.export(adopted, True)
    private = source.owner is not adopted
    if in_place:
        step = partial(_written, backend, tensor, adopted, source.owner if private else None)
        return _Part(source, source.pointer, step)
    output, output_ptr = (source.owner, source.pointer) if private else backend.empty_like(source.owner, engine.new_output)
    return _Part(source, output_ptr, partial(_made, output, source.owner))


def _new_shape(kind: int, tensor: Any) -> _Part:
    """An output that the engine allocates, for allgather, alltoall and reducescatter."""
    backend = backend_of(tensor)
    source = backend.export(backend.adopt(tensor), False)
    if not source.shape:
        operation = KIND_NAMES[kind].capitalize()
        raise InvalidArgumentError(
            f"{operation} does not support scalar inputs: the tensor needs a first dimension; reshape it to [1]"
        )
    return _Part(source, 0, partial(_wrapped, backend, source.owner))


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


def _submit(engine: "Engine", shared: _Operation, parts: list[_Part]) -> Handle:
    """Names the operation last of all, so that a refused call does not use up a number that the other ranks need."""
    if shared.name is not None:
        return _submit_as(tensor_name(shared.kind, shared.name), engine, shared, parts)
    with RUNTIME.unnamed(shared.kind, shared.process_set) as name:
        return _submit_as(name, engine, shared, parts)


def _submit_as(name: str, engine: "Engine", shared: _Operation, parts: list[_Part]) -> Handle:
    finish = [part.finish for part in parts]
    if not shared.grouped:
        request = _request(GroupPlace(name), shared, parts[0])
        return Handle(engine, (engine.submit(*request, wake=shared.wake),), finish, False)
    if not parts:
        return Handle(engine, (), finish, True)
    places = group_places(name, len(parts))
    requests = [_request(place, shared, part) for place, part in zip(places, parts, strict=True)]
    return Handle(engine, engine.submit_many(requests, shared.wake), finish, True)


def _request(place: GroupPlace, shared: _Operation, part: _Part) -> Request:
    source = part.source
    return Request(
        shared.kind,
        place.name,
        source.dtype,
        source.shape,
        source.pointer,
        part.output_ptr,
        shared.op,
        shared.root,
        shared.process_set,
        shared.prescale,
        shared.postscale,
        place.group,
        place.size,
        place.place,
        shared.splits,
        source.device,
        source.layout,
    )
