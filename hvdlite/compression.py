"""Compression of gradients: before they are reduced and back afterwards, or on their way between ranks.

An argument `compression` is one of two things: a class with the two static methods of `Compressor`, which gets tensors of the
caller's framework; or a `Codec`, with which the engine itself codes what ranks send each other.
"""

from dataclasses import dataclass
from typing import Any

from hvdlite.backends.traced import converter_of
from hvdlite.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "BF16Compressor",
    "Codec",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "check_compression",
    "codec_of",
    "describe_compression",
    "is_none",
    "refuse_codec",
    "split",
]

# The numbers of csrc/base/codec.h.
_KINDS = {"int8": 1, "int4": 2, "fp8": 3}
_BETWEEN = {"hosts": 0, "ranks": 1}
_BLOCK_STEP, _LARGEST_BLOCK = 64, 4096


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


@dataclass(frozen=True)
class Codec:
    """How the engine codes the elements of an allreduce on their way: few bits for each, and one float32 scale for each block.

    Sums are made in float32: each contribution is coded once, their sum is coded once more, for any number of ranks. All ranks
    get the same bits. It works for Sum and Average of float32, float16 and bfloat16 in host memory; others are refused by name.
    `Compression.int8`, `int4` and `fp8` make codecs.

    Attributes:
        kind: ``"int8"``, ``"int4"`` or ``"fp8"``.
        block: elements that share a scale: a multiple of 64, up to 4096. Blocks end with tensors.
        between: ``"hosts"``: ranks of one host add up in full precision, and only what hosts send each other is coded.
            ``"ranks"``: what any two ranks send each other is coded.

    Raises:
        InvalidArgumentError: an attribute has another value.
    """

    kind: str
    block: int = 256
    between: str = "hosts"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidArgumentError(f"kind={self.kind!r} is no codec: pass one of {', '.join(_KINDS)}")
        block = self.block
        if isinstance(block, bool) or not isinstance(block, int) or not 0 < block <= _LARGEST_BLOCK or block % _BLOCK_STEP:
            raise InvalidArgumentError(
                f"block={block!r}: a block has a multiple of {_BLOCK_STEP} elements, up to {_LARGEST_BLOCK}"
            )
        if self.between not in _BETWEEN:
            raise InvalidArgumentError(f'between={self.between!r}: pass "hosts" or "ranks"')

    @property
    def fields(self) -> dict[str, int]:
        """The fields of a `hvdlite.requests.Request` for it, by name and in their order there."""
        return {"codec": _KINDS[self.kind], "codec_between": _BETWEEN[self.between], "codec_block": self.block}


class Compression:
    """The compressions that come with hvdlite.

    Arguments of `int8`, `int4` and `fp8` are those of `Codec`.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    @staticmethod
    def int8(block: int = 256, between: str = "hosts") -> Codec:
        """Codes elements as integers of 8 bits: a quarter of float32's bytes, errors up to 1/254 of a block's largest value."""
        return Codec("int8", block, between)

    @staticmethod
    def int4(block: int = 256, between: str = "hosts") -> Codec:
        """Codes elements as integers of 4 bits: an eighth of float32's bytes, errors up to 1/14 of a block's largest value."""
        return Codec("int4", block, between)

    @staticmethod
    def fp8(block: int = 256, between: str = "hosts") -> Codec:
        """Codes elements as floats of 8 bits (E4M3): as many bytes as `int8`, errors up to 1/16 of each element."""
        return Codec("fp8", block, between)


def is_none(compression: Any) -> bool:
    """Does this compression argument mean no compression?"""
    return compression is None or compression is NoneCompressor


def check_compression(compression: Any) -> None:
    """Raises InvalidArgumentError unless it is None, is a codec or has the methods of `Compressor`."""
    if is_none(compression) or codec_of(compression) is not None:
        return
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression must have the methods compress and decompress or be a codec such as hvdlite.Compression.int8() (with "
            f"its parentheses), got {compression!r}"
        )


def split(compression: Any) -> "tuple[Any, dict[str, int]]":
    """The two sides of a compression argument: the class whose methods a door calls, and the request's fields of a codec.

    Raises:
        InvalidArgumentError: it is neither.
    """
    check_compression(compression)
    if isinstance(compression, Codec):
        return NoneCompressor, compression.fields
    return (NoneCompressor if compression is None else compression), {}


def codec_of(compression: Any) -> Codec | None:
    """The codec that this compression argument is; None if it is a class with the methods of `Compressor`, or none."""
    return compression if isinstance(compression, Codec) else None


def describe_compression(compression: Any) -> str:
    """A text for this compression argument, for comparisons between ranks."""
    if isinstance(compression, Codec):
        return f"{compression.kind} in blocks of {compression.block} between {compression.between}"
    return str(getattr(compression, "__qualname__", type(compression).__qualname__))


def refuse_codec(compression: Any, what: str) -> None:
    """Raises UnsupportedError if this compression argument is a codec. what: the operation that has none."""
    if isinstance(compression, Codec):
        raise UnsupportedError(
            f"{what} cannot be coded, and compression is {describe_compression(compression)}: leave the compression out, or "
            "use hvdlite.Compression.fp16 or bf16"
        )
