"""Messages from one rank to another: `send`, `recv`, their asynchronous forms, several at once, and Python objects.

Only two ranks take part. A receive names a process set, a rank and a tag, and gets a message that matches all three. If
several messages match, the receive gets the message that was sent first. If several receives match a message, the receive that
was posted first gets the message. There is no negotiation: messages never wait for collectives, and collectives never wait for
messages.

The ranks are those of the whole job, for any process set, as with the roots of collectives.

A small message (up to 8 KiB) is sent at once, even before the other rank has posted a receive, unless more than 1 MiB of such
messages wait there. Any other send ends when the other rank has received the message. So if two ranks both send before they
receive, they wait for each other, and by default both get an error within two seconds. Post the receives first (`irecv`), or
post sends and receives in one `batch`.

A tensor on a GPU goes through page-locked host memory. Its send ends when the other rank has received the message, also if the
tensor is small. One rank's tensor may be on a GPU and the other rank's tensor in host memory. As with collectives, a receive
does not make the host wait for a GPU: later work of the current stream sees the message.

The sender's tensor and the receiver's tensor must have the same dtype and number of elements, or both ranks raise
`MismatchError`. The shapes may differ. If the send of a small message has ended already, the sender's next call of a function
of this module raises the error.

`hvdlite.torch`, `hvdlite.tensorflow` and `hvdlite.jax` have `send` and `recv` with gradients.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hvdlite.backends import TensorBackend, backend_of
from hvdlite.backends.base import CPU, SOME_GPU
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.handles import Finish, Handle, OnGpu
from hvdlite.objects import new_payload, packed, unpacked
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import KIND_NAMES, Kind, Sum, tensor_name
from hvdlite.runtime import RUNTIME
from hvdlite.submission import enter, handle_of, made_elsewhere, on_its_gpu, submit_one, written

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = [
    "P2POp",
    "Received",
    "batch",
    "irecv",
    "isend",
    "recv",
    "recv_object",
    "recv_object_list",
    "send",
    "send_object",
    "send_object_list",
]

_ANY = -1  # the engine's number for any rank or any tag
_NUMBERS = 1 << 31  # ranks and tags are smaller


class Received(NamedTuple):
    """The result of a receive from any rank, or with any tag.

    Attributes:
        tensor: the tensor that was given, which holds the message; for `recv_object` the object.
        source: the rank that sent the message.
        tag: the tag of the message.
    """

    tensor: Any
    source: int
    tag: int


class P2POp(NamedTuple):
    """One message of a `batch`.

    Attributes:
        op: `isend` or `irecv`.
        tensor: the tensor to send, or to write to.
        peer: the other rank; None for a receive from any rank.
        tag: 0 or more; None for a receive with any tag.
        name: the name of the tensor in error texts.
    """

    op: Callable[..., Handle]
    tensor: Any
    peer: int | None
    tag: int | None = 0
    name: str | None = None


def send(tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Sends a tensor to one rank, which may be this one.

    Args:
        tensor: any shape and dtype, in host memory or on a GPU. Not modified.
        dst: the receiver's rank in the whole job.
        tag: a number, 0 or more, that distinguishes messages between the two ranks.
        name: the name of the tensor in the error texts of both ranks.
        process_set: the receiver must name the same process set.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: the tensor is on a device that hvdlite cannot reach.
        MismatchError: the receiver asks for another dtype or number of elements.
        HorovodInternalError: the other rank has left or failed, or both ranks wait for each other; the text says which.
    """
    known = RUNTIME.engine
    if known is None or known.message(Kind.SEND, tensor, dst, tag, name, process_set, True) is None:
        _submit(Kind.SEND, tensor, dst, tag, name, process_set, True)


def isend(tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `send` and returns its handle. Do not write to the tensor until the handle is synchronised."""
    return _start(Kind.SEND, tensor, dst, tag, name, process_set)


def recv(
    tensor: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Receives a tensor from one rank, into the argument.

    Args:
        tensor: the tensor to write to, with the dtype and the number of elements of the sender's tensor.
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: the tag of the message; None: any tag.
        name: the name of the tensor in error texts.
        process_set: the process set that the sender names.

    Returns:
        The tensor; if `src` or `tag` is None, a `Received` with the tensor, the sender's rank and the message's tag.

    Raises:
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `send`.
    """
    known = RUNTIME.engine
    if known is not None and known.message(Kind.RECV, tensor, src, tag, name, process_set, True) is not None:
        return tensor
    return _submit(Kind.RECV, tensor, src, tag, name, process_set, True)


def irecv(
    tensor: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `recv` and returns its handle; the tensor holds the message once the handle is synchronised."""
    return _start(Kind.RECV, tensor, src, tag, name, process_set)


def batch(operations: Sequence[P2POp], process_set: ProcessSet = global_process_set) -> Handle:
    """Posts several sends and receives together, either all or none, and returns one handle for them.

    Args:
        operations: the messages, in any order.
        process_set: the process set of all messages.

    Returns:
        A handle that gives a list: None for a send, what `recv` returns for a receive.

    Raises:
        InvalidArgumentError, UnsupportedError: an operation is neither `isend` nor `irecv`, or one of its arguments is wrong,
            as for `send` and `recv`. Then nothing is posted. Later errors of the messages are raised by the handle's
            `synchronize`.
    """
    kinds = [_kind_of(operation[0]) for operation in operations]
    known = RUNTIME.engine
    if known is not None:
        started: Handle | None = known.messages(kinds, operations, process_set)
        if started is not None:
            return started
    engine, set_id = enter(Kind.SEND, process_set)
    described = [
        _describe(engine, kind, tensor, peer, tag, name, set_id)
        for kind, (_, tensor, peer, tag, name) in zip(kinds, operations, strict=True)
    ]
    handle = handle_of([(finish, on_gpu) for _, finish, on_gpu in described])
    engine.submit([request for request, _, _ in described], None, True, handle)
    return handle


def send_object(obj: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Sends any object that pickle (or cloudpickle, where it is installed) can handle; the other rank calls `recv_object`.

    Args:
        obj: the object, of any size.
        dst: the receiver's rank in the whole job.
        tag: a number, 0 or more, that distinguishes messages between the two ranks.
        process_set: the receiver must name the same process set.

    Raises:
        InvalidArgumentError: the object cannot be pickled (the receiver raises it, too), or an argument is wrong.
        HorovodInternalError: as for `send`.
    """
    header, payload, failure = packed(obj)
    batch([P2POp(isend, header, dst, tag), P2POp(isend, payload, dst, tag)], process_set).synchronize()
    if failure is not None:
        raise InvalidArgumentError(f"send_object: {failure}")


def recv_object(src: int | None = None, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Receives an object that another rank sends with `send_object`.

    Args:
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: the tag of the message.
        process_set: the process set that the sender names.

    Returns:
        A copy of the object; if `src` is None, a `Received`.

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


def send_object_list(object_list: Sequence[Any], dst: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Sends a list of objects, as `send_object` sends one object; the other rank calls `recv_object_list`.

    Arguments and errors are those of `send_object`, for each object of the list.
    """
    send_object(list(object_list), dst, tag, process_set)


def recv_object_list(
    object_list: list[Any], src: int | None = None, tag: int = 0, process_set: ProcessSet = global_process_set
) -> int:
    """Receives a list that another rank sends with `send_object_list`, into `object_list`, as torch.distributed does.

    Args:
        object_list: a list of the same length as the sender's; its elements are replaced.
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: the tag of the message.
        process_set: the process set that the sender names.

    Returns:
        The sender's rank.

    Raises:
        InvalidArgumentError: the sender has sent another object than a list, or a list of another length. `object_list` is
            unchanged.
        InvalidArgumentError, HorovodInternalError: as for `recv_object`.
    """
    received = recv_object(src, tag, process_set)
    objects, source = (received.tensor, received.source) if src is None else (received, src)
    if not isinstance(objects, list) or len(objects) != len(object_list):
        sent = f"{len(objects)} objects" if isinstance(objects, list) else f"no list but a {type(objects).__name__}"
        raise InvalidArgumentError(
            f"recv_object_list: rank {source} sent {sent}, but this rank's list has {len(object_list)}; use equal lengths"
        )
    object_list[:] = objects
    return source


class Envelope(NamedTuple):
    """The properties of a message with a gradient: the last arguments of `send` and `recv`."""

    peer: int
    tag: int
    name: str | None
    process_set: ProcessSet

    @property
    def back(self) -> "Envelope":
        """The envelope of the gradient, which goes the other way."""
        return self._replace(name=None if self.name is None else f"{self.name}.grad")

    @classmethod
    def of_receive(cls, src: int | None, tag: int | None, name: str | None, process_set: ProcessSet) -> "Envelope":
        """The envelope for the arguments of a `recv` with a gradient.

        Raises:
            UnsupportedError: `src` or `tag` is None.
        """
        if src is None or tag is None:
            raise UnsupportedError("recv with a gradient needs the sender's rank and a tag: the gradient goes to that rank")
        return cls(src, tag, name, process_set)


# The request, the last step, which makes the result, and, if the tensor is on a GPU, what tells its streams.
_Described = tuple[tuple[Any, ...], Finish, OnGpu]


def _start(kind: int, tensor: Any, peer: int | None, tag: int | None, name: str | None, process_set: ProcessSet) -> Handle:
    """Submits one operation without waiting for it."""
    known = RUNTIME.engine
    if known is not None:
        started: Handle | None = known.message(kind, tensor, peer, tag, name, process_set, False)
        if started is not None:
            return started
    handle: Handle = _submit(kind, tensor, peer, tag, name, process_set, False)
    return handle


def _submit(
    kind: int, tensor: Any, peer: int | None, tag: int | None, name: str | None, process_set: ProcessSet, blocking: bool
) -> Any:
    engine, set_id = enter(kind, process_set)
    return submit_one(engine, *_describe(engine, kind, tensor, peer, tag, name, set_id), blocking)


def _describe(
    engine: "Engine", kind: int, tensor: Any, peer: int | None, tag: int | None, name: str | None, set_id: int
) -> _Described:
    sends = kind == Kind.SEND
    try:
        rank, number = _number("rank", peer, not sends), _number("tag", tag, not sends)
        backend = backend_of(tensor)
        adopted = backend.adopt(tensor) if sends else backend.adopt_writable(tensor)
        source = backend.export(adopted, False, True)
        if source.device == SOME_GPU:
            source = on_its_gpu(engine, source)
    except (InvalidArgumentError, UnsupportedError) as error:
        what = "an unnamed tensor" if name is None else repr(name)
        raise type(error)(f"{KIND_NAMES[kind]} of {what} in process set {set_id}: {error}") from None
    pointer, shape, dtype, device, layout, owner, stream = source
    if name is not None:
        name = tensor_name(kind, name)
    ends = (pointer, 0) if sends else (0, pointer)
    finish: Finish
    if sends:
        finish = partial(_sent, owner)
    else:
        tells = rank == _ANY or number == _ANY
        finish = partial(_received, backend, tensor, adopted, owner, tells)
        if device != CPU and owner is not adopted:
            finish = partial(made_elsewhere, backend, source, owner, finish)
    request = (
        kind, name, dtype, shape, *ends, Sum, rank, set_id, 1.0, 1.0, "", 0, 0, (), device, layout, 0, 0, stream, number
    )  # fmt: skip
    return request, finish, None if device == CPU else (backend, source)


def _kind_of(op: Callable[..., Handle]) -> int:
    if op is isend:
        return Kind.SEND
    if op is irecv:
        return Kind.RECV
    raise InvalidArgumentError(f"P2POp: op={op!r} is neither isend nor irecv of hvdlite")


def _number(argument: str, value: int | None, may_be_any: bool) -> int:
    if type(value) is int and 0 <= value < _NUMBERS:
        return value
    if value is None and may_be_any:
        return _ANY
    if value is None or isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < _NUMBERS:
        raise InvalidArgumentError(
            f"{argument} {value!r} is no number from 0 on" + (", nor None for any" if may_be_any else "")
        )
    return value.__index__()


def _sent(_owner: Any, _result: "Result") -> None:
    """The last step of a send. It does nothing, but its first argument keeps the memory alive."""


def _received(backend: TensorBackend, tensor: Any, adopted: Any, owner: Any, tells: bool, result: "Result") -> Any:
    """The last step of a receive."""
    written(backend, tensor, adopted, None if owner is adopted else owner, result)
    return Received(tensor, result.source, result.tag) if tells else tensor
