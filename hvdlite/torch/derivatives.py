"""Raises an error where the derivative of a collective would otherwise be silently wrong."""

from collections.abc import Sequence
from typing import Any

import torch

from hvdlite.backends import backend_of
from hvdlite.backends.torch import without_memory
from hvdlite.errors import UnsupportedError


def needs_grad(*tensors: Any) -> bool:
    """Does autograd record an operation on these objects? Objects that are not tensors do not count."""
    for tensor in tensors:  # faster than any()
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            return torch.is_grad_enabled()
    return False


def require_values(*tensors: torch.Tensor) -> None:
    """Refuses tensors whose values cannot be sent. Call it before a collective begins.

    Raises:
        UnsupportedError: a tensor has a tangent of autograd's forward mode; a transformation of ``torch.func`` (such as vmap or
            grad) is running; or hvdlite cannot send tensors of this layout or from this device.

    """
    if torch._C._are_functorch_transforms_active():
        raise without_memory()
    for tensor in tensors:
        backend_of(tensor).adopt(tensor)


class _RefuseDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, text: str, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.text = text
        return tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(ctx.text)


def only_once(gradients: Sequence[torch.Tensor | None], text: str) -> tuple[torch.Tensor | None, ...]:
    """Returns gradients that raise an error if they are differentiated again. Call it last in the backward of a function.

    Args:
        gradients: the results of that backward. Autograd's record of how they were computed is dropped.
        text: the text of the UnsupportedError.

    Returns:
        Tensors with the same values and memory, or `gradients` themselves if autograd records nothing now.

    """
    if not torch.is_grad_enabled():
        return tuple(gradients)
    sources = [None if gradient is None else gradient.detach().requires_grad_() for gradient in gradients]
    refused: tuple[torch.Tensor | None, ...] = _RefuseDerivative.apply(text, *sources)  # type: ignore[no-untyped-call]
    return refused
