"""Spares of an elastic job: they wait, and take the places of ranks that are lost or leave."""

import os

import pytest
from support.job import launcher_has_ulfm, run_job
from support.one_process import TRAIN_ALONE

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
ULFM = ("--with-ft", "ulfm")

BEGINNING = """
    import os, signal, sys
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic
    from hvdlite.runtime import RUNTIME

    WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"])  # this process's number in MPI

    def end(number):
        os.kill(os.getpid(), number)

    def say(*words):
        print(*words, hvd.rank(), hvd.size(), hvd.local_rank(), flush=True)

    hvd.init()
    say("init")
"""


def said(result, rank):
    return [line for line in result.stdout[rank].splitlines() if line]


SPARES_JOIN = """
    if WORLD == 2:
        end(signal.SIGKILL)  # a spare that has been called
    if WORLD == 4:
        try:
            hvd.allreduce(np.ones(2), name="step")
        except hvd.NotInitializedError as error:
            assert "this process is a spare of an elastic job" in str(error), error
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, seen=[])
    state.register_reset_callbacks([lambda: say("reset at", state.step)])

    @elastic.run
    def train(state):
        while state.step < 9:
            if (WORLD, state.step) == (1, 3):
                end(signal.SIGKILL)
            if (WORLD, state.step) == (0, 5):
                end(signal.SIGTERM)  # it leaves at the next commit
            mean = hvd.allreduce(np.float64(state.step + hvd.rank() - (hvd.size() - 1) / 2), name="step")
            state.seen.append((float(mean), hvd.size()))
            state.step += 1
            if state.step == 6:
                RUNTIME.communicator.Barrier()  # rank 0 leaves when the other one has the result of this step
            state.commit()
        return state.seen

    assert train(state) == [(float(step), 2) for step in range(9)], state.seen
    say("done")
"""


def test_spares_take_the_places_of_ranks_that_are_lost_or_leave():
    # There must be two ranks at any time, so that it is certain when a spare joins.
    result = run_job(
        BEGINNING + SPARES_JOIN, 5, mpirun_args=ULFM, env={"HVDLITE_ELASTIC_SPARES": "3", "HVDLITE_ELASTIC_MIN_RANKS": "2"}
    )
    assert result.returncode == 0, result.report()
    assert said(result, 0) == ["init 0 2 0", "reset at 3 0 2 0"], result.report()
    assert said(result, 1) == ["init 1 2 1"], result.report()
    assert said(result, 2) == ["init 1 2 1"], result.report()
    # The third process got the lost rank's numbers, and was rank 0 after that had left; the next spare got those of rank 0.
    assert said(result, 3) == ["init 1 2 1", "reset at 6 0 2 0", "done 0 2 0"], result.report()
    assert said(result, 4) == ["init 1 2 0", "done 1 2 1"], result.report()
    assert "ranks left: 1, and HVDLITE_ELASTIC_MIN_RANKS=2 asks for more: they wait for a spare" in result.stderr[0]
    assert "left after a commit, because SIGTERM had asked it to" in result.stderr[3], result.report()


NOT_NEEDED = """
    @elastic.run
    def first(state):
        hvd.allreduce(np.ones(2), name="a")
        return hvd.size()

    @elastic.run
    def second(state):
        return hvd.allreduce(np.float64(hvd.rank()), name="b")

    @elastic.run
    def third(state):
        if WORLD == 1:
            end(signal.SIGKILL)
        hvd.allreduce(np.ones(2), name="c")
        if hvd.size() == 1:
            RUNTIME.pool.comm.Probe()  # waits until the called spare is ready: it will be a rank at the commit
        state.commit()

    @elastic.run
    def fourth(state):
        return hvd.allreduce(np.float64(WORLD), name="d", op=hvd.Sum)

    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank)
    say("first", first(state))
    say("second", second(state))
    say("third", third(state))
    say("fourth", fourth(state))
"""


def test_a_spare_that_is_called_late_passes_what_the_ranks_have_ended():
    result = run_job(BEGINNING + NOT_NEEDED, 4, mpirun_args=ULFM, env={"HVDLITE_ELASTIC_SPARES": "2"})
    assert result.returncode == 0, result.report()
    assert said(result, 0)[1:] == ["first 2 0 2 0", "second 0.5 0 2 0", "third None 0 2 0", "fourth 2.0 0 2 0"], result.report()
    passed = ["init 1 2 1", "first None 1 2 1", "second None 1 2 1"]
    assert said(result, 2) == [*passed, "third None 1 2 1", "fourth 2.0 1 2 1"], result.report()
    assert said(result, 3) == [], result.report()  # never called, and ends with the job


IN_A_SET = """
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, sums=[])

    @elastic.run
    def train(state):
        pair = hvd.add_process_set([0, 1])
        while state.step < 6:
            if (WORLD, state.step) == (1, 3):
                end(signal.SIGKILL)
            hvd.allreduce(np.ones(2), name="step")
            if pair.included():
                total = hvd.allreduce(np.float64(hvd.rank() + 1), name="pair", op=hvd.Sum, process_set=pair)
                state.sums.append(float(total))
            state.step += 1
            if (hvd.size(), WORLD, state.step) == (2, 0, 5):
                RUNTIME.pool.comm.Probe()  # waits until the called spare is ready: it will be a rank at the commit
            state.commit()

    train(state)
    say("done", state.sums)
"""


def test_ranks_and_a_spare_make_process_sets_at_the_beginning_of_the_function():
    result = run_job(BEGINNING + IN_A_SET, 4, mpirun_args=ULFM, env={"HVDLITE_ELASTIC_SPARES": "1"})
    assert result.returncode == 0, result.report()
    for rank, number in ((0, 0), (2, 1)):
        assert said(result, rank)[1:] == [f"done {[3.0] * 6} {number} 3 {number}"], result.report()
    # The spare is in no pair. It has the sums of rank 0 from the commit at which it became a rank: that of step 4 or 5.
    assert said(result, 3) in (["init 2 3 1", f"done {[3.0] * count} 2 3 2"] for count in (4, 5)), result.report()


NEVER_READY = """
    if WORLD == 2:
        open(sys.argv[1]).close()  # the spare waits at a pipe, and does not call its elastic function
        os._exit(0)

    @elastic.run
    def train(state):
        if WORLD == 1:
            end(signal.SIGKILL)
        hvd.allreduce(np.ones(2) * WORLD, name="step")

    try:
        train(elastic.ObjectState(hvd.broadcast_object, hvd.rank))
    except hvd.UnsupportedError as error:
        print(error, flush=True)
        open(sys.argv[1], "w").close()
"""


def test_too_few_ranks_wait_only_so_long_for_a_spare(tmp_path):
    env = {"HVDLITE_ELASTIC_SPARES": "1", "HVDLITE_ELASTIC_MIN_RANKS": "2", "HVDLITE_ELASTIC_TIMEOUT": "0.5"}
    os.mkfifo(tmp_path / "pipe")
    result = run_job(BEGINNING + NEVER_READY, 3, args=[str(tmp_path / "pipe")], mpirun_args=ULFM, env=env)
    text = "ranks left: 1, and HVDLITE_ELASTIC_MIN_RANKS=2 asks for more; no spare was ready in HVDLITE_ELASTIC_TIMEOUT=0.5 s"
    assert text in result.stdout[0], result.report()


CHANGES = """
    @elastic.run
    def train(state):
        while state.step < 5:
            if (WORLD, state.step) in ((1, 1), (2, 3)):
                end(signal.SIGKILL)
            hvd.allreduce(np.ones(2), name="step")
            state.step += 1
            state.commit()

    try:
        train(elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))
    except hvd.UnsupportedError as error:
        print(error, flush=True)
"""


def test_a_former_spare_knows_how_often_the_ranks_have_changed():
    # A loss, a spare that becomes a rank, and a second loss, which all ranks refuse. There must be three ranks at any time, so
    # that it is certain when the spare becomes a rank.
    names = ("SPARES", "MIN_RANKS", "RESET_LIMIT")
    env = dict(zip((f"HVDLITE_ELASTIC_{name}" for name in names), ("1", "3", "2"), strict=True))
    result = run_job(BEGINNING + CHANGES, 4, mpirun_args=ULFM, env=env)
    for rank in (0, 3):
        assert "the job has changed its ranks 2 times" in result.stdout[rank], result.report()


ALL_ARE_LOST = """
    @elastic.run
    def train(state):
        end(signal.SIGKILL)

    train(elastic.ObjectState(hvd.broadcast_object, hvd.rank))
"""


def test_a_spare_ends_if_all_ranks_are_lost():
    result = run_job(BEGINNING + ALL_ARE_LOST, 3, mpirun_args=ULFM, env={"HVDLITE_ELASTIC_SPARES": "1"})
    assert result.returncode != 0, result.report()
    assert "all ranks of this elastic job are lost; this spare has no state, so it ends" in result.stderr[2], result.report()


def test_spares_need_ranks_and_a_fitting_mpi():
    for arguments, spares, text in (
        (ULFM, "2", "makes spares of all 2 processes"),
        ((), "1", "Start it with `hvdlite run --spares`"),
    ):
        result = run_job(BEGINNING, 2, mpirun_args=arguments, env={"HVDLITE_ELASTIC_SPARES": spares})
        assert result.returncode != 0, result.report()
        assert text in result.stderr[0] + result.stderr[1], result.report()


IN_STEPS = """
    import torch
    import hvdlite.torch as hvd

    SAMPLES, BATCH, EPOCHS = 20, 8, 3
    torch.set_num_threads(1)
    inputs = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6)
    samples = torch.utils.data.TensorDataset(inputs, inputs.square().sum(1, keepdim=True))

    def build():
        torch.manual_seed(7 + WORLD)  # rank 0's weights count
        model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    def train(model, optimizer, scheduler, batches, job):
        for x, y in batches:
            with job.step():
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if job.ends_epoch:
                    scheduler.step()
            if WORLD == 0 and hvd.size() == 2:
                RUNTIME.pool.comm.Probe()  # until the spare is ready; the other rank waits for this one meanwhile

    model, optimizer = build()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=sys.argv[1] == "shard")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = hvd.elastic.Job(
        model=model, optimizer=optimizer, scheduler=scheduler, batch_size=BATCH, seed=4, commit_every=2
    )
    job.register_reset_callbacks([lambda: say("reset at", job.position)])

    def in_backward(_):
        if (WORLD, job.position) == (1, 3):
            end(signal.SIGKILL)

    next(model.parameters()).register_hook(in_backward)
    train(model, optimizer, scheduler, job.batches(samples, epochs=EPOCHS), job)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(everyone, everyone[:1].expand_as(everyone))
    say("done", job.position, scheduler.last_epoch)
    if WORLD == 0:
        model, optimizer = build()
        train_alone(model, optimizer, lambda epoch: samples, BATCH, EPOCHS)
        torch.testing.assert_close(flat, torch.cat([p.detach().reshape(-1) for p in model.parameters()]), rtol=1e-4, atol=1e-5)
        print("as one process", flush=True)
"""


@pytest.mark.parametrize(("optimizer", "step"), [("whole", 3), ("shard", 2)])
def test_a_training_that_a_spare_joins_is_that_of_one_process(optimizer, step):
    """With a sharded optimizer the ranks go back to the commit of step 2, and commit step 3 when the spare joins."""
    env = {"HVDLITE_ELASTIC_SPARES": "1"}
    result = run_job(BEGINNING + TRAIN_ALONE + IN_STEPS, 4, args=[optimizer], mpirun_args=ULFM, env=env)
    assert result.returncode == 0, result.report()
    for rank in (0, 2):
        number = rank // 2
        resets = [f"reset at {step} {number} 2 {number}", f"reset at {step + 1} {number} 3 {number}"]
        assert said(result, rank)[1:4] == [*resets, f"done 9 3 {number} 3 {number}"], result.report()
    # The lost rank's local rank, 1, is that of its devices; the last rank of the new job has another number.
    assert said(result, 3) == ["init 2 3 1", f"reset at {step + 1} 2 3 2", "done 9 3 2 3 2"], result.report()
    assert said(result, 0)[4:] == ["as one process"], result.report()


HEARD_AT_TWO_PLACES = """
    import torch
    import hvdlite.torch as hvd
    from hvdlite import PeerLostError

    torch.set_num_threads(1)
    if WORLD == 4:
        open(sys.argv[1]).close()  # the spare is not ready until rank 0 opens this pipe, too
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=4)
    resets = []

    def reset():
        resets.append(job.position)
        if len(resets) == 2 and WORLD == 0:
            open(sys.argv[1], "w").close()

    def after_the_update(*_):
        if (WORLD, job.position) == (1, 3):
            raise PeerLostError("rank 2 is gone")  # rank 1 hears of it in the step, and rank 0 when it looks for the spare

    job.register_reset_callbacks([reset])
    optimizer.register_step_post_hook(after_the_update)
    for x, in job.batches(torch.utils.data.TensorDataset(torch.arange(36.0).reshape(12, 3) / 36), epochs=4):
        with job.step():
            if (WORLD, job.position) == (3, 1):
                end(signal.SIGKILL)
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if (WORLD, job.position) == (2, 4):
            end(signal.SIGKILL)
        if (WORLD, job.position) == (0, 5):
            RUNTIME.pool.comm.Probe()  # until the spare is ready
    say("done", job.position, resets)
"""


def test_ranks_hear_of_a_loss_in_a_step_and_while_they_look_for_a_spare(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    env = {"HVDLITE_ELASTIC_SPARES": "1"}
    result = run_job(BEGINNING + HEARD_AT_TWO_PLACES, 5, args=[str(pipe)], mpirun_args=ULFM, env=env)
    assert result.returncode == 0, result.report()
    for rank in (0, 1):
        assert said(result, rank)[1:] == [f"done 12 [1, 4, 5] {rank} 3 {rank}"], result.report()
    assert said(result, 4)[1:] == ["done 12 [5] 2 3 2"], result.report()
