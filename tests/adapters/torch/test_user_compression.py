"""Compressors of the user's own, with the interface that Horovod's have."""

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference import FEATURES, assert_close, assert_same_bits, grads_of, mse, network, part_of, sgd, whole_batch

from hvdlite.compression import Compression, Compressor, FP16Compressor, NoneCompressor


class EveryOther(Compressor):
    """Sends every other element; the rest becomes zero."""

    @staticmethod
    def compress(tensor):
        return tensor.reshape(-1)[::2], tensor.shape

    @staticmethod
    def decompress(tensor, ctx):
        full = tensor.new_zeros(ctx).reshape(-1)
        full[::2] = tensor
        return full.reshape(ctx)


class Scaled(Compressor):
    """An object with a setting, which sends float32."""

    def __init__(self, factor):
        self.factor = factor

    def compress(self, tensor):
        return (tensor * self.factor).to(torch.float32), tensor.dtype

    def decompress(self, tensor, ctx):
        return tensor.to(ctx) / self.factor


class Nonzero(Compressor):
    """Sends as many elements as are not zero, which no other rank can know."""

    @staticmethod
    def compress(tensor):
        return tensor[tensor != 0], tensor.shape

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


def masked(tensor):
    return EveryOther.decompress(*EveryOther.compress(tensor))


def test_horovods_names():
    assert Compression.none is NoneCompressor
    assert Compression.fp16 is FP16Compressor
    assert issubclass(Compression.bf16, Compressor)
    for method in (Compressor.compress, lambda tensor: Compressor.decompress(tensor, None)):
        with pytest.raises(NotImplementedError):
            method(torch.ones(1))


def test_allreduce(hvd):
    everyone = [torch.arange(12.0, dtype=torch.float64).reshape(3, 4) * (rank + 1) for rank in range(hvd.size())]
    mine = everyone[hvd.rank()].requires_grad_()
    total = hvd.allreduce(mine, op=hvd.Sum, compression=EveryOther, name="every other")
    assert torch.equal(total, masked(sum(everyone)))
    total.sum().backward()
    assert torch.equal(mine.grad, masked(torch.full((3, 4), float(hvd.size()), dtype=torch.float64)))
    assert_close([hvd.allreduce(mine, compression=Scaled(1 / 3))], [sum(everyone) / hvd.size()], 1e-7)
    first, second = hvd.grouped_allreduce([mine, 2 * mine], op=hvd.Sum, compression=EveryOther)
    assert torch.equal(first, masked(sum(everyone)))
    assert torch.equal(second, 2 * masked(sum(everyone)))


def test_allreduce_of_arrays(hvd):
    class Halves(Compressor):
        @staticmethod
        def compress(tensor):
            return tensor.astype(np.float32), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tensor.astype(ctx)

    out = hvd.allreduce(np.full(3, 1.0 + hvd.rank()), op=hvd.Sum, compression=Halves)
    assert out.dtype == np.float64
    assert out.tolist() == [sum(range(1, hvd.size() + 1))] * 3


@pytest.mark.parametrize("compression", [EveryOther, Scaled(0.25)], ids=["class", "object"])
def test_distributed_optimizer(hvd, compression):
    model, twin = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), compression=compression)
    twin_optimizer = sgd(twin.parameters())
    for step in range(3):
        whole = whole_batch(step, hvd.size())
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        mse(model, *part_of(whole, hvd.rank())).backward()
        mse(twin, *whole).backward()
        for param in twin.parameters():
            param.grad = masked(param.grad) if compression is EveryOther else param.grad
        assert_close(grads_of(model), grads_of(twin), 1e-12 if compression is EveryOther else 1e-6)
        assert_same_bits(grads_of(model))
        optimizer.step()
        twin_optimizer.step()
    assert_close(list(model.parameters()), list(twin.parameters()), 1e-12 if compression is EveryOther else 1e-6)


def test_a_size_that_depends_on_the_values_is_refused(hvd):
    model = torch.nn.Linear(FEATURES, 2)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), compression=Nonzero)
    with pytest.raises(ValueError, match=r"must not depend on the values") as caught:
        mse_of_one(model).backward()
    assert "torch.float32 [0] of zeros" in str(caught.value)
    del optimizer
    MPI.COMM_WORLD.Barrier()


def mse_of_one(model):
    return model(torch.ones(1, FEATURES)).square().sum()
