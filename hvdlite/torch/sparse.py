"""The rows of sparse (coordinate) tensors: what a rank sends, and the sum of what all ranks have sent.

A gradient without rows is not the same as no gradient: an optimizer with momentum updates a parameter even if its gradient is
empty. So a gradient without rows is sent as one row with the index -1, and a missing gradient as no row.
"""

import torch

from hvdlite.errors import InvalidArgumentError
from hvdlite.torch.gpu import is_reachable


def rows_of(
    grad: torch.Tensor | None, like: torch.Tensor, dtype: torch.dtype, sparse_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices (int64, `sparse_dim` numbers for each row) and the rows of a gradient, in memory that the engine can use.

    Args:
        grad: a sparse (coordinate) or dense gradient; None: this rank has no gradient, and sends no row.
        like: a tensor of the gradient's shape and device.
        dtype: the dtype of the returned rows.
        sparse_dim: the number of leading dimensions that the indices address.

    Raises:
        InvalidArgumentError: the dtype is torch.bool.
    """
    if dtype is torch.bool:
        raise InvalidArgumentError("a sum or mean of sparse tensors of bool is not supported: cast them to numbers first")
    device = like.device if is_reachable(like.device) else torch.device("cpu")
    if grad is None:
        indices = torch.empty((0, sparse_dim), dtype=torch.int64, device=device)
        values = torch.empty((0, *like.shape[sparse_dim:]), dtype=dtype, device=device)
    else:
        if grad.layout is torch.strided:
            grad = grad.to_sparse(sparse_dim)
        grad = grad.coalesce()
        indices, values = grad.indices().t().to(device), grad.values().to(device=device, dtype=dtype)
    if grad is not None and not len(indices):
        indices, values = indices.new_full((1, sparse_dim), -1), values.new_zeros((1, *values.shape[1:]))
    return indices.contiguous(), values.contiguous()


def join_rows(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor, divisor: int) -> torch.Tensor:
    """The sum of all ranks' rows, divided by `divisor`: a sparse (coordinate) tensor without duplicate indices.

    It has the dtype of `values`. Quotients of integers are truncated toward zero.

    Args:
        indices: int64, `sparse_dim` numbers for each row of `values`. If these numbers are -1, the row stands for a gradient
            without rows.
        values: the rows of all ranks.
        like: a tensor of the result's shape and device.
        divisor: the number by which the sum is divided.
    """
    with torch.no_grad():
        is_row = (indices >= 0).all(1)
        if not is_row.all():
            indices, values = indices[is_row], values[is_row]
        device = values.device
        total = torch.sparse_coo_tensor(indices.t(), values, like.shape, device=device, check_invariants=False).coalesce()
        if divisor != 1:
            is_integer = not (total.is_floating_point() or total.is_complex())
            total = torch.div(total, divisor, rounding_mode="trunc" if is_integer else None)  # as the engine divides
        return total.to(like.device)
