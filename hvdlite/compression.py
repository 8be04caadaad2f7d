"""Compression of gradients: a door compresses tensors before a reduction and restores them after it, or the engine codes what
ranks send each other.

An argument `compression` is one of four things: a class with the two static methods of `Compressor`, which gets tensors of
the caller's framework; a `Codec`, with which the engine codes what ranks send each other; `Compression.auto`, which
`hvdlite.auto_compression` replaces by such a class or codec; or a compression that keeps state from one training step to the
next (`PowerSGD`, a `Codec` with error feedback, a `BucketCodec`), which only `hvdlite.torch.DistributedOptimizer` supports.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from hvdlite.backends.traced import converter_of
from hvdlite.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "AutoCompression",
    "BF16Compressor",
    "BucketCodec",
    "Codec",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "PowerSGD",
    "check_compression",
    "codec_of",
    "describe_compression",
    "is_none",
    "keeps_state",
    "refuse_codec",
    "split",
]

# The numbers of kinds of codecs, the numbers for `between`, and the limits of `block`, as in csrc/base/codec.h.
_KINDS = {"int8": 1, "int4": 2, "fp8": 3}
_BETWEEN = {"hosts": 0, "ranks": 1}
_BLOCK_STEP, _LARGEST_BLOCK = 64, 4096


class Compressor:
    """The interface: hvdlite reduces the result of `compress`, and passes the reduced tensor and compress's context to
    `decompress`.

    The shape and dtype of the result must depend only on the shape and dtype of the tensor, and must be the same on all ranks,
    because `DistributedOptimizer` calls `compress` with zeros to learn them in advance. hvdlite adds up the compressed elements
    of all ranks, so the meaning of a compressed element must not depend on the values of the rank.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the compressed tensor and the context for `decompress`. Does not change the argument."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the reduced tensor with the original dtype and shape."""
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


class _Narrower(Compressor):
    """Sends float32 and float64 tensors in a dtype of 16 bits."""

    _dtype_name: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor in 16 bits, and the name of its original dtype. Only float32 and float64 are changed."""
        converter = converter_of(tensor)
        adopted = converter.adopt(tensor)
        own = converter.dtype_name(adopted)
        if own not in ("float32", "float64"):
            return tensor, None
        return converter.cast(adopted, cls._dtype_name), own

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its original dtype."""
        return tensor if ctx is None else converter_of(tensor).cast(tensor, ctx)


class FP16Compressor(_Narrower):
    """Sends float32 and float64 tensors as float16. The engine adds in float32 and rounds each sum once."""

    _dtype_name = "float16"


class BF16Compressor(_Narrower):
    """Sends float32 and float64 tensors as bfloat16, which has float32's range and fewer digits. NumPy needs ml_dtypes."""

    _dtype_name = "bfloat16"


@dataclass(frozen=True)
class Codec:
    """How the engine codes the elements that an allreduce sends: a few bits each, and one float32 scale for each block.

    Sums are computed in float32. Each rank's contribution is coded once, and the sum is coded once more, for any number of
    ranks. All ranks get the same bits. A codec works for Sum and Average of float32, float16 and bfloat16 in host memory; any
    other op, dtype or device raises an error that names that op, dtype or device.
    `Compression.int8`, `int4` and `fp8` make codecs.

    Attributes:
        kind: ``"int8"``, ``"int4"`` or ``"fp8"``.
        block: the number of elements that share a scale: a multiple of 64, up to 4096. No block has elements of two tensors.
        between: ``"hosts"``: the ranks of one host add up in full precision, and only messages between hosts are coded.
            ``"ranks"``: all messages between ranks are coded.
        error_feedback: does a rank add the coding error of a gradient to the next gradient of the same parameter? Only
            `hvdlite.torch.DistributedOptimizer` can store the error; every other function refuses such a codec.

    Raises:
        InvalidArgumentError: an attribute has a value that the list of attributes does not allow.
    """

    kind: str
    block: int = 256
    between: str = "hosts"
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidArgumentError(f"kind={self.kind!r} is not a codec: pass one of {', '.join(_KINDS)}")
        block = self.block
        if isinstance(block, bool) or not isinstance(block, int) or not 0 < block <= _LARGEST_BLOCK or block % _BLOCK_STEP:
            raise InvalidArgumentError(f"block={block!r}: pass a multiple of {_BLOCK_STEP} (elements), up to {_LARGEST_BLOCK}")
        if self.between not in _BETWEEN:
            raise InvalidArgumentError(f'between={self.between!r}: pass "hosts" or "ranks"')
        if not isinstance(self.error_feedback, bool):
            raise InvalidArgumentError(f"error_feedback={self.error_feedback!r}: pass True or False")

    @property
    def fields(self) -> dict[str, int]:
        """The fields of a `hvdlite.requests.Request` that describe this codec, by name, in the request's order."""
        return {"codec": _KINDS[self.kind], "codec_between": _BETWEEN[self.between], "codec_block": self.block}


@dataclass(frozen=True)
class PowerSGD:
    """Sends two thin factors of each gradient matrix instead of the matrix. `Compression.powersgd` makes such an object.

    A gradient of shape [n, ...] counts as a matrix of n rows and m columns. The matrix is approximated by P Q^T, where P has n
    rows, Q has m rows, and P and Q have `rank` columns each. One allreduce reduces P of all matrices. A second allreduce
    reduces Q of all matrices, and the gradients that are not approximated. A rank adds the error of the approximation to the
    next gradient of the parameter (error feedback), and a training step begins with the Q of the previous one (warm start). All
    ranks get the same bits.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    NeurIPS 2019.

    Attributes:
        rank: the number of columns of P and Q, 1 or more. More columns are more accurate and send more bytes.
        start_step: how many of a gradient's first reductions send the whole gradient, because gradients change most at first.
        min_compression: a matrix is approximated only if its number of elements is more than `min_compression` times the number
            of elements of P and Q together; 1 or more.

    Raises:
        InvalidArgumentError: an attribute is no number, or is too small.
    """

    rank: int = 2
    start_step: int = 100
    min_compression: float = 2

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("start_step", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidArgumentError(f"powersgd: {name}={value!r}: pass a whole number of at least {least}")
        least_ratio = self.min_compression
        if isinstance(least_ratio, bool) or not isinstance(least_ratio, int | float) or not least_ratio >= 1:
            raise InvalidArgumentError(f"powersgd: min_compression={least_ratio!r}: pass a number of at least 1")

    def compresses(self, rows: int, columns: int) -> bool:
        """Is a matrix of this shape approximated?"""
        rank = min(self.rank, rows, columns)
        return rows * columns > self.min_compression * rank * (rows + columns)


class BucketCodec:
    """The interface of a codec that keeps state from one training step to the next, for `hvdlite.torch.DistributedOptimizer`.

    A bucket codec sees all gradients of a bucket at once, and reduces them in one or more rounds, each of which is one fused
    allreduce. One codec object serves the whole optimizer. The codec stores what it must remember in the ``state`` of each
    gradient, which ``optimizer.state_dict()`` saves. The codec must not change stored tensors in place, but replace them by new
    tensors, because `hvd.elastic.Job` puts the earlier tensors back if a training step is not applied.

    Attributes:
        codec: the codec of the messages of the rounds, such as `Compression.int8`; None sends the tensors uncoded.
        one_bucket: are all gradients of the optimizer in one bucket? Otherwise buckets are filled by size.
    """

    codec: Codec | None = None
    one_bucket: bool = False

    def reduce(self, gradients: Sequence[Any], loss_scale: float) -> Generator[Sequence[Any], None, Sequence[Any]]:
        """Reduces the gradients of one bucket: a generator function.

        Each ``yield tensors`` is a round: the optimizer reduces these torch tensors in place, as it reduces gradients (with
        its op, factors and weights). The number of tensors, their shapes and dtypes must be the same on all ranks. All ranks
        must then compute the same bits from the reduced tensors. The generator may change the ``state`` of gradients only after
        the last round, and must not change it at all if a reduced tensor has an inf or a nan.

        Args:
            gradients: the members of the bucket (`hvdlite.torch.coded_bucket.CodedGradient`), the same on all ranks.
            loss_scale: the factor by which the training loss, and so the gradients, were multiplied. Divide by this factor
                what you store.

        Returns:
            The reduced gradients in the order of `gradients`, each with its gradient's shape. A reduced gradient may use the
            memory of a gradient's ``value``.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """A text with all settings, which must be equal on all ranks."""
        return type(self).__qualname__


@dataclass(frozen=True)
class AutoCompression:
    """Chooses `Compression.none`, `bf16` or ``int8()`` by a measurement of the link between hosts: the class of
    `Compression.auto`.

    At the first use with a process set, the ranks of the set measure the link between their hosts, and agree on the result. The
    measurement takes less than four seconds on a link of 1 Mbit/s or more, and no time if all ranks are on one host. Each rank
    then computes the time of a training step with each compression. A less accurate compression is chosen only if it makes the
    training step shorter by 10 % and by 1 ms. One line of the log has the choice and its reason. The first use is collective:
    no rank of the set may have called `join` before.

    A choice by measurement can differ from run to run, and so can the bits of the results. If runs must be equal, measure once
    with ``hvdlite tune --link``, and name the compression. With the knob deterministic, `Compression.auto` raises an
    InvalidArgumentError.

    `Compression.auto` works wherever a codec works, for op Average and Sum. For tensors that no codec supports, it chooses
    among the compressions that these tensors support (GPU tensors, float64 and sparse gradients: none or bf16; integers: none).
    It is refused in elastic jobs of TensorFlow and JAX, because compiled programs would keep the choice.

    Attributes:
        step_time: the seconds that a training step would take without communication. A part of the communication runs during
            this time and costs none. With 0, the default, the reduction alone is judged. ``Compression.auto(step_time=0.03)``
            sets the attribute; all ranks must pass the same value.

    Raises:
        InvalidArgumentError: `step_time` is not a finite number of 0 or more.
    """

    step_time: float = 0.0

    def __post_init__(self) -> None:
        seconds = self.step_time
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise InvalidArgumentError(f"step_time={seconds!r}: pass a finite number of seconds, 0 or more")

    def __call__(self, step_time: float) -> "AutoCompression":
        """An `AutoCompression` with this `step_time`."""
        return AutoCompression(step_time)


class Compression:
    """The compressions that come with hvdlite.

    `int8`, `int4` and `fp8` have the arguments of `Codec`, and `powersgd` has those of `PowerSGD`. `auto` chooses none, bf16 or
    int8 by a measurement of the link between the hosts (`hvdlite.compression.AutoCompression`).
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    auto = AutoCompression()

    @staticmethod
    def int8(block: int = 256, between: str = "hosts", error_feedback: bool = False) -> Codec:
        """Codes elements as integers of 8 bits: a quarter of float32's bytes, errors up to 1/254 of a block's largest value."""
        return Codec("int8", block, between, error_feedback)

    @staticmethod
    def int4(block: int = 256, between: str = "hosts", error_feedback: bool = False) -> Codec:
        """Codes elements as integers of 4 bits: an eighth of float32's bytes, errors up to 1/14 of a block's largest value."""
        return Codec("int4", block, between, error_feedback)

    @staticmethod
    def fp8(block: int = 256, between: str = "hosts", error_feedback: bool = False) -> Codec:
        """Codes elements as floats of 8 bits (E4M3): as many bytes as `int8`, errors up to 1/16 of each element.

        The relative error is larger for elements below 1/28672 of the block's largest value.
        """
        return Codec("fp8", block, between, error_feedback)

    @staticmethod
    def powersgd(rank: int = 2, start_step: int = 100, min_compression: float = 2) -> PowerSGD:
        """Sends two thin factors of each gradient, which together typically have 0.1 % to 5 % of its bytes. PyTorch only."""
        return PowerSGD(rank, start_step, min_compression)


def is_none(compression: Any) -> bool:
    """Does this compression argument mean no compression?"""
    return compression is None or compression is NoneCompressor


def keeps_state(compression: Any) -> bool:
    """Does this compression argument keep state from one training step to the next?"""
    return isinstance(compression, PowerSGD | BucketCodec) or (isinstance(compression, Codec) and compression.error_feedback)


def check_compression(compression: Any) -> None:
    """Checks the compression argument of any function other than `hvdlite.torch.DistributedOptimizer`.

    Raises:
        InvalidArgumentError: the argument is neither None nor a codec, and lacks the methods of `Compressor`.
        UnsupportedError: the argument keeps state from one training step to the next.
    """
    if keeps_state(compression):
        raise UnsupportedError(
            f"compression is {describe_compression(compression)}, which keeps state from step to step, and only "
            "hvdlite.torch.DistributedOptimizer (with op=Average or op=Sum) can keep it: pass a codec without error feedback, "
            "such as hvdlite.Compression.int8(), or hvdlite.Compression.bf16"
        )
    if is_none(compression) or isinstance(compression, Codec | AutoCompression):
        return
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression must have the methods compress and decompress, or be a codec such as hvdlite.Compression.int8() "
            f"(with its parentheses), got {compression!r}"
        )


def split(compression: Any) -> "tuple[Any, dict[str, int]]":
    """Splits a compression argument into the class whose methods a door calls, and the codec's fields of a request.

    Raises:
        InvalidArgumentError: the argument is neither such a class nor a codec.
        UnsupportedError: the argument keeps state from one training step to the next, or is `Compression.auto`.
    """
    check_compression(compression)
    codec = codec_of(compression)
    if codec is not None:
        return NoneCompressor, codec.fields
    return (NoneCompressor if compression is None else compression), {}


def codec_of(compression: Any) -> Codec | None:
    """The compression argument, if it is a codec; None if it is a class with the methods of `Compressor`, or None.

    Raises:
        UnsupportedError: the argument keeps state from one training step to the next, or is `Compression.auto`.
    """
    if keeps_state(compression):
        check_compression(compression)
    if isinstance(compression, AutoCompression):
        raise UnsupportedError("this operation cannot choose a compression, and compression is auto: name a compression")
    return compression if isinstance(compression, Codec) else None


def describe_compression(compression: Any) -> str:
    """A text with all settings of this compression argument. Ranks compare it, and error texts contain it."""
    if isinstance(compression, Codec):
        feedback = " with error feedback" if compression.error_feedback else ""
        return f"{compression.kind} in blocks of {compression.block} between {compression.between}{feedback}"
    if isinstance(compression, PowerSGD):
        return (
            f"powersgd of rank {compression.rank} from step {compression.start_step} on with min_compression "
            f"{compression.min_compression}"
        )
    if isinstance(compression, BucketCodec):
        return compression.describe()
    if isinstance(compression, AutoCompression):
        return f"auto with a step time of {compression.step_time:g} s" if compression.step_time else "auto"
    return str(getattr(compression, "__qualname__", type(compression).__qualname__))


def refuse_codec(compression: Any, what: str) -> None:
    """Raises UnsupportedError if this compression argument is a codec, keeps state, or is `Compression.auto`.

    what: the operation, which cannot use such a compression.
    """
    if isinstance(compression, Codec | AutoCompression) or keeps_state(compression):
        raise UnsupportedError(
            f"{what} cannot be coded, and compression is {describe_compression(compression)}: leave the compression out, or "
            "use hvdlite.Compression.fp16 or bf16"
        )
