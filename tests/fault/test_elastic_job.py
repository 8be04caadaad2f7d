"""hvd.elastic.Job: ranks are lost in the middle of steps, and the training is that of one process with the whole batches."""

from pathlib import Path

import pytest
import torch
from support.hosts import ULFM_OPTIONS, emulated_hosts
from support.job import JobResult, launcher_has_ulfm, run_job
from support.one_process import TRAIN_ALONE

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")

SCRIPT = """
    import os, signal, sys
    import torch
    import hvdlite.torch as hvd
    from hvdlite import PeerLostError
    from hvdlite.torch.elastic.samples import SeededSamples
    from mpi4py import MPI

    hvd.init()
    FIRST = hvd.rank()  # this process's rank at the beginning
    SAMPLES, BATCH, EPOCHS = 26, 8, 3  # the last batch of an epoch has 2 samples: not one for each rank
    torch.set_num_threads(1)

    class Samples:
        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            x = torch.linspace(-1, 1, 6) * (index + 1) / SAMPLES
            return x + 0.1 * torch.rand(6), x.sum(0, keepdim=True) ** 2  # an augmentation

    def build():
        torch.manual_seed(7 + FIRST)  # rank 0's weights count
        model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    model, optimizer = build()
    model.register_buffer("steps", torch.zeros(1))
    alone = build() if FIRST == 0 else None
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = hvd.elastic.Job(model=model, optimizer=optimizer, scheduler=scheduler, batch_size=BATCH, seed=4)
    resets, outcomes = [], []
    job.register_reset_callbacks([lambda: resets.append((job.position, hvd.rank(), hvd.size()))])

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def in_backward(_):
        if (FIRST, job.position) == (3, 2):
            die()
        if (FIRST, job.position) == (4, 0):
            os.kill(os.getpid(), signal.SIGTERM)  # a planned leave: the step counts

    def after_the_reduction(*_):
        if job.position == 6:  # all have reduced step 6; rank 0 alone applies it, rank 1 hears of a loss before, rank 2 dies
            if FIRST == 2:
                die()
            if FIRST == 1:
                raise PeerLostError("rank 2 is gone")

    next(model.parameters()).register_hook(in_backward)
    optimizer.register_step_pre_hook(after_the_reduction)
    for x, y in job.batches(Samples(), epochs=EPOCHS):
        with job.step() as step:
            model.steps += 1
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.ends_epoch:
                scheduler.step()
        outcomes.append((job.position, step.applied))
        if len(outcomes) == 1:
            MPI.COMM_WORLD.Barrier()  # rank 4 leaves when all have applied the first step
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(everyone, everyone[:1].expand_as(everyone))
    assert model.steps.item() == 12  # what a lost step has changed is as before
    print(hvd.rank(), hvd.size(), resets, scheduler.last_epoch, flush=True)
    print(outcomes, flush=True)
    if FIRST == 0:
        model, optimizer = alone
        train_alone(model, optimizer, lambda epoch: SeededSamples(Samples(), 4, epoch), BATCH, EPOCHS)
        torch.testing.assert_close(flat, torch.cat([p.detach().reshape(-1) for p in model.parameters()]), rtol=1e-4, atol=1e-5)
        print("as one process", flush=True)
"""


def check(result: JobResult) -> None:
    assert result.returncode == 0, result.report()
    # Rank 4 left after step 1. The third step was lost in backward: its batch came again. The seventh counts: rank 0 had
    # applied it before.
    steps = [(position, True) for position in range(1, 13)]
    for rank in (0, 1):
        assert f"{rank} 2 [(1, {rank}, 4), (2, {rank}, 3), (7, {rank}, 2)] 3" in result.stdout[rank], result.report()
    lost = [steps[0], (1, False), steps[1], (2, False)]
    assert f"{[*lost, *steps[2:7], (7, False), *steps[7:]]}" in result.stdout[0], result.report()
    assert f"{[*lost, *steps[2:]]}" in result.stdout[1], result.report()
    assert "left after step 1, because SIGTERM had asked it to" in result.stderr[0], result.report()
    assert "as one process" in result.stdout[0], result.report()


def test_a_training_that_loses_ranks_is_that_of_one_process():
    check(run_job(TRAIN_ALONE + SCRIPT, 5, mpirun_args=("--with-ft", "ulfm")))


@pytest.mark.slow
def test_batches_that_workers_have_loaded_ahead_are_dropped_after_a_loss():
    loop = "job.batches(Samples(), epochs=EPOCHS"
    assert loop in SCRIPT
    with_workers = SCRIPT.replace(loop, f"{loop}, num_workers=1, prefetch_factor=3")
    check(run_job(TRAIN_ALONE + with_workers, 5, mpirun_args=("--with-ft", "ulfm")))


@pytest.mark.slow
def test_a_training_on_two_hosts_loses_all_ranks_of_the_second_one():
    with emulated_hosts(2) as hosts:
        check(hosts.run([2, 3], TRAIN_ALONE + SCRIPT, mpirun_args=ULFM_OPTIONS))


ALL_LEAVE = """
    import os, signal, sys
    import torch
    import hvdlite.torch as hvd
    from mpi4py import MPI

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=sys.argv[1] == "sharded")
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=4, checkpoint=sys.argv[2], save_every=100)
    samples = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randn(40, 1))
    for x, y in job.batches(samples, epochs=1):
        with job.step():
            if job.position == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if job.position == 3:
            MPI.COMM_WORLD.Barrier()  # all have applied the step before one of them leaves
"""


@pytest.mark.parametrize("optimizer", ["whole", "sharded"])
def test_ranks_that_all_have_to_leave_write_the_checkpoint_of_their_last_step(tmp_path, optimizer):
    path = tmp_path / "state.pt"
    result = run_job(ALL_LEAVE, 2, args=[optimizer, str(path)], mpirun_args=("--with-ft", "ulfm"))
    position = torch.load(path, weights_only=False)["position"]
    assert f"SIGTERM has asked this rank to leave, and it leaves after step {position}" in result.stderr[0], result.report()
    # A rank with a sharded optimizer leaves after the next step if it was asked when this one had begun.
    assert position == (4 if optimizer == "sharded" else 3), result.report()


INTERRUPTED = """
    import os, signal, sys
    import torch
    import hvdlite.torch as hvd
    from hvdlite import PeerLostError

    hvd.init()
    FIRST = hvd.rank()
    torch.set_num_threads(1)
    model = torch.nn.Linear(6, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = hvd.elastic.Job(model=model, optimizer=optimizer, scheduler=scheduler, batch_size=6)
    for x, y in job.batches(torch.utils.data.TensorDataset(torch.randn(36, 6), torch.randn(36, 1)), epochs=1):
        with job.step():
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.position == 2 and FIRST == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if job.position == 2 and str(FIRST) in sys.argv[1]:  # a collective of the program could raise this
                raise PeerLostError("rank 2 is gone")
            scheduler.step()
    print(job.position, scheduler.last_epoch, flush=True)
"""


@pytest.mark.parametrize(("interrupted", "scheduled"), [("1", 6), ("0", 6), ("01", 5)])
def test_ranks_whose_step_a_loss_has_interrupted_after_the_optimizer_are_equal(interrupted, scheduled):
    result = run_job(INTERRUPTED, 3, args=[interrupted], mpirun_args=("--with-ft", "ulfm"))
    assert [result.stdout[rank] for rank in (0, 1)] == [f"6 {scheduled}\n"] * 2, result.report()
    said = (
        "the loss of a rank has ended step 3 after optimizer.step(): the rest of the step, such as scheduler.step(), is "
        "left out"
    )
    assert (said in result.stderr[0]) == (scheduled == 5), result.report()


EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_elastic.py"


@pytest.mark.slow
def test_the_example():
    arguments = ["--epochs", "5", "--step-seconds", "0", "--kill", "1:30", "0:60"]
    result = run_job(EXAMPLE, 3, args=arguments, mpirun_args=("--with-ft", "ulfm"))
    assert result.returncode == 0, result.report()
    assert "step 31 is repeated with 2 ranks" in result.stdout[0], result.report()
    assert "rank 2 is now rank 0 of 1, after step 60" in result.stdout[2], result.report()
    last = result.stdout[2].splitlines()[-1]
    assert last.endswith("after 115 steps, with 1 ranks at the end"), result.report()
    assert float(last.split()[2].rstrip("%")) > 90, result.report()
