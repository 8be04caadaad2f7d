"""The backend for torch tensors on CPUs and NVIDIA GPUs. It is imported only after torch, and never imports torch itself.

Why memory of a GPU is safe. When a tensor is freed, torch's caching allocator gives its block to the next tensor of the stream
in which the block was first allocated, and does not wait for the GPU. So all uses of the block must be ordered before the next
work of that stream. There are three cases:

- Outputs and private copies are made in the stream of the submission. An operation keeps its tensors until it is synchronized
  (or the runtime drops it). By then the stream of the submission is ordered after the engine's work, so the tensors may be
  freed.
- A tensor of the user may have been made in another stream. To use it in the stream of the submission the user needs
  ``record_stream``, as for any code of torch. The user's ``record_stream`` also covers the engine, because the stream of the
  submission is ordered after the engine's work.
- A program may synchronize in another stream than that of the submission, and use outputs and copies there. hvdlite then calls
  ``record_stream`` for them (`use_in_current_stream`).
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
    TensorBackend,
    require_own_elements,
)
from hvdlite.backends.graphs import keep_out_of_graphs
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, elements_of
from hvdlite.errors import UnsupportedError


class TorchBackend(TensorBackend):
    """The backend for torch tensors.

    Contiguous tensors are used without a copy, and others are copied. (A channels_last tensor is not copied if the operation
    does not depend on the order of elements.) This class does not use autograd, because its results need no gradient.
    """

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._strided = torch.strided
        self._tensor = torch.Tensor
        names = (dtype.label for dtype in DType)
        self._dtypes = {name: getattr(torch, name) for name in names if hasattr(torch, name)}
        self._codes = {dtype: int(code_of_name(name)) for name, dtype in self._dtypes.items()}
        # The raw handle of the current stream on a GPU; 0 is the legacy default stream. CUDA builds have a faster function.
        self.stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", self._public_stream_of)
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        # No complex dtypes: a tensor may be the conjugate of its memory, and DLPack does not say so.
        codes = dlpack_codes(dtype for dtype in DType if not dtype.is_complex)
        self._exchange = None if capsule is None else (capsule, codes)
        self._increment_version = getattr(torch.autograd.graph, "increment_version", None)
        self._forward_ad = torch.autograd.forward_ad
        self._mode = (vars(self._forward_ad), "_current_level", -1)

    def adopt(self, value: Any) -> Any:
        """The tensor without its gradient history, with the same memory."""
        if self._forward_ad._current_level >= 0 and self._forward_ad.unpack_dual(value).tangent is not None:
            raise UnsupportedError(
                "a dual tensor of torch.autograd.forward_ad cannot be sent: collectives have no forward-mode derivative, and "
                "its tangent would be lost. Send primal and tangent (unpack_dual), or use reverse mode"
            )
        if value.layout is not self._strided:
            raise UnsupportedError(
                f"a torch tensor of layout {value.layout} cannot be sent as it is; pass its .to_dense(), or its "
                "indices and values"
            )
        if not (value.is_cpu or self._is_on_nvidia(value)):
            raise UnsupportedError(
                f"this torch tensor is on {value.device}, and hvdlite sends tensors in host memory and on NVIDIA GPUs only; "
                "pass its .cpu(), because hvdlite does not do so silently"
            )
        return value if type(value) is self._tensor and not value.requires_grad else value.detach()

    def adopt_writable(self, value: Any) -> Any:
        """As `adopt`, but refuses a tensor whose elements share memory (``expand``)."""
        adopted = self.adopt(value)
        if not adopted.is_contiguous():
            require_own_elements("an expanded torch tensor", adopted.shape, adopted.stride(), "clone")
        return adopted

    def export(self, tensor: Any, any_layout: bool, any_dtype: bool = False) -> Exported:
        """Describes the tensor's memory. It copies a tensor that is not dense. It refuses a quantized one."""
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
        return Exported(pointer, tensor.shape, code, device, layout, tensor, self.stream_of(device))

    def plain(self, kind: type) -> Plain | None:
        """The description of ``torch.Tensor`` (not of subclasses), if torch has the exchange API of DLPack (from 2.10 on).

        The memory of a tensor differs from its value only in a negative view, which ``is_neg`` reports. (Conjugated tensors are
        complex, and `__init__` leaves complex dtypes out.) ``increment_version`` of these versions accepts inference tensors.
        """
        if kind is not self._tensor or self._exchange is None:
            return None
        capsule, codes = self._exchange
        written = self._increment_version
        return Plain(None, self.empty_like, self.wrap, RECYCLED_FROM, written, "is_neg", None, capsule, codes, self._mode)

    def _is_on_nvidia(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda) and self._torch.version.hip is None

    def _public_stream_of(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def _layout(self, tensor: Any, any_layout: bool) -> int | None:
        """The layout of a tensor that is not contiguous; None if the engine does not know it."""
        torch = self._torch
        if any_layout:
            if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
                return CHANNELS_LAST
            if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
                return CHANNELS_LAST_3D
        return None

    def empty_like(self, owner: Any, new_memory: NewMemory) -> tuple[Any, int]:
        """A new tensor with the owner's memory format. On a GPU torch's caching allocator allocates it."""
        torch = self._torch
        if owner.nbytes >= RECYCLED_FROM and type(owner) is torch.Tensor and owner.is_cpu:
            storage = torch.frombuffer(new_memory(owner.nbytes), dtype=owner.dtype).untyped_storage()
            # `out` is no view of a flat tensor, because autograd treats views differently.
            out = torch.empty(0, dtype=owner.dtype, device="cpu").set_(storage, 0, owner.shape, owner.stride())
        else:
            out = torch.empty_like(owner)
        return out, out.data_ptr()

    def wrap(self, data: memoryview, shape: Sequence[int], like: Any) -> Any:
        """A tensor over memory of the engine."""
        if 0 in shape:
            return self._torch.empty(tuple(shape), dtype=like.dtype, device="cpu")
        return self._torch.frombuffer(data, dtype=like.dtype).reshape(tuple(shape))

    def empty_on_gpu(self, shape: Sequence[int], like: Any, new_memory: NewGpuMemory) -> tuple[Any, int]:
        """A new tensor that torch allocates in the current stream."""
        out = self._torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        return out, out.data_ptr()

    def stream_now(self, exported: Exported) -> int:
        """The current stream on the tensor's GPU."""
        return self.stream_of(exported.device)

    def use_in_current_stream(self, tensor: Any) -> None:
        """Tells torch to reuse the tensor's memory only after the work that is now in the current stream."""
        tensor.record_stream(self._torch.cuda.current_stream(tensor.device))

    def copy_back(self, dense: Any, tensor: Any) -> None:
        """Copies all elements without autograd. An inference tensor can be written only in inference mode."""
        with self._torch.inference_mode() if tensor.is_inference() else self._torch.no_grad():
            tensor.copy_(dense)

    def mark_written(self, tensor: Any) -> None:
        """Increments the tensor's version, so that autograd detects a write to values that it has saved."""
        if self._increment_version is not None and not tensor.is_inference():
            self._increment_version(tensor)

    def integers(self, values: Sequence[int]) -> Any:
        """An int32 tensor in host memory, because programs read the numbers of rows there."""
        return self._torch.tensor(list(values), dtype=self._torch.int32, device="cpu")

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name without ``torch.``, such as ``"float32"``."""
        return str(tensor.dtype).removeprefix("torch.")

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """A converted copy."""
        return tensor.to(self._dtypes[dtype_name])


def without_memory() -> UnsupportedError:
    """The error for a tensor without memory: one inside of a ``torch.func`` transformation, or one whose storage was freed."""
    return UnsupportedError(
        "this torch tensor has no memory of its own, as inside of torch.func.vmap, jvp, grad and similar functions (also "
        "vectorized jacobians and batched gradients), or because its storage was freed: a collective sends memory. Call it "
        "outside of the transformed function, or use torch.autograd"
    )


BACKEND = TorchBackend(sys.modules["torch"])
keep_out_of_graphs()
