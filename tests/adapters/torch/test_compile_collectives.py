"""Collectives inside compiled functions."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from reference import assert_close, mse, network, part_of, whole_batch
from support.world import WORLD
from torch.nn.parallel import DistributedDataParallel

RANKS = (2,)
MORE_RANKS = (1,)
RANK, SIZE = WORLD.rank, WORLD.size
SUM = sum(rank + 1.0 for rank in range(SIZE))


def test_collectives_of_hvdlite(hvd):
    @torch.compile(backend="aot_eager")
    def steps(x):
        y = hvd.allreduce(2 * x, op=hvd.Sum, name="in.compiled")
        return hvd.allgather(y + x, name="gather.in.compiled") * 3

    for turn in range(3):
        x = torch.full((2,), RANK + 1.0 + turn, requires_grad=True)
        total = 2 * (SUM + SIZE * turn)
        wanted = torch.cat([torch.full((2,), 3 * (total + rank + 1 + turn)) for rank in range(SIZE)])
        out = steps(x)
        assert_close([out.detach()], [wanted])
        out.sum().backward()
        assert x.grad.unique().numel() == 1


def test_ddp_and_functional_collectives(hvd):
    import hvdlite.torch.distributed

    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    model, twin = torch.compile(DistributedDataParallel(network()), backend="aot_eager"), network()
    for step in range(3):
        for each in (model, twin):
            each.zero_grad()
        mse(model, *part_of(whole_batch(step, SIZE), RANK)).backward()
        mse(twin, *whole_batch(step, SIZE)).backward()
        assert_close([param.grad for param in model.parameters()], [param.grad for param in twin.parameters()])

    @torch.compile(backend="aot_eager", fullgraph=True)
    def summed(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    for turn in range(3):
        assert_close([summed(torch.full((3,), RANK + 1.0 + turn))], [torch.full((3,), 2 * (SUM + SIZE * turn) + 1)])
    dist.destroy_process_group()
