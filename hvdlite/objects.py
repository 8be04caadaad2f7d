"""Sends any picklable Python object to all ranks or from all ranks, through the same two collectives for every framework.

This module unpickles only bytes that ranks of the same job have pickled (docs/security.md). It checks the header of an object
before it allocates memory for the object.
"""

import importlib
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite import submission
from hvdlite.errors import InternalError, InvalidArgumentError
from hvdlite.ops import broadcast_
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.runtime import RUNTIME

__all__ = ["allgather_object", "broadcast_object", "exchange_by_rank", "exchange_object", "new_payload", "packed", "unpacked"]

Bytes = npt.NDArray[np.uint8]

_PICKLED, _FAILED = 0, 1  # the bytes are a pickled object, or a text that says why pickling failed
_MOST_BYTES = 1 << 48  # the limit for one object; no machine has more memory


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives all ranks the root's object. Collective over `process_set`.

    Args:
        obj: on the root any object that pickle (or cloudpickle, where it is installed) can handle, of any size; on the
            other ranks it is ignored.
        root_rank: the root's rank in the whole job, the same on all ranks.
        name: as for `hvdlite.broadcast`.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        The root's own object on the root, a copy elsewhere.

    Raises:
        InvalidArgumentError: the root could not pickle its object (raised on all ranks), this rank could not unpickle the
            object (raised only on this rank), or an argument is wrong.
        MismatchError, HorovodInternalError: as for `hvdlite.broadcast`.
    """
    is_root = RUNTIME.require_topology().rank == root_rank
    header, payload, failure = packed(obj if is_root else None)
    broadcast_(header, root_rank, _part(name, "header"), process_set)
    if not is_root:
        payload = new_payload(header, "broadcast_object", root_rank)
    broadcast_(payload, root_rank, _part(name, "data"), process_set)
    if is_root and failure is None:
        return obj
    return unpacked(header, payload, "broadcast_object", root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Collects one object of each rank on all ranks. Collective over `process_set`.

    Args:
        obj: any object that pickle (or cloudpickle, where it is installed) can handle, of any size.
        name: as for `hvdlite.allgather`.
        process_set: the ranks that take part.

    Returns:
        The objects in rank order; all of them copies, this rank's own included. Ranks that have joined give none.

    Raises:
        InvalidArgumentError: a rank could not pickle its object (raised on all ranks), this rank could not unpickle an object
            (raised only on this rank), or an argument is wrong.
        MismatchError, HorovodInternalError: as for `hvdlite.allgather`.
    """
    return list(_collect(obj, name, process_set, without_joined=False).values())


def exchange_object(obj: Any, name: str, process_set: ProcessSet) -> list[Any]:
    """`allgather_object` for hvdlite's own exchanges. It works even while the knob horovod_rules forbids an allgather."""
    return list(exchange_by_rank(obj, name, process_set).values())


def exchange_by_rank(obj: Any, name: str, process_set: ProcessSet) -> dict[int, Any]:
    """As `exchange_object`, but each object has its rank as the key. Ranks that have joined are missing."""
    return _collect(obj, name, process_set, without_joined=True)


def packed(obj: Any) -> tuple[npt.NDArray[np.int64], Bytes, str | None]:
    """A rank's message for an object: the header, the bytes, and None. If pickling failed, the error text replaces None, and is
    in the bytes as well.
    """
    state, payload = _dumps(obj)
    return np.array([state, payload.size], np.int64), payload, _text(payload.data) if state == _FAILED else None


def new_payload(header: npt.NDArray[np.int64], operation: str, sender: int) -> Bytes:
    """Memory for the bytes that the header of `packed` announces.

    Raises:
        InternalError: no rank sends such a header.
    """
    return np.empty(_read_header(header.tolist(), operation, sender)[1], np.uint8)


def unpacked(header: npt.NDArray[np.int64], payload: Bytes, operation: str, sender: int) -> Any:
    """The object that `packed` was given.

    Raises:
        InvalidArgumentError: the sender could not pickle the object, or this rank cannot unpickle it.
    """
    if int(header[0]) == _FAILED:
        raise InvalidArgumentError(f"{operation}: rank {sender} {_text(payload.data)}")
    return _loads(payload.data, operation, sender)


def _collect(obj: Any, name: str | None, process_set: ProcessSet, without_joined: bool) -> dict[int, Any]:
    """The objects by rank, in rank order."""
    state, payload = _dumps(obj)
    # The header contains the rank, because the headers of ranks that have joined are missing.
    header = np.array([[state, payload.size, RUNTIME.require_topology().rank]], dtype=np.int64)
    headers = submission.gather(header, _part(name, "header"), process_set, blocking=True, without_joined=without_joined)
    data = memoryview(
        submission.gather(payload, _part(name, "data"), process_set, blocking=True, without_joined=without_joined)
    )
    sent = _cut(headers.tolist(), data)
    failed = [f"rank {rank} {_text(part)}" for state, rank, part in sent if state == _FAILED]
    if failed:
        raise InvalidArgumentError(f"allgather_object: {'; '.join(failed)}")
    return {rank: _loads(part, "allgather_object", rank) for _, rank, part in sent}


def _read_header(header: list[int], operation: str, sender: int) -> tuple[int, int]:
    """The state and the size of the bytes that follow.

    Raises:
        InternalError: no rank sends such a header.
    """
    state, size = header
    if state not in (_PICKLED, _FAILED) or not 0 <= size <= _MOST_BYTES:
        raise InternalError(
            f"{operation}: rank {sender} announces an object in state {state} with {size} bytes, which is impossible; "
            "the message was damaged on its way"
        )
    return state, size


def _cut(headers: list[list[int]], data: memoryview) -> list[tuple[int, int, memoryview]]:
    """State, rank and bytes of what each rank sent, from the rows of all headers.

    Raises:
        InternalError: the headers do not fit the bytes.
    """
    sent = []
    start = 0
    for *header, rank in headers:
        state, size = _read_header(header, "allgather_object", rank)
        sent.append((state, rank, data[start : start + size]))
        start += size
    if start != len(data):
        raise InternalError(f"allgather_object: the ranks announce {start} bytes together, but sent {len(data)}")
    return sent


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def _dumps(obj: Any) -> tuple[int, Bytes]:
    """The state and the object's bytes. If pickling fails, the error text's bytes, because the other ranks wait for bytes."""
    try:
        return _PICKLED, np.frombuffer(_pickled(obj), np.uint8).copy()
    except Exception as error:  # pickle raises any exception of the objects' own methods
        text = f"could not pickle its {type(obj).__name__}: {type(error).__name__}: {error}"
        if _cloudpickle() is None:
            text += " (with cloudpickle installed, functions and classes made inside functions can be sent)"
        return _FAILED, np.frombuffer(text.encode(errors="replace"), np.uint8).copy()


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Functions and classes made inside functions; cloudpickle's bytes are read by plain pickle.
        cloudpickle = _cloudpickle()
        if cloudpickle is None:
            raise
        return bytes(cloudpickle.dumps(obj))


def _cloudpickle() -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _loads(data: memoryview, operation: str, sender: int) -> Any:
    """The object that a rank sent. A failure concerns only this rank: no other one waits for it."""
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling calls any function that the objects name
        raise InvalidArgumentError(
            f"{operation}: rank {RUNTIME.require_topology().rank} could not unpickle what rank {sender} sent: "
            f"{type(error).__name__}: {error}. Its modules, classes and functions must exist on every rank; "
            "the other ranks go on"
        ) from error
