"""Messages from one rank to another: `send`, `recv`, their asynchronous forms, several at once, and Python objects.

Two ranks alone take part. A receive gets a message of its process set, from the rank and with the tag that it asks for. Of
several messages that fit, it gets the one that was sent first; of several receives that fit a message, the one that was
posted first gets it. Nothing is negotiated: a message never waits for a collective, nor a collective for a message.

Ranks count in the whole job, whatever the process set, as the roots of collectives do.

A small message (up to 8 KiB) is sent at once, whether the other rank has asked for it or not. A send of a larger one ends when
it has been received: two ranks that both send before they receive wait for each other, which both are told within two seconds.
Post the receives first (`irecv`), or both in one `batch`.

Both tensors have one dtype and one number of elements; their shapes may differ. Otherwise receiver and sender raise
`MismatchError`; who has sent a small message, and has gone on, raises it from its next call of these.

`hvdlite.torch` has `send` and `recv` with gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdlite.backends import TensorBackend, backend_of
from hvdlite.backends.base import CPU
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.handles import Finish, Handle
from hvdlite.objects import new_payload, packed, unpacked
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import KIND_NAMES, Kind, Request, tensor_name
from hvdlite.submission import enter

__all__ = ["P2POp", "Received", "batch", "irecv", "isend", "recv", "recv_object", "send", "send_object"]

_ANY = -1  # of the engine: whichever rank, whichever tag


class Received(NamedTuple):
    """What a receive from any rank, or with any tag, got.

    Attributes:
        tensor: the tensor that was written to; of `recv_object` the object.
        source: the rank that sent it.
        tag: the message's.
    """

    tensor: Any
    source: int
    tag: int


class P2POp(NamedTuple):
    """One message of a `batch`.

    Attributes:
        op: `isend` or `irecv`.
        tensor: what is sent, or written to.
        peer: the other rank; None for a receive from any.
        tag: from 0 on; None for a receive of any.
        name: for texts about it.
    """

    op: Callable[..., Handle]
    tensor: Any
    peer: int | None
    tag: int | None = 0
    name: str | None = None


def send(tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Sends a tensor to one rank, which may be this one.

    Args:
        tensor: any shape and dtype, in host memory. Not modified.
        dst: the receiver's rank in the whole job.
        tag: tells messages between the two ranks apart; from 0 on.
        name: for texts about it. It says nothing to the other rank.
        process_set: the receiver has to name the same one.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: the tensor is on a GPU.
        MismatchError: the receiver asks for another dtype or number of elements.
        HorovodInternalError: the other rank has left or failed, or both wait for each other; the text says so.
    """
    _start([P2POp(isend, tensor, dst, tag, name)], process_set, False, False).synchronize()


def isend(tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `send` and returns its handle; the tensor must not be written to before that was synchronised."""
    return _start([P2POp(isend, tensor, dst, tag, name)], process_set, False, True)


def recv(
    tensor: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Receives a tensor from one rank, into the argument.

    Args:
        tensor: written to; it has the dtype and the number of elements of what is sent.
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: that of the message; None: any.
        name: for texts about it.
        process_set: the one that the sender names.

    Returns:
        The tensor; where `src` or `tag` is None, a `Received` with the tensor, the rank that sent it, and its tag.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `send`.
    """
    return _start([P2POp(irecv, tensor, src, tag, name)], process_set, False, False).synchronize()


def irecv(
    tensor: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `recv` and returns its handle; the tensor holds the message once that was synchronised."""
    return _start([P2POp(irecv, tensor, src, tag, name)], process_set, False, True)


def batch(operations: Sequence[P2POp], process_set: ProcessSet = global_process_set) -> Handle:
    """Posts several sends and receives together, all or none, and returns one handle for them.

    Args:
        operations: in any order.
        process_set: that of all of them.

    Returns:
        A handle that gives a list: None for a send, what `recv` returns for a receive.
    """
    return _start(operations, process_set, True, True)


def send_object(obj: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Sends any object that pickle (or cloudpickle, where it is installed) can handle; the other rank calls `recv_object`.

    Raises:
        InvalidArgumentError: it cannot be pickled (on the receiver, too), or an argument is wrong.
        HorovodInternalError: as for `send`.
    """
    header, payload, failure = packed(obj)
    parts = [P2POp(isend, header, dst, tag), P2POp(isend, payload, dst, tag)]
    _start(parts, process_set, True, False).synchronize()
    if failure is not None:
        raise InvalidArgumentError(f"send_object: {failure}")


def recv_object(src: int | None = None, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Receives what a rank sends with `send_object`.

    Returns:
        A copy of the object; where `src` is None, a `Received`.

    Raises:
        InvalidArgumentError: the sender could not pickle its object, or this rank could not unpickle it.
        HorovodInternalError: as for `recv`.
    """
    header = np.empty(2, np.int64)
    received = recv(header, src, tag, None, process_set)
    source = received.source if src is None else src
    payload = new_payload(header, "recv_object", source)
    recv(payload, source, tag, None, process_set)
    obj = unpacked(header, payload, "recv_object", source)
    return Received(obj, source, tag) if src is None else obj


def _start(operations: Sequence[P2POp], process_set: ProcessSet, grouped: bool, wake: bool) -> Handle:
    """Submits them, and returns what is in flight. wake: nobody is about to wait."""
    engine, set_id = enter(Kind.SEND, process_set)
    described = [_describe(operation, set_id) for operation in operations]
    finish = [step for _, step in described]
    handle = Handle(finish if grouped else finish[0], grouped)
    engine.submit([request for request, _ in described], None, wake, handle)
    return handle


def _describe(operation: P2POp, set_id: int) -> tuple[Request, Finish]:
    op, tensor, peer, tag, name = operation
    if op is not isend and op is not irecv:
        raise InvalidArgumentError(f"P2POp: op={op!r} is neither isend nor irecv of hvdlite")
    sends = op is isend
    kind = Kind.SEND if sends else Kind.RECV
    what = f"{KIND_NAMES[kind]} of {'an unnamed tensor' if name is None else repr(name)} in process set {set_id}"
    root, number = _number(what, "rank", peer, not sends), _number(what, "tag", tag, not sends)
    backend = backend_of(tensor)
    try:
        adopted = backend.adopt(tensor) if sends else backend.adopt_writable(tensor)
        source = backend.export(adopted, False, True)
        if source.device != CPU:
            raise UnsupportedError(
                "it is on a GPU, and hvdlite sends from one rank to another in host memory only: copy it there"
            )
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{what}: {error}") from None
    own = None if name is None else tensor_name(kind, name)
    request = Request(
        kind,
        own,
        source.dtype,
        source.shape,
        input_ptr=source.pointer if sends else 0,
        output_ptr=0 if sends else source.pointer,
        root=root,
        process_set=set_id,
        layout=source.layout,
        tag=number,
    )
    if sends:
        return request, _Sent(source.owner)
    return request, _Written(backend, tensor, adopted, source.owner, peer is None or tag is None)


def _number(what: str, argument: str, value: int | None, may_be_any: bool) -> int:
    if value is None and may_be_any:
        return _ANY
    if value is None or isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < 1 << 31:
        raise InvalidArgumentError(
            f"{what}: {argument} {value!r} is no number from 0 on" + (", nor None for any" if may_be_any else "")
        )
    return int(value)


class _Sent:
    """The last step of a send; keeps its memory."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __call__(self, _result: Any) -> None:
        return None


class _Written:
    """The last step of a receive."""

    __slots__ = ("_adopted", "_backend", "_owner", "_tells", "_tensor")

    def __init__(self, backend: TensorBackend, tensor: Any, adopted: Any, owner: Any, tells: bool) -> None:
        self._backend = backend
        self._tensor = tensor
        self._adopted = adopted
        self._owner = owner
        self._tells = tells

    def __call__(self, result: Any) -> Any:
        if self._owner is self._adopted:
            self._backend.mark_written(self._adopted)
        else:
            self._backend.copy_back(self._owner, self._adopted)
        return Received(self._tensor, result.source, result.tag) if self._tells else self._tensor
