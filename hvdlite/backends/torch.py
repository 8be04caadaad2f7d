"""torch's CPU tensors. Imported only when the user has imported torch; it never imports torch itself."""

import sys
from collections.abc import Sequence
from typing import Any

from hvdlite.backends.base import (
    CHANNELS_LAST,
    CHANNELS_LAST_3D,
    CPU,
    RECYCLED_FROM,
    ROW_MAJOR,
    Exported,
    NewMemory,
)
from hvdlite.dtypes import DType, code_of_name
from hvdlite.errors import InvalidArgumentError, UnsupportedError

__all__ = ["TorchBackend", "make_backend"]


class TorchBackend:
    """Answers for torch tensors. Contiguous ones are used as they are (channels_last too, where the operation does not
    care about the order of elements), others through a copy. Autograd is not this layer's: results need no gradient.
    """

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._strided = torch.strided
        self._tensor = torch.Tensor
        names = (dtype.label for dtype in DType)
        self._dtypes = {name: getattr(torch, name) for name in names if hasattr(torch, name)}
        self._codes = {dtype: int(code_of_name(name)) for name, dtype in self._dtypes.items()}
        self._increment_version = getattr(torch.autograd.graph, "increment_version", None)

    def adopt(self, value: Any) -> Any:
        """The tensor without its gradient history, sharing its memory."""
        if value.layout is not self._strided:
            raise UnsupportedError(
                f"a torch tensor of layout {value.layout} cannot be sent as it is; pass .to_dense() of it, or its "
                "indices and values"
            )
        if not value.is_cpu:
            raise UnsupportedError(
                f"this torch tensor is on {value.device}, which hvdlite cannot send yet (GPU tensors come with a later "
                "version); pass .cpu() of it, which hvdlite does not do silently"
            )
        return value if type(value) is self._tensor and not value.requires_grad else value.detach()

    def adopt_writable(self, value: Any) -> Any:
        """As `adopt`; a tensor whose elements share memory (``expand``) has no room for a result."""
        adopted = self.adopt(value)
        if not adopted.is_contiguous() and any(
            step == 0 and extent > 1 for step, extent in zip(adopted.stride(), adopted.shape, strict=True)
        ):
            raise InvalidArgumentError(
                f"an in-place operation cannot write to an expanded torch tensor (shape {list(adopted.shape)}, strides "
                f"{list(adopted.stride())}: several elements are one); pass .clone() of it or use the function without the "
                "trailing underscore"
            )
        return adopted

    def export(self, tensor: Any, any_layout: bool) -> Exported:
        """Describes the tensor's memory; a tensor that is not dense is copied."""
        code = self._codes.get(tensor.dtype)
        if code is None:
            code = int(code_of_name(str(tensor.dtype).removeprefix("torch."), "torch tensor"))
        layout = ROW_MAJOR if tensor.is_contiguous() else self._layout(tensor, any_layout)
        if layout is None or tensor.is_neg() or tensor.is_conj():
            layout = ROW_MAJOR
            tensor = tensor.resolve_conj().resolve_neg().clone(memory_format=self._torch.contiguous_format)
        return Exported(tensor.data_ptr(), tensor.shape, code, CPU, layout, tensor)

    def _layout(self, tensor: Any, any_layout: bool) -> int | None:
        """Of a tensor that is not contiguous; None if it has none of those the engine knows."""
        torch = self._torch
        if any_layout:
            if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
                return CHANNELS_LAST
            if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
                return CHANNELS_LAST_3D
        return None

    def empty_like(self, owner: Any, new_memory: NewMemory) -> tuple[Any, int]:
        """A new tensor with the owner's memory format."""
        torch = self._torch
        if owner.nbytes >= RECYCLED_FROM and type(owner) is torch.Tensor:
            storage = torch.frombuffer(new_memory(owner.nbytes), dtype=owner.dtype).untyped_storage()
            # No view of a flat tensor: autograd treats views differently.
            out = torch.empty(0, dtype=owner.dtype, device="cpu").set_(storage, 0, owner.shape, owner.stride())
        else:
            out = torch.empty_like(owner)
        return out, out.data_ptr()

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor over the engine's bytes."""
        if 0 in shape:
            return self._torch.empty(tuple(shape), dtype=like.dtype)
        return self._torch.frombuffer(data, dtype=like.dtype).reshape(tuple(shape))

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Copies all elements, outside autograd."""
        with self._torch.no_grad():
            tensor.copy_(dense)

    def mark_written(self, tensor: Any) -> None:
        """Counts the write, so that autograd notices if it had saved the old values."""
        if self._increment_version is not None and not tensor.is_inference():
            self._increment_version(tensor)

    def integers(self, values: Sequence[int]) -> Any:
        """An int32 tensor."""
        return self._torch.tensor(list(values), dtype=self._torch.int32)

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name without torch in front."""
        return str(tensor.dtype).removeprefix("torch.")

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """A converted copy."""
        return tensor.to(self._dtypes[dtype_name])


def make_backend() -> TorchBackend:
    """The backend over the torch that the user has imported.

    Raises:
        InvalidArgumentError: nobody has imported torch.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgumentError("torch has not been imported")
    return TorchBackend(torch)
