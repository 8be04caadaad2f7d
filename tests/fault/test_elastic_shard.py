"""Elastic training with state that a lost rank takes away: sharded optimizers, and compressions with state."""

import os

import pytest
from support.job import launcher_has_ulfm, run_job
from support.one_process import TRAIN_ALONE

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
ULFM = ("--with-ft", "ulfm")

BEGINNING = """
    import os, signal, sys
    import torch
    import hvdlite.torch as hvd
    from hvdlite import PeerLostError
    from hvdlite.runtime import RUNTIME

    FIRST = int(os.environ["OMPI_COMM_WORLD_RANK"])  # this process's rank at the beginning
    torch.set_num_threads(1)
    hvd.init()

    def end(number):
        os.kill(os.getpid(), number)

    def build():
        torch.manual_seed(7 + FIRST)  # rank 0's weights count
        model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    def flat(model, optimizer):
        state = optimizer.state_dict()["state"]
        moments = [state[number]["exp_avg_sq"] for number in sorted(state)]
        return torch.cat([tensor.detach().reshape(-1) for tensor in [*model.parameters(), *moments]])

    def check_against(model, optimizer, twin, plain):
        mine = flat(model, optimizer)  # collective
        everyone = hvd.allgather(mine.unsqueeze(0))
        assert torch.equal(everyone, everyone[:1].expand_as(everyone))
        if twin is not None:
            torch.testing.assert_close(mine, flat(twin, plain), rtol=1e-4, atol=1e-6)
            print("as one process", flush=True)
"""

JOB = """
    SAMPLES, BATCH, EPOCHS = 26, 8, 3
    inputs = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6)
    samples = torch.utils.data.TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
    model, optimizer = build()
    alone = build() if FIRST == 0 else None
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), shard=True)
    model.register_buffer("steps", torch.zeros(1), persistent=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = hvd.elastic.Job(
        model=model, optimizer=optimizer, scheduler=scheduler, batch_size=BATCH, seed=4, commit_every=4,
        checkpoint=sys.argv[2], save_every=6,
    )
    resets, outcomes = [], []
    job.register_reset_callbacks([lambda: resets.append((job.position, job.committed, hvd.rank(), hvd.size()))])

    def in_backward(_):
        if (FIRST, job.position) == (3, 0):
            end(signal.SIGTERM)  # a planned leave: all commit before it
        if (FIRST, job.position) == (2, 7):
            end(signal.SIGKILL)

    def commit(*args, **kwargs):
        made = whole_commit(*args, **kwargs)
        if (job.position, hvd.size()) == (8, 3):  # rank 4 is lost in the commit, which rank 0 has ended, and rank 1 has not
            if FIRST == 4:
                open(sys.argv[1]).close()  # until rank 0 opens this pipe, too
                end(signal.SIGKILL)
            if FIRST == 1:
                raise PeerLostError("rank 4 is gone")
            open(sys.argv[1], "w").close()
        return made

    whole_commit, job._state.commit = job._state.commit, commit
    next(model.parameters()).register_hook(in_backward)
    random_numbers = {}
    for x, y in job.batches(samples, epochs=EPOCHS):
        with job.step() as step:
            drawn = random_numbers.setdefault(job.position, torch.rand(1))
            assert hvd.size() == 5 or torch.equal(drawn, random_numbers[job.position])
            model.steps += 1
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.ends_epoch:
                scheduler.step()
        outcomes += [job.position] if step.applied else []
    assert model.steps.item() == 12
    print(resets, scheduler.last_epoch, job.committed, flush=True)
    print(outcomes, flush=True)
    if FIRST == 0:
        twin, plain = alone
        train_alone(twin, plain, lambda epoch: samples, BATCH, EPOCHS)
    check_against(model, optimizer, *(alone or (None, None)))
    if FIRST == 0:
        saved = torch.load(sys.argv[2], weights_only=False)
        assert saved["position"] == 12
        plain.load_state_dict(saved["objects"]["optimizer"])  # another number of ranks: one
        twin.load_state_dict(saved["objects"]["model"])
    check_against(model, optimizer, *(alone or (None, None)))
"""


def test_a_training_with_a_sharded_optimizer_that_loses_ranks_is_that_of_one_process(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = run_job(BEGINNING + TRAIN_ALONE + JOB, 5, args=[str(pipe), str(tmp_path / "state")], mpirun_args=ULFM)
    assert result.returncode == 0, result.report()
    # Rank 3 left after step 2, which was committed. Rank 2 was lost in step 8: all went back to step 6, a checkpoint's commit.
    # Rank 4 was lost in the commit of step 8, which rank 0 had.
    for rank in (0, 1):
        assert f"\n{[1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12]}\n" in result.stdout[rank], result.report()
        assert f"[(2, 2, {rank}, 4), (6, 6, {rank}, 3), (8, 8, {rank}, 2)] 3 12" in result.stdout[rank], result.report()
    assert "left after step 2, because SIGTERM had asked it to" in result.stderr[0], result.report()
    assert result.stdout[0].count("as one process") == 2, result.report()


RUN = """
    def train(state, until, commit, factor):
        while state.step < until:
            x = torch.linspace(-1, 1, 18).reshape(3, 6) * (1 + state.step)
            if (FIRST, state.step) == (1, 5):
                end(signal.SIGKILL)
            loss = torch.nn.functional.mse_loss(state.model(x), x.square().sum(1, keepdim=True))
            (factor() * loss).backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            if state.step % 2 == 0:
                if resets == [(4, 2)] and hvd.rank() == 0:
                    RUNTIME.pool.comm.Probe()  # until the spare is ready: it will be a rank after the commit
                commit()

    def factor_of_this_rank():
        return 1 + (hvd.rank() - (hvd.size() - 1) / 2) / 4  # the mean of all ranks' factors is 1

    resets = []
    model, optimizer = build()
    alone = build() if FIRST == 0 else None
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), shard=True)
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    state.register_reset_callbacks([lambda: resets.append((state.step, hvd.size()))])
    hvd.elastic.run(train)(state, 9, state.commit, factor_of_this_rank)
    print(resets, flush=True)
    if FIRST == 0:
        resets.clear()
        train(hvd.elastic.TorchState(*alone, step=0), 9, lambda: None, lambda: 1)
    check_against(model, optimizer, *(alone or (None, None)))
"""


def test_a_function_with_a_sharded_optimizer_goes_on_from_its_commit():
    env = {"HVDLITE_ELASTIC_SPARES": "1"}
    result = run_job(BEGINNING + RUN, 4, mpirun_args=ULFM, env=env)
    assert result.returncode == 0, result.report()
    assert result.stdout[0].startswith("[(4, 2), (6, 3)]"), result.report()
    assert "as one process" in result.stdout[0], result.report()
    assert result.stdout[2].startswith("[(4, 2), (6, 3)]"), result.report()
    assert result.stdout[3].startswith("[]"), result.report()  # the spare, which joined after the commit of step 6


CODED = """
    model = torch.nn.Linear(12, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compression = hvd.Compression.powersgd(start_step=1) if sys.argv[1] == "powersgd" else hvd.Compression.int8(
        between="ranks", error_feedback=True
    )
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=6)

    def coding():
        kept = optimizer.state_dict()["hvdlite_compression"]["state"]
        return {(number, key): torch.as_tensor(value).clone() for number, each in kept.items() for key, value in each.items()}

    def same(one, other):
        return one.keys() == other.keys() and all(map(torch.equal, one.values(), other.values()))

    def after_the_reduction(*_):
        if (job.position, hvd.size()) == (3, 3):  # all have reduced the step, and none applies it
            assert not same(coding(), before)
            if FIRST == 1:
                end(signal.SIGKILL)
            raise PeerLostError("rank 1 is gone")

    optimizer.register_step_pre_hook(after_the_reduction)
    job.register_reset_callbacks([lambda: print("as before", same(coding(), before), job.position, flush=True)])
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 24 * 12).reshape(24, 12))
    for x, in job.batches(data, epochs=2):
        before = coding()
        with job.step():
            model(x).tanh().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    weights = hvd.allgather(model.weight.detach().unsqueeze(0))
    assert torch.equal(weights, weights[:1].expand_as(weights))
    assert any("residual" in key for _, key in coding())
    print("done", job.position, hvd.size(), flush=True)
"""


@pytest.mark.parametrize("compression", ["powersgd", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_step_that_is_not_applied_leaves_the_state_of_a_compression(compression):
    result = run_job(BEGINNING + CODED, 3, args=[compression], mpirun_args=ULFM)
    assert result.returncode == 0, result.report()
    for rank in (0, 2):
        assert result.stdout[rank].splitlines() == ["as before True 3", "done 8 2"], result.report()
