"""Compression of gradients before they are reduced, and back afterwards.

An argument `compression` may be any class with the two static methods of `Compressor`; it gets tensors of the caller's
framework.
"""

from typing import Any

from hvdlite.backends.traced import converter_of

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "is_none"]


class Compressor:
    """The interface: hvdlite reduces the result of `compress`, and passes the reduced tensor and compress's context to
    `decompress`.

    Shape and dtype of the result depend only on those of the tensor, and are the same on all ranks:
    `DistributedOptimizer` plans with them, and calls `compress` with zeros to learn them. Elements are added up across
    ranks, so the meaning of a compressed element must not depend on the rank's values either.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The compressed tensor, and the context for `decompress`. The tensor itself is not changed."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in the original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


def _narrow(tensor: Any, dtype_name: str) -> tuple[Any, Any]:
    """A float32 or float64 tensor in a 16-bit type and the name of its own type; any other tensor as it is."""
    converter = converter_of(tensor)
    adopted = converter.adopt(tensor)
    own = converter.dtype_name(adopted)
    if own not in ("float32", "float64"):
        return tensor, None
    return converter.cast(adopted, dtype_name), own


def _widen(tensor: Any, ctx: Any) -> Any:
    """The tensor in the type that `_narrow` found."""
    return tensor if ctx is None else converter_of(tensor).cast(tensor, ctx)


class FP16Compressor(Compressor):
    """Sends float32 and float64 tensors as float16. Sums are still made in float32 and rounded once."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor as float16, and the name of its own type."""
        return _narrow(tensor, "float16")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its own type."""
        return _widen(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 tensors as bfloat16: float32's range, fewer digits. NumPy needs ml_dtypes."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor as bfloat16, and the name of its own type."""
        return _narrow(tensor, "bfloat16")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its own type."""
        return _widen(tensor, ctx)


class Compression:
    """The compressions that come with hvdlite."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def is_none(compression: Any) -> bool:
    """Does this compression argument mean no compression?"""
    return compression is None or compression is NoneCompressor
