"""Error feedback for int8, int4 and fp8: a rank adds the error of a coded gradient to the next gradient of that parameter.

Source: Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch
from torch.nn.functional import pad

from hvdlite.compression import BucketCodec, Codec, describe_compression
from hvdlite.torch.coded_bucket import CodedGradient, are_finite

_LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
_SMALLEST = 2.0**-100  # blocks whose largest magnitude is below this become zeros


def decoded(tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
    """The values that a tensor has after it is coded and decoded once; csrc/kernels/codec.h has the formats.

    Args:
        tensor: float32, of any shape. Not modified.
        codec: the codec; its kind and block are used.

    Returns:
        A float32 tensor of the same shape. Its values are those that the engine computes when it codes and decodes the tensor.
        In blocks with an inf or a nan the values are undefined.
    """
    flat = tensor.reshape(-1)
    blocks = pad(flat, (0, -flat.numel() % codec.block)).view(-1, codec.block)
    largest = torch.linalg.vector_norm(blocks, torch.inf, 1, keepdim=True)
    limit = _LARGEST[codec.kind]
    factor = torch.where(largest >= _SMALLEST, torch.full_like(largest, limit) / largest, torch.zeros_like(largest))
    codes = blocks * factor
    codes = codes.to(torch.float8_e4m3fn).to(torch.float32) if codec.kind == "fp8" else codes.round_()
    scale = largest / limit  # as the engine's: the largest float32 stays finite
    scale = torch.where(torch.isinf(scale * limit), torch.nextafter(scale, torch.zeros_like(scale)), scale)
    return codes.mul_(scale).view(-1)[: flat.numel()].view(tensor.shape)


class ErrorFeedback(BucketCodec):
    """Keeps a ``residual`` for each gradient: what the sum of the gradient and the last residual has lost when it was coded.

    The residual is a float32 tensor, for a loss scale of 1. Gradients of 16 bits are converted to float32. The engine codes
    what is sent, and refuses gradients of float64 (UnsupportedError).
    """

    def __init__(self, codec: Codec) -> None:
        self._settings = codec
        self.codec = replace(codec, error_feedback=False)

    def describe(self) -> str:
        """See `BucketCodec.describe`."""
        return describe_compression(self._settings)

    def reduce(
        self, gradients: Sequence[CodedGradient], loss_scale: float
    ) -> Generator[Sequence[torch.Tensor], None, Sequence[torch.Tensor]]:
        """See `BucketCodec.reduce`. There is one round."""
        sent: list[torch.Tensor] = []
        residuals: list[torch.Tensor | None] = []
        for gradient in gradients:
            total = gradient.with_residual(loss_scale)
            residuals.append(None if total is None else total.sub(decoded(total, self._settings)).div_(loss_scale))
            if total is None:
                total = torch.zeros(gradient.shape, dtype=torch.promote_types(gradient.dtype, torch.float32), device="cpu")
            sent.append(total)
        yield sent
        if are_finite(sent):
            for gradient, residual in zip(gradients, residuals, strict=True):
                if residual is not None:
                    gradient.state["residual"] = residual
        return [total.to(gradient.dtype) for total, gradient in zip(sent, gradients, strict=True)]
