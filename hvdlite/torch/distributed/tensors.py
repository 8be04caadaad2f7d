"""Checks torch.distributed's lists of tensors, and converts them to the one tensor that hvdlite sends, and back."""

from collections.abc import Sequence

import torch

from hvdlite.errors import InvalidArgumentError

Tensor = torch.Tensor


def check_own_output(label: str, source: Tensor, output: Tensor) -> None:
    """Checks that an output of this rank has the dtype and the number of elements of the input to which it belongs.

    Raises:
        InvalidArgumentError: the dtype or the number of elements differs.
    """
    if source.numel() != output.numel() or source.dtype != output.dtype:
        raise InvalidArgumentError(
            f"torch.distributed.{label}: this rank's own output, {output.dtype} with {output.numel()} elements, does not fit "
            f"its input, {source.dtype} with {source.numel()}; give both one dtype and one number of elements"
        )


def check_same_dtype(label: str, source: Tensor, output: Tensor) -> None:
    """Checks that an output has its input's dtype, because a copy into an output of another dtype would convert the result.

    Raises:
        InvalidArgumentError: the dtypes differ.
    """
    if source.dtype != output.dtype:
        raise InvalidArgumentError(
            f"torch.distributed.{label}: the output is {output.dtype}, but the input is {source.dtype}; give both one dtype"
        )


def flat_of(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors in a new tensor of one dimension."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def writing(outputs: Sequence[Tensor]) -> torch.no_grad | torch.inference_mode:
    """The mode in which any thread may write to these tensors.

    If a tensor was created in inference mode, torch allows writes to this tensor in inference mode only.
    """
    return torch.inference_mode() if any(output.is_inference() for output in outputs) else torch.no_grad()


def target_for(output: Tensor, source: Tensor, offset: int | None) -> Tensor | None:
    """The output, if the engine may write the result there while it still reads the source; otherwise None.

    Args:
        output: the tensor for the result.
        source: the input, of the same dtype.
        offset: the index in the result at which the elements of the source begin; None if the result does not contain them.
    """
    if not output.is_contiguous() or not output.is_cpu:
        return None
    read, written = source.data_ptr(), output.data_ptr()
    apart = read + source.nbytes <= written or written + output.nbytes <= read
    return output if apart or (offset is not None and read == written + offset * output.element_size()) else None


def split_into(label: str, received: Tensor, outputs: Sequence[Tensor]) -> None:
    """Copies the received elements into the outputs, in order.

    Raises:
        InvalidArgumentError: the outputs have another number of elements.
    """
    sizes = [output.numel() for output in outputs]
    if received.numel() != sum(sizes):
        raise InvalidArgumentError(
            f"torch.distributed.{label}: the ranks sent {received.numel()} elements, but the outputs have {sizes}"
        )
    with writing(outputs):
        for output, piece in zip(outputs, torch.split(received.reshape(-1), sizes), strict=True):
            output.copy_(piece.view(output.shape))
