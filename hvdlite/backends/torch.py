"""torch's tensors on CPUs and NVIDIA GPUs. Imported only when the user has imported torch; it never imports torch itself.

Why a GPU's memory is safe. torch's caching allocator gives a freed block to the next tensor of the stream for which the block
was first allocated, without waiting for the GPU: all users must be ordered before that stream's next work. An
operation keeps its tensors until it was synchronised (or the runtime drops it). Then the stream of the submission comes
after the engine's work, so freeing is safe in its order, which is the stream that outputs and private copies were made in. A
tensor of the user's that was made in a third stream is as in any code of torch's: using it in the stream of the submission
took a ``record_stream``, and that covers the engine too, whose work that stream comes after. There is one more case: who
synchronises in another stream than the submission's uses outputs and copies there, so these get their ``record_stream`` from
us (`use_in_current_stream`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from hvdlite.backends.base import (
    CHANNELS_LAST,
    CHANNELS_LAST_3D,
    CPU,
    RECYCLED_FROM,
    ROW_MAJOR,
    Exported,
    NewGpuMemory,
    NewMemory,
    Plain,
    require_own_elements,
)
from hvdlite.backends.graphs import keep_out_of_graphs
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, elements_of
from hvdlite.errors import InvalidArgumentError, UnsupportedError

__all__ = ["TorchBackend", "make_backend", "without_memory"]


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
        self._stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", self._public_stream_of)
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        # Complex numbers may be the conjugates of those in memory, and DLPack does not say so.
        codes = dlpack_codes(dtype for dtype in DType if not dtype.is_complex)
        self._exchange = None if capsule is None else (capsule, codes)
        self._increment_version = getattr(torch.autograd.graph, "increment_version", None)
        self._forward_ad = torch.autograd.forward_ad
        self._mode = (vars(self._forward_ad), "_current_level", -1)

    def adopt(self, value: Any) -> Any:
        """The tensor without its gradient history, sharing its memory."""
        if self._forward_ad._current_level >= 0 and self._forward_ad.unpack_dual(value).tangent is not None:
            raise UnsupportedError(
                "a dual tensor of torch.autograd.forward_ad cannot be sent: collectives have no forward-mode derivative, and "
                "its tangent would be lost. Send primal and tangent (unpack_dual), or use reverse mode"
            )
        if value.layout is not self._strided:
            raise UnsupportedError(
                f"a torch tensor of layout {value.layout} cannot be sent as it is; pass .to_dense() of it, or its "
                "indices and values"
            )
        if not (value.is_cpu or self._is_on_nvidia(value)):
            raise UnsupportedError(
                f"this torch tensor is on {value.device}, and hvdlite sends tensors in host memory and on NVIDIA GPUs only; "
                "pass .cpu() of it, which hvdlite does not do silently"
            )
        return value if type(value) is self._tensor and not value.requires_grad else value.detach()

    def adopt_writable(self, value: Any) -> Any:
        """As `adopt`; a tensor whose elements share memory (``expand``) has no room for a result."""
        adopted = self.adopt(value)
        if not adopted.is_contiguous():
            require_own_elements("an expanded torch tensor", adopted.shape, adopted.stride(), "clone")
        return adopted

    def export(self, tensor: Any, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the tensor's memory; a tensor that is not dense is copied. Of a quantized one the scale would be lost."""
        code, row_major = self._codes.get(tensor.dtype), ROW_MAJOR
        if code is None:
            any_layout, any_dtype = False, any_dtype and not tensor.is_quantized
            code, row_major = elements_of(self.dtype_name(tensor), tensor.dtype.itemsize, any_dtype, "torch tensor")
        layout = row_major if tensor.is_contiguous() else self._layout(tensor, any_layout)
        if layout is None or tensor.is_neg() or tensor.is_conj():
            layout = row_major
            tensor = tensor.resolve_conj().resolve_neg().clone(memory_format=self._torch.contiguous_format)
        try:
            pointer = tensor.data_ptr()
        except RuntimeError as error:
            raise without_memory() from error
        if not pointer and tensor.numel():
            raise without_memory()
        if tensor.is_cpu:
            return Exported(pointer, tensor.shape, code, CPU, layout, tensor)
        device = tensor.device.index
        return Exported(pointer, tensor.shape, code, device, layout, tensor, self._stream_of(device))

    def plain(self, kind: type) -> Plain | None:
        """Tensors, not those of a subclass, where torch tells native code of their memory (from 2.10 on).

        Only in a negative view is the memory not the value; for complex numbers, which may be conjugated, see ``_exchange``. A
        torch that has it passes over inference tensors by itself where writes are counted.
        """
        if kind is not self._tensor or self._exchange is None:
            return None
        capsule, codes = self._exchange
        written = self._increment_version
        return Plain(None, self.empty_like, RECYCLED_FROM, written, "is_neg", None, capsule, codes, self._mode)

    def _is_on_nvidia(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda) and self._torch.version.hip is None

    def _public_stream_of(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

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
        """A new tensor with the owner's memory format; on a GPU in memory of torch's, which recycles it well."""
        torch = self._torch
        if owner.nbytes >= RECYCLED_FROM and type(owner) is torch.Tensor and owner.is_cpu:
            storage = torch.frombuffer(new_memory(owner.nbytes), dtype=owner.dtype).untyped_storage()
            # No view of a flat tensor: autograd treats views differently.
            out = torch.empty(0, dtype=owner.dtype, device="cpu").set_(storage, 0, owner.shape, owner.stride())
        else:
            out = torch.empty_like(owner)
        return out, out.data_ptr()

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor over the engine's bytes."""
        if 0 in shape:
            return self._torch.empty(tuple(shape), dtype=like.dtype, device="cpu")
        return self._torch.frombuffer(data, dtype=like.dtype).reshape(tuple(shape))

    def empty_on_gpu(self, shape: Sequence[int], like: Any, new_memory: NewGpuMemory) -> tuple[Any, int]:
        """A new tensor in memory of torch's, for the current stream."""
        out = self._torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        return out, out.data_ptr()

    def stream_now(self, exported: Exported) -> int:
        """The current stream on the tensor's GPU."""
        return self._stream_of(exported.device)

    def use_in_current_stream(self, tensor: Any) -> None:
        """Tells torch not to reuse the tensor's memory before the present work of the current stream is done."""
        tensor.record_stream(self._torch.cuda.current_stream(tensor.device))

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Copies all elements, outside autograd; tensors of inference mode can be written to in that only."""
        with self._torch.inference_mode() if tensor.is_inference() else self._torch.no_grad():
            tensor.copy_(dense)

    def mark_written(self, tensor: Any) -> None:
        """Counts the write, so that autograd notices if it had saved the old values."""
        if self._increment_version is not None and not tensor.is_inference():
            self._increment_version(tensor)

    def integers(self, values: Sequence[int]) -> Any:
        """An int32 tensor in host memory, where programs read the numbers of rows."""
        return self._torch.tensor(list(values), dtype=self._torch.int32, device="cpu")

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name without torch in front."""
        return str(tensor.dtype).removeprefix("torch.")

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """A converted copy."""
        return tensor.to(self._dtypes[dtype_name])


def without_memory() -> UnsupportedError:
    """The error for what ``torch.func`` makes of tensors."""
    return UnsupportedError(
        "this torch tensor has no memory of its own, as inside of torch.func.vmap, jvp, grad and their kin (also vectorized "
        "jacobians and batched gradients): a collective sends memory. Call it outside of the transformed function, or use "
        "torch.autograd"
    )


def make_backend() -> TorchBackend:
    """The backend over the torch that the user has imported.

    Raises:
        InvalidArgumentError: torch is not imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgumentError("torch has not been imported")
    return TorchBackend(torch)


keep_out_of_graphs()
