"""Tensors that cross narrower than they are: rounded once on the way out, bit by bit what torch's casts give."""

import pytest
import torch
from kinds import TORCH
from support.world import WORLD

if TORCH is None:
    pytest.skip("needs torch that can use the GPU", allow_module_level=True)

STAND_INS = ("fakes", "host")
DEVICE = TORCH.device
RANK, SIZE = WORLD.rank, WORLD.size
WIRES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Around the 16 bytes of one access, a block of threads, and a fusion buffer's alignment.
COUNTS = (1, 3, 4, 7, 8, 9, 127, 128, 129, 1023, 1025, 4096, 65_537)


def values(count, dtype, rank=RANK):
    """Normal numbers of all magnitudes that float16 has, and some that it has not."""
    generator = torch.Generator().manual_seed(17 + rank)
    drawn = torch.randn(count, generator=generator, dtype=torch.float64)
    exponents = torch.randint(-16, 10, (count,), generator=generator)
    return torch.ldexp(drawn, exponents).to(dtype)


def bits_of(tensor):
    return tensor.cpu().contiguous().view(torch.uint8)


def travelled(tensor, wire, prescale=1.0):
    """What arrives: scaled as float32 (float64 as it is), and rounded to the wire's type."""
    return (tensor * prescale).to(wire)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_one_rank_sees_the_rounding_of_the_cast(hvd, wire, dtype, offset):
    """Alone in a process set, a rank gets its own values back, rounded."""
    alone = [hvd.add_process_set([rank]) for rank in range(SIZE)] if SIZE > 1 else [hvd.global_process_set]
    for count in COUNTS:
        mine = torch.cat([torch.zeros(offset, dtype=dtype), values(count, dtype)]).to(DEVICE)[offset:]
        compression = getattr(hvd.Compression, wire)
        out = hvd.allreduce(mine, op=hvd.Sum, compression=compression, process_set=alone[RANK], name=f"{wire}.{dtype}.{count}")
        assert out.dtype is dtype
        wanted = travelled(mine.cpu(), WIRES[wire]).to(dtype)
        assert torch.equal(bits_of(out), bits_of(wanted)), f"{count} elements"
    for process_set in alone if SIZE > 1 else []:
        hvd.remove_process_set(process_set)


@pytest.mark.parametrize("wire", WIRES)
def test_infinities_and_nans_arrive(hvd, wire):
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 1e30, -0.0, 1e-40, 65519.0, 65520.0], device=DEVICE)
    out = hvd.allreduce(special, op=hvd.Max, compression=getattr(hvd.Compression, wire), name=f"special.{wire}").cpu()
    wanted = special.cpu().to(WIRES[wire]).float()
    assert torch.equal(out.isnan() | out.isinf(), wanted.isnan() | wanted.isinf())
    finite = wanted.isfinite()
    assert torch.equal(out[finite], wanted[finite])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_of_narrow_values(hvd, wire, dtype):
    """Within the roundings that there may be: one for each value, one for each addition."""
    for count in COUNTS:
        everyone = [values(count, dtype, rank).clamp(-1000, 1000) for rank in range(SIZE)]
        out = hvd.allreduce(
            everyone[RANK].to(DEVICE),
            op=hvd.Sum,
            compression=getattr(hvd.Compression, wire),
            name=f"sum.{wire}.{dtype}.{count}",
        )
        exact = sum(tensor.double() for tensor in everyone)
        size = sum(tensor.double().abs() for tensor in everyone)
        unit = torch.finfo(WIRES[wire]).eps / 2
        bound = (SIZE + 2) * unit * size + SIZE * 6e-8  # float16's smallest step, below its normal numbers
        assert (out.cpu().double() - exact).abs().le(bound).all(), f"{count} elements"


def test_what_is_narrow_already_stays_so(hvd):
    mine = torch.arange(9, dtype=torch.float16, device=DEVICE) + RANK
    out = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16, name="narrow")
    assert out.dtype is torch.float16
    assert out.tolist() == [SIZE * place + sum(range(SIZE)) for place in range(9)]
