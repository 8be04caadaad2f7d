"""torch's tensors as leaves, which ranks compare (`hvdlite.leaves`)."""

import functools
from typing import Any

import numpy as np
import torch

from hvdlite.leaves import Leaf


def leaf_of(name: str, tensor: torch.Tensor) -> Leaf:
    """The leaf of a dense tensor.

    The bytes are copied only if the tensor is not in host memory, is not in row-major order in memory, or is a lazy conjugate
    or negative.
    """
    tensor = tensor.detach()

    def on_host() -> torch.Tensor:
        return tensor.resolve_conj().resolve_neg().cpu().contiguous()

    def numbers(part: slice) -> Any:
        values = torch.view_as_real(on_host()) if tensor.is_complex() else on_host()
        return values.reshape(-1)[part].to(torch.float64).numpy()

    def memory() -> Any:
        return on_host().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)

    return Leaf(name, tuple(tensor.shape), *_name_and_epsilon(tensor.dtype), memory=memory, numbers=numbers)


@functools.cache  # torch.finfo is slow
def _name_and_epsilon(dtype: torch.dtype) -> tuple[str, float]:
    is_wide = (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1
    epsilon = torch.finfo(dtype).eps if is_wide else 0.0
    return str(dtype).removeprefix("torch."), epsilon
