"""Ranks are lost in elastic training, at any moment, and the others go on: MPI has fault tolerance here (ULFM)."""

import pytest
from support.hosts import ULFM_OPTIONS, emulated_hosts
from support.job import JobResult, launcher_has_ulfm, run_job

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
ULFM = ("--with-ft", "ulfm")

BEGINNING = """
    import gc, os, signal, sys
    import numpy as np
    import hvdlite as hvd

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    hvd.init()
    FIRST = hvd.rank()  # this process's rank at the beginning

    def say(*words):
        print(*words, hvd.rank(), hvd.size(), flush=True)
"""

AT_ANY_MOMENT = """
    from hvdlite import elastic

    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, seen=[])
    gc.disable()  # what refers to the engine that has failed must go by itself
    files, handles = [], []

    def note():
        say("reset at", state.step)
        files.append(len(os.listdir("/proc/self/fd")))
        handles.append(elastic.recovery.RUNTIME.pool.comm.py2f())  # Open MPI numbers the communicators that there are

    state.register_reset_callbacks([note])
    joined, init = [], elastic.recovery.basics.init

    def init_and_die(*arguments):
        if FIRST == 4 and not joined:
            die()  # while the others make the next job
        joined.append(1)
        init(*arguments)

    elastic.recovery.basics.init = init_and_die

    @elastic.run
    def train(state):
        while state.step < 9:
            if (FIRST, state.step) == (0, 4):
                die()
            mean = hvd.allreduce(np.float64(state.step + hvd.rank() - (hvd.size() - 1) / 2), name="step")
            state.seen.append(float(mean))
            state.step += 1
            if state.step % 3 == 0:
                state.commit()
        if FIRST == 3:
            die()  # the others wait at the end of the function
        return state.seen

    assert train(state) == [float(step) for step in range(9)], state.seen
    say("done", elastic.recovery.RUNTIME.recoveries)
    assert files[1] <= files[0], files  # the first engine has closed its files, and so has freed its memory
    assert handles[1] == handles[0] + 1, handles  # the last recovery has kept no communicator but that of the survivors
    if FIRST == 1:
        die()  # the other waits in its exit handler
"""


def said(result, rank):
    return [line for line in result.stdout[rank].splitlines() if line]


def test_ranks_may_be_lost_at_any_moment():
    result = run_job(BEGINNING + AT_ANY_MOMENT, 5, mpirun_args=ULFM)
    assert result.returncode == 0, result.report()
    # The last commit was that of step 3. Rank 4 was lost in the first recovery, which began anew; rank 3 at the end, where the
    # state was that of step 9. Ranks keep their order.
    assert said(result, 1) == ["reset at 3 0 3", "reset at 9 0 2", "done 3 0 2"], result.report()
    assert said(result, 2) == ["reset at 3 1 3", "reset at 9 1 2", "done 3 1 2"], result.report()
    assert said(result, 0) == said(result, 4) == [], result.report()
    assert "2 of 3 ranks go on after this: rank 2 (host" in result.stderr[1], result.report()


TWICE = """
    from hvdlite import elastic

    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)

    @elastic.run
    def train(state):
        while state.step < 9:
            if (FIRST, state.step) in ((1, 3), (2, 5)):
                die()
            hvd.allreduce(np.ones(2) * FIRST, name="step")
            state.step += 1
            state.commit()

    try:
        train(state)
    except hvd.UnsupportedError as error:
        say(state.step, error)
"""


def test_the_ranks_change_at_most_so_many_times():
    result = run_job(BEGINNING + TWICE, 4, mpirun_args=ULFM, env={"HVDLITE_ELASTIC_RESET_LIMIT": "1"})
    for rank in (0, 3):
        assert result.stdout[rank].startswith("5 "), result.report()
        assert "the job has changed its ranks 1 times, and HVDLITE_ELASTIC_RESET_LIMIT=1" in result.stdout[rank]


IN_BACKWARD = """
    import torch
    import hvdlite.torch as hvd

    torch.manual_seed(5)
    torch.set_num_threads(1)
    inputs, targets = torch.randn(96, 8), torch.randn(96, 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), groups=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    sampler = hvd.elastic.ElasticSampler(inputs, seed=1)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, batch=0, used=[])
    deaths = {2: (0, 5), 1: (2, 1)}  # by first rank: epoch and batch

    def die_in_backward(_):
        if deaths.get(FIRST) == (state.epoch, state.batch):
            die()  # one bucket is reduced already, and the others' next one waits for this rank

    next(iter(model[0].parameters())).register_hook(die_in_backward)

    @hvd.elastic.run
    def train(state):
        while state.epoch < 4:
            for state.batch, index in enumerate(torch.utils.data.DataLoader(sampler=sampler, dataset=range(96), batch_size=4)):
                torch.nn.functional.mse_loss(model(inputs[index]), targets[index]).backward()
                optimizer.step()
                optimizer.zero_grad()  # behind the step: what a lost step has left must not be added to
                sampler.record_batch(state.batch, 4)
                state.used.append((state.epoch, *index.tolist()))
                if state.batch % 2:
                    state.commit()
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            scheduler.step()
            state.commit()
        return state.used

    used = train(state)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(everyone, everyone[:1].expand_as(everyone))
    assert scheduler.last_epoch == 4 and optimizer.param_groups[0]["lr"] == 0.1 * 0.1**2
    mine = [(epoch, index) for epoch, *indices in used for index in indices]
    say("equal", sorted(set(sum(hvd.allgather_object([index for epoch, index in mine if epoch == 3]), []))) == list(range(96)))
"""


def check_that_ranks_0_and_3_go_on(result: JobResult) -> None:
    assert result.returncode == 0, result.report()
    assert said(result, 0) == ["equal True 0 2"], result.report()
    assert said(result, 3) == ["equal True 1 2"], result.report()


def test_an_optimizer_goes_on_after_a_death_in_backward():
    check_that_ranks_0_and_3_go_on(run_job(BEGINNING + IN_BACKWARD, 4, mpirun_args=ULFM))


@pytest.mark.slow
def test_an_optimizer_goes_on_after_a_death_on_each_of_two_hosts():
    with emulated_hosts(2) as hosts:
        check_that_ranks_0_and_3_go_on(hosts.run(2, BEGINNING + IN_BACKWARD, mpirun_args=ULFM_OPTIONS))


ENDS = """
    from hvdlite import UnsupportedError, elastic

    @elastic.run
    def train(state):
        hvd.allreduce(np.ones(2), name="a")
        if FIRST == 1:
            raise ValueError("bad batch 17")
        hvd.allreduce(np.ones(2), name="b")

    try:
        train(elastic.ObjectState(hvd.broadcast_object, hvd.rank))
    except UnsupportedError as error:
        print(error, flush=True)
        sys.exit(3)
"""


def test_an_exception_ends_the_job():
    result = run_job(BEGINNING + ENDS, 3, mpirun_args=ULFM)
    assert result.returncode != 0, result.report()
    for rank in (0, 2):
        assert "raised ValueError: bad batch 17" in result.stdout[rank], result.report()
        assert "which would come again on other ranks" in result.stdout[rank], result.report()


AT_EXIT = """
    from mpi4py import MPI
    from hvdlite.shrink import shrink_at_exit

    first = hvd.broadcast_object(os.getpid())
    hvd.shutdown()  # nothing calls MPI from here on
    if FIRST == 0:
        signal.pause()
    os.kill(first, signal.SIGKILL)
    print("left", shrink_at_exit(MPI.COMM_WORLD, 60.0).size, flush=True)
    os._exit(0)
"""


def test_mpi_learns_of_a_loss_in_the_exit_handler():
    result = run_job(BEGINNING + AT_EXIT, 2, mpirun_args=ULFM)
    assert said(result, 1) == ["left 1"], result.report()


AFTER_TRAINING = """
    from hvdlite import elastic
    from mpi4py import MPI

    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    elastic.run(lambda state: hvd.allreduce(np.ones(1), name="step"))(state)
    MPI.COMM_WORLD.Barrier()
    if FIRST == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    hvd.allreduce(np.ones(1), name="after")
"""


def test_a_rank_that_sigterm_ends_after_the_training_has_last_words():
    result = run_job(BEGINNING + AFTER_TRAINING, 2, mpirun_args=ULFM)
    assert "SIGTERM ends this rank" in result.stderr[1], result.report()
