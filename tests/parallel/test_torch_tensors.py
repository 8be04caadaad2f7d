"""The core functions with torch tensors, without the torch door: layouts, dtypes, gradients, in place."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD

torch = pytest.importorskip("torch")

RANK, SIZE = WORLD.rank, WORLD.size
RANKS = (1, 2, 3)
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
DTYPES += [torch.float32, torch.float64]


def mine(shape, dtype=torch.float32, salt=0, rank=RANK):
    count = int(np.prod(shape))
    return ((torch.arange(count) * 3 + rank * 5 + salt) % 11).to(dtype).reshape(shape)


def summed(shape, dtype=torch.float32, salt=0):
    return sum(mine(shape, torch.float64, salt, rank) for rank in range(SIZE)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(hvd, dtype):
    for repeat in REPEATS:
        out = hvd.allreduce(mine((5, 3), dtype, repeat), name=f"t.{dtype}", op=hvd.Sum)
        assert out.dtype is dtype
        assert torch.equal(out, summed((5, 3), dtype, repeat))
        gathered = hvd.allgather(mine((RANK + 1, 2), dtype, repeat))
        assert torch.equal(gathered, torch.cat([mine((r + 1, 2), dtype, repeat, r) for r in range(SIZE)]))
        assert torch.equal(hvd.broadcast(mine((4,), dtype), SIZE - 1), mine((4,), dtype, rank=SIZE - 1))
        assert hvd.reducescatter(torch.ones(SIZE, dtype=dtype), op=hvd.Sum).tolist() == [SIZE]


def test_bool(hvd):
    flags = torch.tensor([RANK == 0, RANK > 0, True, False])
    assert hvd.allreduce(flags, op=hvd.Max).tolist() == [True, SIZE > 1, True, False]
    assert hvd.allgather(flags[:1]).tolist() == [rank == 0 for rank in range(SIZE)]


def test_in_place_and_zero_dimensional(hvd):
    tensor = mine((7,))
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert torch.equal(tensor, summed((7,)))
    number = torch.tensor(float(RANK))
    hvd.allreduce_(number, op=hvd.Max)
    assert number.shape == ()
    assert number.item() == SIZE - 1


def test_channels_last_is_used_as_it_is(hvd):
    shape = (2, 3, 4, 5)
    for repeat in REPEATS:
        tensor = mine(shape, salt=repeat).to(memory_format=torch.channels_last)
        out = hvd.allreduce(tensor, name="cl", op=hvd.Sum)
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(out, summed(shape, salt=repeat))
        hvd.broadcast_(tensor, 0, name="cl")
        assert torch.equal(tensor, mine(shape, salt=repeat, rank=0))
        assert torch.equal(hvd.allgather(tensor)[:2], mine(shape, salt=repeat, rank=0))


def test_other_layouts(hvd):
    tensor = mine((6, 4)).t()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert torch.equal(tensor, summed((6, 4)).t())
    strided = mine((8,))[::2]
    hvd.broadcast_(strided, SIZE - 1)
    assert torch.equal(strided, mine((8,), rank=SIZE - 1)[::2])


def test_layouts_that_differ_between_ranks_are_told(hvd):
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    tensor = mine((2, 3, 4, 5))
    if RANK == 0:
        tensor = tensor.to(memory_format=torch.channels_last)
    with pytest.raises(hvd.MismatchError, match="memory layout differs: layout 2 on rank 0, row-major on rank"):
        hvd.allreduce(tensor, name="layouts")


def test_parameters(hvd):
    parameter = torch.nn.Parameter(mine((4,)))
    hvd.broadcast_(parameter, SIZE - 1)
    assert torch.equal(parameter.detach(), mine((4,), rank=SIZE - 1))
    assert not hvd.allreduce(parameter).requires_grad
    groups = hvd.grouped_allreduce([parameter, mine((2,))], op=hvd.Sum)
    assert torch.equal(groups[1], summed((2,)))


def test_splits_and_empty_tensors(hvd):
    out, received = hvd.alltoall(mine((SIZE, 2)), splits=torch.ones(SIZE, dtype=torch.int32))
    assert torch.equal(out, torch.cat([mine((SIZE, 2), rank=rank)[RANK : RANK + 1] for rank in range(SIZE)]))
    assert received.dtype is torch.int32
    assert received.tolist() == [1] * SIZE
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression(hvd, name):
    out = hvd.allreduce(mine((9,)), op=hvd.Sum, compression=getattr(hvd.Compression, name))
    assert out.dtype is torch.float32
    assert torch.equal(out, summed((9,)))


def test_torch_and_numpy_ranks_can_meet(hvd):
    """Frameworks are this rank's business: the engine sees memory."""
    tensor = torch.ones(5) if RANK % 2 else np.ones(5, np.float32)
    assert hvd.allreduce(tensor, name="meet", op=hvd.Sum).tolist() == [SIZE] * 5


def test_device_tensors_are_refused(hvd):
    with pytest.raises(NotImplementedError, match="GPU tensors come with a later version"):
        hvd.allreduce(torch.ones(1, device="meta"))
