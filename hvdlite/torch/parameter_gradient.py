"""The state of one parameter's gradient between backward() and step(), and the memory in which the gradient is reduced."""

import math
from typing import Any

import torch

from hvdlite._engine import GradientState
from hvdlite.backends.torch import without_memory
from hvdlite.compression import BF16Compressor, FP16Compressor, NoneCompressor, codec_of
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.requests import Flag
from hvdlite.torch.gpu import CPU, gpu_of


def is_dense(tensor: torch.Tensor) -> bool:
    """Does a tensor cover a block of memory without holes or overlaps? Only then ``empty_like`` keeps the tensor's strides."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def declared_dtype(param: torch.Tensor) -> torch.dtype | None:
    """The dtype that autograd gives a parameter's gradient; None means any dtype."""
    dtype: torch.dtype | None = getattr(param, "grad_dtype", param.dtype)  # before torch 2.10 there is no choice
    return dtype


# Compressions that the engine does itself on a GPU, and the dtypes for which it does them.
_WIRE_FLAGS: dict[type, int] = {FP16Compressor: Flag.WIRE_FLOAT16, BF16Compressor: Flag.WIRE_BFLOAT16}
_COMPRESSED = (torch.float32, torch.float64)


class WireForm:
    """Converts one parameter's gradient to memory that the engine reduces in place, and back.

    If the methods of a compression convert the gradient, the engine reduces the memory that they have made. A complex gradient
    is reduced as pairs of reals. Any other gradient in host memory or on an NVIDIA GPU is reduced in place if it has the
    strides of its parameter and covers a block of memory without gaps. Otherwise dense memory on the same device is sent,
    usually a copy. Gradients on other devices travel through host memory. Two conversions need no copy, because the engine
    makes them itself: the coding by a codec, and on a GPU the conversion to 16-bit floats and back.

    Attributes:
        codec: the fields of the request that describe the codec (`Codec.fields`); empty without a codec.
        device: the engine's number for the device of the memory that is sent, a GPU or the host.
        flags: the flags of the request.
        memory: torch's object for the device whose number is `device`.
        dtype_in_place: the dtype of gradients that are reduced in place; None if the parameter's gradients never are.
        strides: a gradient is reduced in place only if it has these strides. They are the parameter's strides when this object
            was created, and stay the same if the parameter's memory format changes later, perhaps on some ranks only.
        is_contiguous: does a contiguous tensor have these `strides`?
        dtype: the engine's code of the dtype that is sent.
        shape: the extents of the memory that is sent.
        wire_dtype: torch's dtype of the memory that is sent.
        nbytes: the size of the memory that is sent, in bytes.
    """

    def __init__(self, param: torch.Tensor, dtype: torch.dtype, compression: Any) -> None:
        """Raises InvalidArgumentError if the engine has no type for the dtype that is sent."""
        self._param = param
        self._dtype = dtype
        self.device = gpu_of(param)
        self.memory = torch.device("cpu") if self.device == CPU else param.device
        codec = codec_of(compression)
        self.codec: dict[str, Any] = {} if codec is None else codec.fields
        self.flags = 0
        if self.device != CPU and dtype in _COMPRESSED and isinstance(compression, type):
            self.flags = _WIRE_FLAGS.get(compression, 0)
        by_engine = codec is not None or self.flags
        self._compression: Any = NoneCompressor if by_engine or compression is None else compression
        self.strides, self.is_contiguous = param.stride(), param.is_contiguous()
        plain = self._compression is NoneCompressor and not dtype.is_complex
        stays = self.device != CPU or param.device.type == "cpu"
        in_place = plain and stays and is_dense(param)
        self.dtype_in_place = dtype if in_place else None
        self._pairs = False
        self.wire_dtype, self.shape = dtype, tuple(param.shape)
        if not plain:  # the compression decides what is sent, so ask it
            sample, _ = self._compression.compress(torch.zeros(param.shape, dtype=dtype, device=self.memory))
            self._pairs = sample.is_complex()
            self.wire_dtype, self.shape = sample.dtype, tuple(sample.shape)
            if self._pairs:
                self.wire_dtype, self.shape = sample.real.dtype, (*self.shape, 2)
        self.dtype = int(code_of_name(str(self.wire_dtype).removeprefix("torch."), "gradient"))
        self.nbytes = math.prod(self.shape) * self.wire_dtype.itemsize

    def encode(self, grad: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns dense memory to reduce for a gradient that is not reduced in place, and the context for `decode`.

        The memory is a copy, the gradient itself, what the compression has made, or a view of a complex gradient as pairs of
        reals.

        Raises:
            InvalidArgumentError: the compression gives the gradient another dtype or shape than it gives zeros.
            UnsupportedError: the gradient has no memory.
        """
        if grad.layout is not torch.strided:
            grad = grad.to_dense()
        if type(grad) is torch.Tensor and grad.numel() and not grad.data_ptr():
            raise without_memory()  # torch would read at the address 0
        if self.dtype_in_place is not None:
            return self.blank().copy_(grad), None
        wire, context = self._compression.compress(grad.to(device=self.memory, dtype=self._dtype))
        if self._pairs:
            wire = torch.view_as_real(wire.resolve_conj())
        if wire.dtype is not self.wire_dtype or wire.shape != self.shape:
            raise InvalidArgumentError(
                f"{self._compression!r} made {wire.dtype} {list(wire.shape)} of a gradient {list(grad.shape)}, and "
                f"{self.wire_dtype} {list(self.shape)} of zeros like it: dtype and shape must not depend on the values"
            )
        return wire.resolve_neg().contiguous(), context

    def blank(self) -> torch.Tensor:
        """Memory for a result, with the dtype and shape that are sent, and with undefined content."""
        if self.dtype_in_place is not None and not self.is_contiguous:
            return torch.empty_strided(self.shape, self.strides, dtype=self.wire_dtype, device=self.memory)
        return torch.empty(self.shape, dtype=self.wire_dtype, device=self.memory)

    def decode(self, wire: torch.Tensor, context: Any) -> torch.Tensor:
        """The reduced gradient with the parameter's shape and the gradient's dtype, on the device where it was reduced."""
        if self.dtype_in_place is not None:
            return wire
        if self._pairs:
            wire = torch.view_as_complex(wire)
        reduced: torch.Tensor = self._compression.decompress(wire, context)
        return reduced.to(self._dtype)

    def context_of_blank(self) -> Any:
        """The context with which `decode` converts a result in memory that `blank` has made."""
        if self._compression is NoneCompressor:
            return None
        return self._compression.compress(torch.zeros(self._param.shape, dtype=self._dtype, device=self.memory))[1]


class ParameterGradient(GradientState):
    """One parameter and the state of its gradient.

    If ``param.grad`` is not None, it is one of four things: zeros that a reset has left; a gradient that backward has made on
    this rank and that was not sent yet (it is dirty); a gradient that was sent, but is not reduced yet; or a finished gradient
    (reduced, or written by the user). Before backward adds to a finished gradient, the finished gradient becomes the reduced
    part, so that only the increment is reduced. After this reduction the increment and the reduced part are added up.

    Attributes:
        bucket: the number of the gradient's bucket in the plan; -1 without a bucket.
        dirty: does ``param.grad`` hold a gradient of this rank that was not sent yet?
        filled: was ``param.grad`` reduced since the last reset? A reduction of a gradient that the user has written does not
            count, because ``step()`` reduces such a gradient again.
        reduced_part: the finished gradient, from the time when backward begins to add an increment until the increment is
            reduced; otherwise None.
        stamp: the number of the last backward pass that added to this gradient.
        sparse_dim: the number of sparse dimensions of the gradient, if it is sparse on any rank; otherwise None.
        place: the gradient's `hvdlite.torch.arena.ArenaPlace`; None if it has none.
        fresh: is ``param.grad`` a tensor that autograd has made (or is about to make), and that was not moved to its place yet?
        coding: what a compression with state (`hvdlite.compression.BucketCodec`) stores for this gradient.
        dtype: the dtype in which all ranks reduce the gradient; before the reducer's first plan (list of buckets) only a guess.
        implementation: the address of torch's C++ object behind the parameter at the time when the hooks were installed.

    This class holds the attributes name, coding, dtype and implementation. The native base class `GradientState` holds all
    other attributes, because native hooks use them. The base class also has these methods:

    - `forget`: notes that the user has reset the gradient. At the call ``param.grad`` must be None or all zeros. If the
      gradient was dirty and the reset has left zeros, these zeros are dirty, and are reduced. So ranks without a gradient get
      zeros, too, and ``param.grad`` is the same on all ranks.
    - `is_zero`: is ``param.grad`` unchanged since the last reset, and so None or all zeros? False if the reset has left dirty
      zeros, because the engine can write to them.
    - `move_in`: moves a fresh gradient to its place, once.
    - `claim`: marks ``param.grad`` as dirty, even if the user has written it.
    """

    __slots__ = ("coding", "dtype", "implementation", "name")
    param: torch.Tensor
    reduced_part: torch.Tensor | None

    def __init__(self, name: str, param: torch.Tensor) -> None:
        super().__init__()
        self.name = name
        self.coding: dict[str, Any] = {}
        self.param = param
        self.implementation = param._cdata
        self.dtype = declared_dtype(param) or param.dtype

    def require_dtype(self, grad: torch.Tensor) -> None:
        """Refuses a gradient that would lose digits in the plan's dtype.

        Raises:
            InvalidArgumentError: torch does not promote the gradient's dtype to the plan's dtype.

        """
        if grad.dtype is not self.dtype and torch.promote_types(grad.dtype, self.dtype) is not self.dtype:
            raise InvalidArgumentError(
                f"the gradient of parameter {self.name!r} is {grad.dtype} now, and is reduced as {self.dtype}, the dtype that "
                "it had at first: choose grad_dtype and the model's dtype before the first backward(), on all ranks alike"
            )

    def hold_reduced(self, grad: torch.Tensor) -> None:
        """Keeps `grad`, the finished ``param.grad``, as the reduced part, because backward is about to add an increment.

        Raises:
            UnsupportedError: there is a reduced part already.
        """
        if self.reduced_part is not None:
            raise UnsupportedError(
                f"backward adds to the gradient of parameter {self.name!r} while two earlier parts of it are not added up: "
                "the parameter is used inside and outside of a reentrant checkpoint. Use no_sync() for all backward passes "
                "of a step but the last, or torch.utils.checkpoint with use_reentrant=False"
            )
        self.reduced_part = grad
        self.param.grad = None

    def merge(self) -> None:
        """Adds ``param.grad`` to the reduced part. Called without gradient recording.

        Python runs no signal handler between the changes that this method makes. So after Ctrl-C either all changes are made or
        none, and the method can be called again.
        """
        reduced_part, grad = self.reduced_part, self.param.grad
        if reduced_part is None:
            return
        if grad is None or grad is reduced_part:
            self.param.grad, self.reduced_part = reduced_part, None
        elif reduced_part.layout is grad.layout is torch.strided:
            self.param.grad, self.reduced_part = reduced_part, None
            reduced_part.add_(grad)
        else:
            # torch computes dense + sparse, but not sparse + dense.
            total = grad + reduced_part if grad.layout is torch.strided else reduced_part + grad
            self.param.grad, self.reduced_part = total, None

    def replace(self, grad: torch.Tensor, value: torch.Tensor) -> None:
        """Replaces `grad` (``param.grad`` or the reduced part) by `value`: in place if both are dense and of one dtype."""
        if grad.layout is value.layout is torch.strided and grad.dtype is value.dtype:
            if value.data_ptr() != grad.data_ptr():
                grad.copy_(value)
        elif self.reduced_part is grad:
            self.reduced_part = value.to(self.param.device)
        else:
            self.param.grad = value.to(self.param.device)

    def store(self, grad: torch.Tensor | None, value: torch.Tensor, strict: bool) -> torch.Tensor | None:
        """Stores a reduced gradient. Returns what `hvdlite.torch.in_flight.Bucket.store` returns.

        Args:
            grad: the tensor that was ``param.grad`` at the launch; None if this rank had no gradient.
            value: the reduced gradient, of the parameter's shape, on the parameter's device or in host memory. If `grad` is
                None, pass memory that no other code uses.
            strict: as for `hvdlite.torch.in_flight.InFlightBucket.store`.

        Raises:
            InvalidArgumentError: `strict` is True, and `grad` was replaced: it is neither ``param.grad`` nor the reduced part.
        """
        self.filled = True
        if grad is None:
            self.merge()
            return value.to(self.param.device)
        if self.param.grad is grad or self.reduced_part is grad:
            self.replace(grad, value)
            if self.reduced_part is not None and not self.dirty:
                self.merge()
        elif strict:
            raise InvalidArgumentError(
                f"the gradient of parameter {self.name!r} was replaced while it was being reduced: something that runs inside "
                "backward() assigned to .grad. Do that after backward() has returned"
            )
        return None


def store_dense(
    gradient: ParameterGradient, grad: torch.Tensor | None, form: WireForm, wire: torch.Tensor, context: Any, strict: bool
) -> torch.Tensor | None:
    """Stores a gradient that was reduced as a dense one. Returns and raises what `ParameterGradient.store` does.

    Args:
        gradient: the state of the parameter's gradient.
        grad: as for `ParameterGradient.store`.
        form: the gradient's form on the wire.
        wire: the reduced memory.
        context: the context for `WireForm.decode`.
        strict: as for `ParameterGradient.store`.
    """
    value = form.decode(wire, form.context_of_blank() if grad is None else context)
    return gradient.store(grad, value if gradient.sparse_dim is None else value.to_sparse(gradient.sparse_dim), strict)
