"""Reduces sparse (coordinate) tensors by their rows: every rank gets all ranks' rows and adds them up.

A gradient without rows is not the same as no gradient: an optimizer with momentum updates a parameter even if its gradient is
empty. So a tensor without rows is sent as one row with the index -1.
"""

import torch

from hvdlite.torch.gpu import is_reachable

__all__ = ["join_rows", "rows_of"]


def rows_of(
    grad: torch.Tensor | None, like: torch.Tensor, dtype: torch.dtype, sparse_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices (int64, one row per value) and values of a gradient, in memory that the engine can use; none for None.

    Args:
        grad: sparse (coordinates) or dense.
        like: a tensor of the gradient's shape and device.
        dtype: the dtype of the values.
        sparse_dim: how many leading dimensions the indices count.
    """
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
    """The sparse tensor (coordinates, coalesced) of the rows that all ranks sent, which are at least one.

    Args:
        indices: int64, one row for each of `values`.
        values: the rows.
        like: a tensor of the result's shape and device.
        divisor: the divisor of the sums.

    """
    with torch.no_grad():
        placed = (indices >= 0).all(1)
        if not placed.all():
            indices, values = indices[placed], values[placed]
        where = values.device
        total = torch.sparse_coo_tensor(indices.t(), values, like.shape, device=where, check_invariants=False).coalesce()
        if divisor != 1:
            total = total / divisor
        return total.to(like.device)
