"""torch.distributed on ranks of several hosts: they meet in a store across them, and groups cross them too."""

import pytest
from support.hosts import emulated_hosts
from support.installed import need

need("torch")

PROGRAM = """
    import torch
    import torch.distributed as dist
    import hvdlite
    import hvdlite.torch.distributed

    dist.init_process_group("hvdlite")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4) * rank).sum().backward()
    group = dist.new_group([1, 2])
    mine = torch.tensor([10.0 ** rank])
    if rank:
        dist.all_reduce(mine, group=group)
    dist.barrier()
    print(hvdlite.cross_rank(), mine.item(), model.module.weight.grad[0, 0].item(), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_group_across_hosts():
    with emulated_hosts(2) as hosts:
        job = hosts.run([2, 1], PROGRAM)
    assert job.returncode == 0, job.report()
    assert [job.stdout[rank].strip() for rank in range(3)] == ["0 1.0 1.0", "0 110.0 1.0", "1 110.0 1.0"], job.report()
