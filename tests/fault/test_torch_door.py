"""Whole scripts that use torch.distributed on backend "hvdlite", as users start them."""

import pytest
from support.installed import need
from support.job import run_job, survivors_stay
from support.torchrun import reserved_port

need("torch")

SCRIPT = """
    import os
    import tempfile
    import torch
    import torch.distributed as dist
    import hvdlite
    import hvdlite.torch.distributed

    def listening():
        inodes = set()
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            if os.path.exists(table):
                inodes |= {line.split()[9] for line in open(table).readlines()[1:] if line.split()[3] == "0A"}
        mine = set()
        for entry in os.listdir("/proc/self/fd"):
            try:
                mine.add(os.readlink(f"/proc/self/fd/{entry}"))
            except OSError:
                pass
        return {inode for inode in inodes if f"socket:[{inode}]" in mine}

    tempfile.tempdir = os.environ["HVDTEST_FOLDER"]
    if os.environ.get("HVDTEST_INIT_FIRST"):
        hvdlite.init()
        before = listening()
    dist.init_process_group("hvdlite")
    if os.environ.get("HVDTEST_INIT_FIRST"):
        assert listening() <= before, "a port was opened"
    for life in range(2):
        tensor = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(tensor)
        gloo = dist.new_group(backend="gloo")
        dist.barrier(group=gloo)
        dist.destroy_process_group()
        assert hvdlite.is_initialized()
        if life == 0:
            dist.init_process_group("hvdlite", init_method="hvdlite://")
    print(f"rank {hvdlite.rank()} of {hvdlite.size()}: {tensor.item()}")
"""


def test_a_fresh_process_from_the_import_to_the_end():
    """The door opens without torch's compiler, whose import takes as long as torch's own, and says that init is missing. The
    end of Python finds an optimizer in use. (In warm ranks torch is imported before and stays at the end.)
    """
    job = run_job(
        """
        import sys, torch
        before = "torch._dynamo" in sys.modules
        import hvdlite.torch as hvd
        assert "SyncBatchNorm" in dir(hvd)
        assert ("torch._dynamo" in sys.modules) == before
        assert hvd.sync_batch_norm.SyncBatchNorm is hvd.SyncBatchNorm
        assert isinstance(hvd.SyncBatchNorm(3), torch.nn.Module)
        from hvdlite.torch import SyncBatchNorm
        assert SyncBatchNorm is hvd.SyncBatchNorm
        assert not hasattr(hvd, "NoSuchLayer")
        model = torch.nn.Linear(2, 1)
        try:
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
        except ValueError as error:
            print(error)
        hvd.init()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        model(torch.ones(1, 2)).sum().backward()  # nobody waits for its gradients
        """,
        1,
        fresh=True,
    )
    assert job.returncode == 0, job.report()
    assert "hvdlite has not been initialized" in job.stdout[0], job.report()
    assert not job.stderr[0], job.report()


@pytest.mark.parametrize("first", ["", "1"])
def test_a_script_needs_nothing_but_mpirun(tmp_path, first):
    job = run_job(SCRIPT, 2, env={"HVDTEST_INIT_FIRST": first, "HVDTEST_FOLDER": str(tmp_path)})
    assert job.returncode == 0, job.report()
    assert [job.stdout[rank].split("\n")[0] for rank in (0, 1)] == [f"rank {rank} of 2: 3.0" for rank in (0, 1)], job.report()
    assert not list(tmp_path.glob("**/hvdlite-store-*")), "the store's file was left behind"


def test_one_process_without_mpirun_is_a_group_of_one(tmp_path):
    job = run_job(SCRIPT, 1, env={"HVDTEST_FOLDER": str(tmp_path)})
    assert job.returncode == 0, job.report()
    assert "rank 0 of 1: 1.0" in job.stdout[0]


def test_variables_that_are_set_are_followed():
    """As torchrun sets them: torch's own store, whose ranks must be MPI's."""
    script = """
        import os
        import torch
        import torch.distributed as dist
        import hvdlite.torch.distributed

        rank = int(os.environ["OMPI_COMM_WORLD_RANK"]) if "OMPI_COMM_WORLD_RANK" in os.environ else int(os.environ["PMI_RANK"])
        os.environ.update(RANK=str((rank + int(os.environ["HVDTEST_SHIFT"])) % 2), WORLD_SIZE="2", MASTER_ADDR="localhost")
        os.environ["MASTER_PORT"] = os.environ["HVDTEST_PORT"]
        dist.init_process_group("hvdlite")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        print(f"sum {tensor.item()}, rank {dist.get_rank()}")
        dist.destroy_process_group()
    """
    for shift in ("0", "1"):
        with reserved_port() as port:
            job = run_job(script, 2, env={"HVDTEST_SHIFT": shift, "HVDTEST_PORT": port}, mpirun_args=survivors_stay())
        if shift == "0":
            assert job.returncode == 0, job.report()
            assert all(f"sum 2.0, rank {rank}" in job.stdout[rank] for rank in (0, 1)), job.report()
        else:
            assert job.returncode != 0
            assert "was given rank 1 and world size 2, but this is rank 0 of 2" in job.stderr[0], job.report()


PROGRAM = """
import torch
import torch.distributed as dist
import hvdlite.torch.distributed

dist.init_process_group("hvdlite")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.item()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_under_mpirun_starts_the_ranks(tmp_path):
    """Each rank of MPI starts one of torchrun's, which takes MPI's variables over from it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    script = """
        import os
        import subprocess
        import sys

        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", rank]
        launch += ["--master-addr", "localhost", "--master-port", os.environ["HVDTEST_PORT"]]
        sys.exit(subprocess.run([*launch, os.environ["HVDTEST_PROGRAM"]]).returncode)
    """
    with reserved_port() as port:
        job = run_job(script, 2, env={"HVDTEST_PROGRAM": str(tmp_path / "program.py"), "HVDTEST_PORT": port})
    assert job.returncode == 0, job.report()
    assert all(f"rank {rank} of 2: 3.0" in job.stdout[rank] for rank in (0, 1)), job.report()


def test_after_shutdown_each_function_says_so():
    result = run_job(
        """
        import torch
        import torch.distributed as dist
        import hvdlite
        import hvdlite.torch.distributed
        dist.init_process_group("hvdlite")
        dist.barrier()
        hvdlite.shutdown()
        other = 1 - dist.get_rank()
        for call in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0), lambda tensor: dist.send(tensor, other)):
            try:
                call(torch.ones(3))
            except hvdlite.NotInitializedError as error:
                print("hvdlite was shut down in this process" in str(error), flush=True)
        """,
        2,
    )
    assert result.returncode == 0, result.report()
    assert [result.stdout[rank].split() for rank in range(2)] == [["True"] * 3] * 2, result.report()


def test_a_rank_that_raises_is_named_by_the_others():
    script = """
        import torch
        import torch.distributed as dist
        import hvdlite.torch.distributed

        dist.init_process_group("hvdlite")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        if dist.get_rank() == 1:
            raise ValueError("no such file: data.bin")
        model(torch.ones(2, 4)).sum().backward()
    """
    job = run_job(script, 2)
    assert job.returncode != 0
    assert not job.timed_out
    assert "raised ValueError: no such file: data.bin" in job.stderr[0], job.report()
