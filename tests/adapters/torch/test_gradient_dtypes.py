"""Gradients of another dtype than their parameter (``grad_dtype``) are reduced as what they are."""

import pytest
import torch
from reference import assert_same_bits

from hvdlite.compression import Compression

pytestmark = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="grad_dtype takes torch 2.10")

SHAPE = (8, 2048)  # 64 KiB in float32, what a view takes at least
WAYS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "two passes": {"backward_passes_per_step": 2},
    "bf16": {"compression": Compression.bf16},
    "sum": {"op": 1},
}


class Times(torch.autograd.Function):
    """The sum of a parameter's elements times others; its gradient are the others as they are."""

    @staticmethod
    def forward(ctx, param, others):
        ctx.save_for_backward(others)
        return (param.float() * others.to_dense()).sum()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None


def increment(rank, step, way="plain"):
    """Has digits that bfloat16 has no room for, but for the way that rounds to it."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    digits = 4 if way == "bf16" else 12
    return torch.randint(0, 2**digits, SHAPE, generator=generator).float() / 2**digits


def parameter(dtype=torch.float32):
    param = torch.nn.Parameter(torch.zeros(SHAPE, dtype=torch.bfloat16))
    param.grad_dtype = dtype
    return param


@pytest.mark.parametrize("way", WAYS)
def test_float32_gradients_of_a_bfloat16_parameter(hvd, way):
    param = parameter()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), **WAYS[way])
    passes = WAYS[way].get("backward_passes_per_step", 1)
    for step in range(3):
        total = torch.zeros(SHAPE)
        for turn in range(passes):
            Times.apply(param, increment(hvd.rank(), 2 * step + turn, way)).backward()
            total += sum(increment(rank, 2 * step + turn, way) for rank in range(hvd.size()))
        assert param.grad.dtype == torch.float32
        expected = total if way == "sum" else total / hvd.size()
        torch.testing.assert_close(param.grad, expected, rtol=2**-8 if way == "bf16" else 1e-6, atol=1e-7)
        assert_same_bits([param.grad])
        optimizer.zero_grad(set_to_none=step > 0)  # so that there are views in the second step
        optimizer.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, None])
@pytest.mark.parametrize("sparse", [False, True])
def test_where_one_rank_has_no_gradient(hvd, dtype, sparse):
    param = parameter(dtype)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    for step in range(2):
        optimizer.zero_grad()
        mine = increment(0, step) * (torch.arange(SHAPE[0]) % 2)[:, None]
        if hvd.rank() == step % 2:
            Times.apply(param, mine.to_sparse(1) if sparse else mine).backward()
        optimizer.synchronize()
        assert param.grad.dtype == torch.float32
        torch.testing.assert_close(param.grad.to_dense(), mine / hvd.size(), rtol=1e-6, atol=0)
        assert_same_bits([param.grad.to_dense()])


def test_a_dtype_that_changes_is_agreed_on_anew_or_refused(hvd):
    params = [parameter(), parameter()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), [("first", params[0]), ("second", params[1])])
    for param in params:
        Times.apply(param, increment(hvd.rank(), 0)).backward()
    optimizer.zero_grad()
    for param in params:
        param.grad_dtype = torch.float64
        param.grad = increment(hvd.rank(), 1).double() / 3
    optimizer.synchronize()
    expected = sum(increment(rank, 1).double() / 3 for rank in range(hvd.size())) / hvd.size()
    assert all(torch.allclose(param.grad, expected, rtol=1e-15) for param in params)
    optimizer.zero_grad()
    params[0].grad_dtype = None
    params[0].grad = torch.full(SHAPE, 1 / 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"first' is torch\.complex64 now, and is reduced as"):
        optimizer.synchronize()
