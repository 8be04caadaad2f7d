"""The core functions with torch tensors, without the torch door: layouts, dtypes, gradients, in place."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD

torch = pytest.importorskip("torch")

RANK, SIZE = WORLD.rank, WORLD.size
RANKS = (2, 3)
MORE_RANKS = (1,)
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
DTYPES += [torch.float32, torch.float64, torch.complex64, torch.complex128]
DTYPES += [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]


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
    """Sum and Max are any, Min and Product are all."""
    flags = torch.tensor([RANK == 0, RANK > 0, True, False])
    for op in (hvd.Sum, hvd.Max):
        assert hvd.allreduce(flags, op=op).tolist() == [True, SIZE > 1, True, False]
    for op in (hvd.Min, hvd.Product):
        assert hvd.allreduce(flags, op=op).tolist() == [SIZE == 1, False, True, False]
    assert hvd.allgather(flags[:1]).tolist() == [rank == 0 for rank in range(SIZE)]
    assert hvd.broadcast(flags, SIZE - 1).tolist() == [SIZE == 1, SIZE > 1, True, False]
    assert hvd.alltoall(flags[:1].repeat(SIZE)).tolist() == [rank == 0 for rank in range(SIZE)]
    assert hvd.reducescatter(flags[2:3].repeat(SIZE), op=hvd.Sum).tolist() == [True]
    with pytest.raises(NotImplementedError, match=r"Average of bool is not supported: use Max \(any\) or Min \(all\)"):
        hvd.allreduce(flags)


def complex_values(rank, shape, dtype=torch.complex64):
    return torch.complex(mine(shape, rank=rank), mine(shape, salt=3, rank=rank + 1) / 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex(hvd, dtype):
    """Sums and averages of pairs of reals; conjugated and transposed views are what they look like."""
    shape = (2 * SIZE, 3)
    everyone = [complex_values(rank, shape, dtype) for rank in range(SIZE)]
    own, total = everyone[RANK], sum(everyone)
    for _ in REPEATS:
        assert torch.equal(hvd.allreduce(own, op=hvd.Sum, name="z"), total)
        assert torch.equal(hvd.allreduce(own.mH, op=hvd.Sum), total.mH)
        torch.testing.assert_close(hvd.allreduce(own, prescale_factor=2.0, postscale_factor=0.5), total / SIZE)
        assert torch.equal(hvd.grouped_allreduce([own, own[0, 0]], op=hvd.Sum)[1], total[0, 0])
        view = own.clone().conj()
        assert hvd.allreduce_(view, op=hvd.Sum) is view
        assert torch.equal(view, total.conj())
        assert torch.equal(view.conj(), total), "the memory of a conjugated view"
        assert torch.equal(hvd.broadcast_(own.clone().t(), SIZE - 1), everyone[-1].t())
        assert torch.equal(hvd.allgather(own.conj()), torch.cat(everyone).conj())
        parts = [tensor[2 * RANK : 2 * RANK + 2] for tensor in everyone]
        assert torch.equal(hvd.alltoall(own.conj()), torch.cat(parts).conj())
        assert torch.equal(hvd.reducescatter(own, op=hvd.Sum), total[2 * RANK : 2 * RANK + 2])
    for op in ("Min", "Max", "Product"):
        with pytest.raises(NotImplementedError, match=rf"{op} of {str(dtype)[6:]} .*complex numbers have Sum and Average only"):
            hvd.allreduce(own, op=getattr(hvd, op))


def strided(tensor):
    """The tensor as every second element of a larger one."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


# How the same values may lie in memory; all ranks have the same layout.
LAYOUTS = {
    "row-major": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "strided": strided,
    "offset": lambda tensor: torch.cat([torch.zeros(1, *tensor.shape[1:]), tensor])[1:],
    "narrowed": lambda tensor: torch.cat([tensor, tensor], 1)[:, : tensor.shape[1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_layouts_in_every_collective(hvd, layout, rows):
    shape = (rows * SIZE, 3, 2, 4)
    make = LAYOUTS[layout]
    everyone = [mine(shape, rank=rank) for rank in range(SIZE)]
    total = summed(shape)

    def own():
        return make(everyone[RANK].clone())

    for _ in REPEATS:
        assert torch.equal(hvd.allreduce(own(), op=hvd.Sum), total)
        tensors = [own(), own().double()]
        strides = [tensor.stride() for tensor in tensors]
        for tensor, out in zip(tensors, hvd.grouped_allreduce_(tensors, op=hvd.Sum), strict=True):
            assert out is tensor
            assert torch.equal(out.float(), total)
        assert [tensor.stride() for tensor in tensors] == strides
        target = own()
        stride, address = target.stride(), target.data_ptr()
        assert hvd.synchronize(hvd.broadcast_async_(target, SIZE - 1)) is target
        assert (target.stride(), target.data_ptr()) == (stride, address)
        assert torch.equal(target, everyone[-1])
        assert torch.equal(hvd.broadcast(own(), 0), everyone[0])
        assert torch.equal(hvd.allgather(own()), torch.cat(everyone))
        parts = [tensor[rows * RANK : rows * (RANK + 1)] for tensor in everyone]
        assert torch.equal(hvd.alltoall(own()), torch.cat(parts))
        assert torch.equal(hvd.reducescatter(own(), op=hvd.Sum), total[rows * RANK : rows * (RANK + 1)])
    assert torch.equal(own(), everyone[RANK])


def test_numbers_in_every_collective_that_takes_them(hvd):
    """Tensors without dimensions, and without elements."""
    number = torch.tensor(RANK + 1.0)
    total = torch.tensor(sum(range(1, SIZE + 1)), dtype=torch.float32)
    for _ in REPEATS:
        assert torch.equal(hvd.allreduce(number, op=hvd.Sum), total)
        assert [out.shape for out in hvd.grouped_allreduce([number, torch.empty(0, 3)], op=hvd.Sum)] == [(), (0, 3)]
        assert torch.equal(hvd.broadcast(number, SIZE - 1), torch.tensor(float(SIZE)))
        target = number.clone()
        assert hvd.broadcast_(target, 0) is target
        assert target.item() == 1.0
        assert hvd.alltoall(torch.empty(0, 2), [0] * SIZE)[0].shape == (0, 2)
        assert hvd.reducescatter(torch.empty(0, 2)).shape == (0, 2)
        assert [out.shape for out in hvd.grouped_allgather([torch.empty(0), torch.empty(2, 0)])] == [(0,), (2 * SIZE, 0)]


def test_in_place_writes_the_view_and_nothing_around_it(hvd):
    whole = torch.full((4, 6), -1.0)
    view = whole[1:3, ::2]
    view.copy_(mine((2, 3)))
    hvd.allreduce_(view, op=hvd.Sum)
    wanted = torch.full((4, 6), -1.0)
    wanted[1:3, ::2] = summed((2, 3))
    assert torch.equal(whole, wanted)


def test_expanded_tensors(hvd):
    """They can be sent, but not be written to: several of their elements are one."""
    row = mine((1, 3))
    assert torch.equal(hvd.allreduce(row.expand(4, 3), op=hvd.Sum), summed((1, 3)).expand(4, 3))
    assert hvd.allgather(row.expand(2, 3)).shape == (2 * SIZE, 3)
    for call in (hvd.allreduce_, lambda tensor: hvd.broadcast_(tensor, 0)):
        with pytest.raises(ValueError, match=r"cannot write to an expanded torch tensor \(shape \[4, 3\], strides \[0, 1\]"):
            call(row.expand(4, 3))


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
    with pytest.raises(NotImplementedError, match="on meta, and hvdlite sends tensors in host memory and on NVIDIA GPUs only"):
        hvd.allreduce(torch.ones(1, device="meta"))
