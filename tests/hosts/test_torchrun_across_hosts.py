"""A torchrun on each of two hosts: their processes are one MPI job, and each host has its own local ranks."""

import pytest
from support.hosts import NETWORK, emulated_hosts
from support.installed import need
from support.torchrun import outputs_of, torchrun

need("torch")

PROGRAM = """
import os
import numpy as np
import torch.distributed as dist
import hvdlite as hvd
import hvdlite.torch.distributed

dist.init_process_group("hvdlite")
assert (hvd.local_rank(), hvd.local_size()) == (int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
assert (hvd.cross_rank(), hvd.cross_size()) == (int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"]))
assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
total = hvd.allreduce(np.full(1 << 18, 10.0 ** hvd.rank()), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {set(total.tolist())}", flush=True)
dist.destroy_process_group()
"""
MPI = {"OMPI_MCA_btl_tcp_if_include": NETWORK, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_osc": "^ucx"}


@pytest.mark.slow
def test_two_hosts(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "h0", "--master-port", "29500", str(program)]
    with emulated_hosts(2) as hosts:
        started = [torchrun("--node-rank", str(k), *job, folder=tmp_path, env=MPI, host=(hosts, k)) for k in (0, 1)]
        outputs = outputs_of(started)
    for rank in range(4):
        assert f"rank {rank} of 4: {{1111.0}}" in outputs[rank // 2], outputs
