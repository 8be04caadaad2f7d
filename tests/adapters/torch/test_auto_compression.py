"""`Compression.auto` of the torch door: what an optimizer chooses by injected measurements, and what it refuses.

On one host the codec int8 changes no bits. So tests that compare gradients use float64, for which bf16 is chosen.
"""

import pytest
import torch
from mpi4py import MPI
from support.injected_links import FAST_RATE, SLOW_RATE, injected_link

from hvdlite.compression import Compression
from hvdlite.errors import MismatchError, UnsupportedError

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
COUNT = 20_000
AUTO = Compression.auto


def reduced(hvd, param, compression, **arguments):
    """The optimizer, and the gradient after one backward pass, whose values differ by rank."""
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), compression=compression, **arguments)
    mine = torch.randn(param.shape, generator=torch.Generator().manual_seed(RANK), dtype=param.dtype)
    (param * mine).sum().backward()
    return optimizer, param.grad.clone()


def parameter(dtype=torch.float64):
    return torch.nn.Parameter(torch.zeros(COUNT, dtype=dtype))


@pytest.mark.parametrize(("rate", "named"), [(SLOW_RATE, Compression.bf16), (FAST_RATE, Compression.none)])
def test_gradients_are_reduced_with_the_choice(hvd, rate, named):
    with injected_link(rate * (1 + RANK)):
        _, chosen = reduced(hvd, parameter(), AUTO)
    _, wanted = reduced(hvd, parameter(), named)
    assert torch.equal(chosen, wanted)
    _, other = reduced(hvd, parameter(), Compression.none if named is Compression.bf16 else Compression.bf16)
    assert not torch.equal(chosen, other)


def test_float32_gets_a_codec_and_a_hidden_exchange_gets_none(hvd):
    with injected_link(SLOW_RATE):
        for auto, codec in ((AUTO, Compression.int8().fields), (AUTO(step_time=600), {})):
            optimizer, _ = reduced(hvd, parameter(torch.float32), auto)
            (bucket,) = optimizer._hvdlite.reducer.buckets
            assert [form.codec for _, form in bucket.members] == [codec]


def test_a_sparse_gradient_leaves_out_the_codec(hvd):
    with injected_link(SLOW_RATE):
        table = torch.nn.Embedding(10, 4, sparse=True)
        dense = parameter(torch.float32)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight, dense], lr=0.1), compression=AUTO)
        mine = torch.randn(COUNT, generator=torch.Generator().manual_seed(RANK))
        (table(torch.tensor([RANK])).sum() + (dense * mine).sum()).backward()
        optimizer.step()
    _, wanted = reduced(hvd, parameter(torch.float32), Compression.bf16)
    assert torch.equal(dense.grad, wanted)
    assert table.weight.grad.is_sparse


def test_a_state_dict_loads_with_auto(hvd):
    with injected_link(SLOW_RATE):
        param = parameter()
        first = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1, momentum=0.9), compression=AUTO)
        (param * (1 + RANK)).sum().backward()
        first.step()
        second = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1, momentum=0.9), compression=AUTO)
        second.load_state_dict(first.state_dict())
    buffers = [optimizer.state_dict()["state"][0]["momentum_buffer"] for optimizer in (first, second)]
    assert torch.equal(*buffers)


def test_a_call_and_its_gradient_are_reduced_with_the_choice(hvd):
    tensor = torch.randn(COUNT, generator=torch.Generator().manual_seed(RANK), dtype=torch.float64).requires_grad_()
    with injected_link(SLOW_RATE):
        output = hvd.allreduce(tensor, compression=AUTO)
        output.backward(torch.full_like(output, 1.001))
    assert torch.equal(output, hvd.allreduce(tensor.detach(), compression=Compression.bf16))
    assert torch.equal(tensor.grad, torch.full_like(output, 1.001).bfloat16().double())


def test_other_ranks_with_another_compression_are_named(hvd):
    with injected_link(SLOW_RATE) as measured, pytest.raises(MismatchError, match="compression"):
        reduced(hvd, parameter(torch.float32), AUTO if RANK == 0 else Compression.int8())
    assert measured == []  # the difference is found before anything is measured


def test_adasum_refuses_it(hvd):
    said = "op=Adasum cannot be coded, and compression is auto" if hvd.size() != 3 else "Adasum with non-power of 2 ranks"
    with pytest.raises(UnsupportedError, match=said):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter()], lr=0.1), compression=AUTO, op=hvd.Adasum)
