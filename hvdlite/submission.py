"""From tensors to requests: what all collectives of `hvdlite.ops` have in common.

Each function checks its arguments, describes the tensors through their backends, submits the requests, and returns a
`Handle` whose finishing steps make the outputs. `wake` is false where the caller is about to wait anyway.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdlite.backends import TensorBackend, backend_of
from hvdlite.compression import is_none
from hvdlite.errors import InvalidArgumentError
from hvdlite.handles import Finish, Handle
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import (
    KIND_NAMES,
    GroupPlace,
    Kind,
    Request,
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
    requests, finish = [], []
    for place, tensor in _placed(Kind.ALLREDUCE, tensors, name, set_id, grouped):
        request, step = _same_shape(Kind.ALLREDUCE, tensor, place, set_id, in_place)
        requests.append(request._replace(op=op, prescale=float(prescale), postscale=float(postscale)))
        finish.append(step)
    return _submit(engine, requests, finish, grouped, wake)


def broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, wake: bool = True
) -> Handle:
    """Submits a broadcast."""
    engine, set_id = enter(Kind.BROADCAST, process_set)
    if root_rank not in (process_set.ranks or ()):
        raise InvalidArgumentError(
            f"broadcast received invalid root rank {root_rank} for provided process set (ranks {process_set.ranks})"
        )
    ((place, tensor),) = _placed(Kind.BROADCAST, [tensor], name, set_id, False)
    request, step = _same_shape(Kind.BROADCAST, tensor, place, set_id, in_place)
    return _submit(engine, [request._replace(root=int(root_rank))], [step], False, wake)


def gather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet, grouped: bool, wake: bool = True
) -> Handle:
    """Submits an allgather."""
    engine, set_id = enter(Kind.ALLGATHER, process_set)
    requests, finish = [], []
    for place, tensor in _placed(Kind.ALLGATHER, tensors, name, set_id, grouped):
        request, step = _new_shape(Kind.ALLGATHER, tensor, place, set_id)
        requests.append(request)
        finish.append(step)
    return _submit(engine, requests, finish, grouped, wake)


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
    requests, finish = [], []
    for place, tensor in _placed(Kind.REDUCESCATTER, tensors, name, set_id, grouped):
        request, step = _new_shape(Kind.REDUCESCATTER, tensor, place, set_id)
        requests.append(request._replace(op=op, prescale=float(prescale), postscale=float(postscale)))
        finish.append(step)
    return _submit(engine, requests, finish, grouped, wake)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, wake: bool = True) -> Handle:
    """Submits an alltoall."""
    engine, set_id = enter(Kind.ALLTOALL, process_set)
    wanted = None if splits is None else integers_of(splits)
    ((place, tensor),) = _placed(Kind.ALLTOALL, [tensor], name, set_id, False)
    request, step = _new_shape(Kind.ALLTOALL, tensor, place, set_id)
    counts = row_counts(wanted, request.shape[0], len(process_set.ranks or ()))
    # Rows beyond the splits are not sent: to the engine the tensor ends before them.
    request = request._replace(splits=counts, shape=(sum(counts), *request.shape[1:]))
    backend = backend_of(tensor if splits is None or backend_of(splits).name == "numpy" else splits)
    return _submit(engine, [request], [partial(_with_splits, step, backend)], False, wake)


# --- requests and finishing steps -----------------------------------------------------------------------------------


def _placed(
    kind: int, tensors: Sequence[Any], name: str | None, set_id: int, grouped: bool
) -> list[tuple[GroupPlace, Any]]:
    """Each tensor with its name and its place in the group."""
    count = 0 if name is not None else RUNTIME.count_unnamed(kind, set_id)
    base = tensor_name(kind, name, count)
    if not grouped:
        return [(GroupPlace(base), tensors[0])]
    members = list(tensors)
    return list(zip(group_places(base, len(members)), members, strict=True))


def _same_shape(kind: int, tensor: Any, place: GroupPlace, set_id: int, in_place: bool) -> tuple[Request, Finish]:
    """A request whose output is like its input, for allreduce and broadcast."""
    backend = backend_of(tensor)
    adopted = backend.adopt_writable(tensor) if in_place else backend.adopt(tensor)
    source = backend.export(adopted, True)
    private = source.owner is not adopted
    output, output_ptr = source.owner, source.pointer
    step: Finish
    if in_place:
        step = partial(_written, backend, tensor, adopted, source.owner if private else None)
    else:
        if not private:
            output, output_ptr = backend.empty_like(source.owner)
        step = partial(_made, output, source.owner)
    request = Request(
        kind,
        place.name,
        source.dtype,
        source.shape,
        source.pointer,
        output_ptr,
        process_set=set_id,
        group=place.group,
        group_size=place.size,
        group_index=place.place,
        device=source.device,
        layout=source.layout,
    )
    return request, step


def _new_shape(kind: int, tensor: Any, place: GroupPlace, set_id: int) -> tuple[Request, Finish]:
    """A request whose output the engine allocates, for allgather, alltoall and reducescatter."""
    backend = backend_of(tensor)
    source = backend.export(backend.adopt(tensor), False)
    if not source.shape:
        operation = KIND_NAMES[kind].capitalize()
        raise InvalidArgumentError(
            f"{operation} does not support scalar inputs: the tensor needs a first dimension; reshape it to [1]"
        )
    request = Request(
        kind,
        place.name,
        source.dtype,
        source.shape,
        source.pointer,
        process_set=set_id,
        group=place.group,
        group_size=place.size,
        group_index=place.place,
        device=source.device,
    )
    return request, partial(_wrapped, backend, source.owner)


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


def _submit(engine: "Engine", requests: list[Request], finish: list[Finish], grouped: bool, wake: bool) -> Handle:
    if grouped:
        numbers = engine.submit_many(requests, wake) if requests else []
    else:
        numbers = [engine.submit(*requests[0], wake=wake)]
    return Handle(engine, numbers, finish, grouped)
