"""Codecs of the torch door: calls, gradients of calls, and DistributedOptimizer with its buckets, arenas and native reducer."""

import numpy as np
import pytest
import torch
from mpi4py import MPI
from support.codecs import INT4, INT8, KINDS, decoded, reduced

from hvdlite.compression import Codec
from hvdlite.errors import UnsupportedError
from hvdlite.torch import error_feedback

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SIZES = (40_000, 3, 700)  # the first one is large enough for an arena


def values(rank, count, salt):
    return torch.randn(count, generator=torch.Generator().manual_seed(1000 * salt + rank))


def everyone(count, salt):
    return [values(rank, count, salt).numpy() for rank in range(SIZE)]


def test_a_call_and_its_gradient(hvd):
    codec = hvd.Compression.int8(64, "ranks")
    tensor = values(RANK, 200, 1).requires_grad_()
    output = hvd.allreduce(tensor, op=hvd.Sum, compression=codec)
    assert output.detach().numpy().tobytes() == reduced(everyone(200, 1), INT8).tobytes()
    output.backward(values(RANK, 200, 2))
    assert tensor.grad.numpy().tobytes() == reduced(everyone(200, 2), INT8).tobytes()
    brain = hvd.allreduce(values(RANK, 200, 3).bfloat16(), compression=codec)
    assert brain.dtype is torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1.0, 2.0**-110, torch.finfo(torch.float32).max])
def test_error_feedback_knows_what_the_engine_decodes(kind, factor):
    given = values(0, 150, 4).clamp(-1, 1) * factor
    given[3] = factor
    assert np.array_equal(error_feedback.decoded(given, Codec(kind, 64)).numpy(), decoded(given.numpy(), KINDS[kind], 64))


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "fresh"])
def test_gradients_of_an_optimizer(hvd, kept):
    """Gradients that are kept lie in an arena from the second step on."""
    params = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1), compression=hvd.Compression.int4(block=128, between="ranks")
    )
    before = hvd.stats()
    for step in range(3):
        optimizer.zero_grad(set_to_none=not kept)
        sum((param * values(RANK, param.numel(), 10 * step + i)).sum() for i, param in enumerate(params)).backward()
        for i, param in enumerate(params):
            wanted = reduced(everyone(param.numel(), 10 * step + i), INT4, block=128, divisor=SIZE)
            assert np.array_equal(param.grad.numpy(), wanted)
        optimizer.step()
    spent = hvd.stats() - before
    assert spent.uncoded_bytes > 7 * spent.coded_bytes > 0


def test_loss_scaling_sees_a_value_that_is_not_finite(hvd):
    param = torch.nn.Parameter(torch.zeros(300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), compression=hvd.Compression.int8(64, "ranks"))
    weight = torch.ones(300)
    if RANK == SIZE - 1:
        weight[70] = float("inf")
    (param * weight).sum().backward()
    assert torch.isnan(param.grad).tolist() == [64 <= place < 128 for place in range(300)]
    optimizer.zero_grad()


def test_what_an_optimizer_cannot_code_is_refused_by_name(hvd):
    codec = hvd.Compression.int8()
    param = torch.nn.Parameter(torch.zeros(4))
    why_not = "op=Adasum cannot be coded" if SIZE != 3 else "Adasum with non-power of 2 ranks"
    with pytest.raises(UnsupportedError, match=why_not):
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), op=hvd.Adasum, compression=codec)
    wide = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    _wide_optimizer = hvd.DistributedOptimizer(torch.optim.SGD([wide], lr=0.1), [("wide", wide)], compression=codec)
    with pytest.raises(UnsupportedError, match=r"wide'.*float64 cannot travel as int8"):
        wide.sum().backward()
    table = torch.nn.Embedding(4, 2, sparse=True)
    _sparse_optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), compression=codec
    )
    with pytest.raises(UnsupportedError, match=r"sparse gradient of .*weight' \(without sparse_as_dense=True\)"):
        table(torch.tensor([1])).sum().backward()
