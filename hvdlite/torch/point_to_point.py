"""`hvdlite.send` and `hvdlite.recv` with gradients: the adjoint of a send is a receive, and the other way round.

`hvdlite.torch` takes all other functions (``isend``, ``irecv``, ``batch``) from `hvdlite.point_to_point`, without gradients.
"""

from typing import Any

import torch

from hvdlite import point_to_point
from hvdlite.point_to_point import Envelope
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.torch.derivatives import needs_grad, only_once, require_values

__all__ = ["recv", "send"]

_ONCE = "a message between two ranks can be differentiated once only; use a collective, such as alltoall, in its place"


class _SendFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, message: Envelope, tensor: torch.Tensor) -> torch.Tensor:
        ctx.message = message
        ctx.like, ctx.device = torch.empty_like(tensor, device="meta"), tensor.device
        point_to_point.send(tensor, *message)
        return tensor.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        message: Envelope = ctx.message
        grad = torch.empty_like(ctx.like, device=ctx.device)
        point_to_point.recv(grad, *message.back)
        return (None, *only_once([grad], _ONCE))


class _RecvFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, message: Envelope, tensor: torch.Tensor) -> torch.Tensor:
        ctx.message = message
        output = torch.empty_like(tensor)
        point_to_point.recv(output, *message)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        message: Envelope = ctx.message
        point_to_point.send(grads[0], *message.back)
        return (None, None)


def send(
    tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor | None:
    """`hvdlite.send` with a gradient: if the tensor requires a gradient, the receiver sends the gradient back.

    Args and raises are those of `hvdlite.send`. If the tensor requires a gradient, the receiver must call `recv` with a tensor
    that requires one, too. Inside of ``torch.no_grad()`` this function does the same as `hvdlite.send`. In this case the
    receiver must call `recv` inside of ``torch.no_grad()``, too, or with a tensor that requires no gradient.

    Returns:
        None if the tensor requires no gradient. Otherwise a zero, a tensor without dimensions: call ``backward()`` on it, or
        add it to a training loss. The backward of this zero waits for the gradient from the receiver.
    """
    if not needs_grad(tensor):
        point_to_point.send(tensor, dst, tag, name, process_set)
        return None
    require_values(tensor)
    zero: torch.Tensor = _SendFunction.apply(Envelope(dst, tag, name, process_set), tensor)  # type: ignore[no-untyped-call]
    return zero


def recv(
    tensor: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvdlite.recv` with a gradient: if the tensor requires a gradient, the gradient goes back to the sender.

    Args are those of `hvdlite.recv`. If the tensor requires a gradient, the sender's tensor must require one, too, because the
    backward sends a message to the sender. Inside of ``torch.no_grad()`` this function does the same as `hvdlite.recv`. In this
    case the sender must call `send` inside of ``torch.no_grad()``, too, or with a tensor that requires no gradient.

    Returns:
        If the tensor requires a gradient, a new tensor with the message; the argument stays unchanged. Otherwise what
        `hvdlite.recv` returns.

    Raises:
        UnsupportedError: the tensor requires a gradient, and `src` or `tag` is None.
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `hvdlite.recv`.
    """
    if not needs_grad(tensor):
        return point_to_point.recv(tensor, src, tag, name, process_set)
    message = Envelope.of_receive(src, tag, name, process_set)
    require_values(tensor)
    return _RecvFunction.apply(message, tensor)  # type: ignore[no-untyped-call]
