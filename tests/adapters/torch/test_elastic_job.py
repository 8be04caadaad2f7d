"""hvd.elastic.Job where no rank is lost: its order of samples, its checkpoints, and what it refuses."""

import contextlib
import copy
import functools
import operator
import random

import numpy as np
import pytest
import torch
from support.world import WORLD

import hvdlite.torch as hvd
from hvdlite import InvalidArgumentError, PeerLostError, SystemFailure, UnsupportedError
from hvdlite.runtime import RUNTIME
from hvdlite.torch.elastic import checkpoint_file
from hvdlite.torch.elastic.samples import SeededSamples

# A rank that waits long for a slow one would tell rank 0 so in a message, and a test counts messages.
ENVIRONMENT = {"HVDLITE_DEADLOCK_TIMEOUT": "0"}

pytestmark = pytest.mark.usefixtures("hvd")
RANK, SIZE = WORLD.rank, WORLD.size
SAMPLES = [(torch.full((3,), float(index)), torch.tensor([float(index % 5)])) for index in range(11)]


def parts(seed=0, **options):
    torch.manual_seed(seed + RANK)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    return {"model": model.eval(), "optimizer": optimizer, "batch_size": 4, "seed": 3}


def train(job, epochs, stop=-1):
    """Trains; gives this rank's samples. The model is in eval mode, as BatchNorm's batches differ with the number of ranks."""
    seen = []
    for x, y in job.batches(SAMPLES, epochs):
        with job.step() as step:
            torch.nn.functional.mse_loss(job.model(x), y).backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
        assert step.applied
        seen += x[: int(job.optimizer.weight), 0].int().tolist()
        if job.position == stop:
            break
    return seen


def weights(job):
    return torch.cat([p.detach().reshape(-1) for p in job.model.parameters()])


def same_on_all_ranks(tensor):
    return bool((hvd.allgather(tensor.unsqueeze(0)) == tensor).all())


def test_every_sample_once_in_an_epoch_and_in_another_order_in_the_next():
    job = hvd.elastic.Job(**parts())
    assert same_on_all_ranks(weights(job))  # rank 0's, from the beginning
    epochs = []
    for epoch in (1, 2):
        everyone = hvd.allgather_object(train(job, epochs=epoch))
        assert sorted(functools.reduce(operator.iadd, everyone, [])) == list(range(11))
        assert job.position == 3 * epoch
        assert job.epoch == epoch
        epochs.append(everyone)
    assert epochs[0] != epochs[1]
    assert same_on_all_ranks(weights(job))
    assert job.optimizer.weight is None  # for a training without the job


def test_a_training_goes_on_from_its_checkpoint(tmp_path_factory):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("job") / "state.pt"))
    whole = hvd.elastic.Job(**parts())
    train(whole, 2)
    first = hvd.elastic.Job(**parts(), checkpoint=path, save_every=2)
    train(first, 2, stop=5)  # the last checkpoint is that of step 4
    second = hvd.elastic.Job(**parts(seed=50), checkpoint=path, save_every=2)
    assert second.position == 4
    train(second, 2)
    assert second.position == 6
    assert torch.equal(weights(second), weights(whole))
    with pytest.raises(InvalidArgumentError, match="is of a training with batch_size=4, and this one has batch_size=5"):
        hvd.elastic.Job(**{**parts(), "batch_size": 5}, checkpoint=path, save_every=2)
    with pytest.raises(InvalidArgumentError, match=r"state\.pt on host .* does not fit this job: KeyError: 'ema'"):
        hvd.elastic.Job(**parts(), ema=torch.nn.Linear(1, 1), checkpoint=path, save_every=2)


def test_what_a_step_needs():
    job = hvd.elastic.Job(**parts())
    with pytest.raises(InvalidArgumentError, match=r"each job.step\(\) takes one batch"), job.step():
        pass
    batches = job.batches(SAMPLES, 1)
    x, y = next(batches)
    with pytest.raises(InvalidArgumentError, match=r"a job.step\(\) ended without optimizer.step\(\)"), job.step():
        pass
    with pytest.raises(InvalidArgumentError, match=r"batches\(\) of an elastic.Job is running already"):
        next(job.batches(SAMPLES, 1))
    batches.close()
    batches = job.batches(SAMPLES, 1)
    x, y = next(batches)
    with job.step():
        torch.nn.functional.mse_loss(job.model(x), y).backward()
        job.optimizer.step()
        with pytest.raises(InvalidArgumentError, match="or a second one in it"):
            job.optimizer.step()
    batches.close()
    batches = job.batches(SAMPLES, 1)
    next(batches)
    with pytest.raises(InvalidArgumentError, match=r"a batch of job.batches\(\) was not used"):
        next(batches)
    hvd.barrier()


@pytest.mark.parametrize("shard", [False, True])
def test_a_step_counts_if_an_exception_of_the_program_follows_the_optimizer(shard):
    job = hvd.elastic.Job(**parts(shard=shard))
    applied, seen = [], []
    job.optimizer.register_step_post_hook(lambda *_: applied.append(job.position))
    for x, y in job.batches(SAMPLES, 1):
        with contextlib.suppress(ZeroDivisionError), job.step():
            torch.nn.functional.mse_loss(job.model(x), y).backward()
            if len(seen) == 1:
                seen.append("again")
                raise ZeroDivisionError
            job.optimizer.step()
            job.optimizer.zero_grad()
            seen.append(job.position)
            if job.position == 0:
                raise ZeroDivisionError
    assert (applied, seen, job.position) == ([0, 1, 2], [0, "again", 1, 2], 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 0}, "batch_size and commit_every must be at least 1"),
        ({"save_every": 5}, "give both checkpoint and save_every, or neither"),
        ({"commit_every": 0}, "commit_every=0"),
        ({"save_evry": 5}, r"elastic.Job\(save_evry=5\): an object to keep needs state_dict\(\) and .*; is the argument's"),
        ({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])}, "takes an hvdlite.torch.DistributedOptimizer"),
    ],
)
def test_what_it_refuses(changes, text):
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.elastic.Job(**{**parts(), **changes})


def test_a_checkpoint_on_a_full_disk_is_named(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    file = checkpoint_file.CheckpointFile(str(path), 1, {})
    file.write(1, {"x": torch.ones(3)})

    def open_full(part, mode):
        open(part, mode).close()
        return open("/dev/full", mode)

    monkeypatch.setattr(checkpoint_file, "open", open_full, raising=False)
    with pytest.raises(SystemFailure, match=r"state\.pt on host .* was not written: .*No space left on device"):
        file.write(2, {"x": torch.ones(10_000)})
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [path]
    assert torch.load(path)["position"] == 1
    with pytest.raises(AttributeError, match="pickle"):
        file.write(3, {"x": lambda: None})
    assert list(tmp_path.iterdir()) == [path]


def test_lbfgs_is_refused():
    """After a loss between two calls of its closure, nothing could take back what it has changed."""
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), model.named_parameters())
    with pytest.raises(UnsupportedError, match="does not work with LBFGS"):
        hvd.elastic.Job(model, optimizer, 4)


def test_a_sharded_training_commits_and_goes_on_from_its_checkpoint(tmp_path_factory):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("job") / "state.pt"))
    plain = hvd.elastic.Job(**parts())
    train(plain, 2)
    whole = hvd.elastic.Job(**parts(shard=True), commit_every=4)
    seen = []
    for (x, y), step in zip(whole.batches(SAMPLES, 2), range(1, 7), strict=True):
        with whole.step():
            torch.nn.functional.mse_loss(whole.model(x), y).backward()
            whole.optimizer.step()
            whole.optimizer.zero_grad()
        seen.append((step, whole.position, whole.committed))
    assert seen == [(1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 4), (5, 5, 4), (6, 6, 6)]  # the last step is committed
    first = hvd.elastic.Job(**parts(shard=True), checkpoint=path, save_every=2)
    train(first, 2, stop=5)
    assert first.committed == 4
    for shard in (True, False):  # any optimizer can go on
        second = hvd.elastic.Job(**parts(seed=50, shard=shard), checkpoint=path, save_every=100)
        assert second.position == 4
        train(second, 2)
        for other in (plain, whole):
            assert torch.equal(weights(second), weights(other))
    with pytest.raises(InvalidArgumentError, match=r"the folder .*/none of the checkpoint does not exist on host"):
        hvd.elastic.Job(**parts(), checkpoint=f"{path}/none/state.pt", save_every=2)


def test_hosts_that_share_no_folder_have_a_checkpoint_each(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "local_rank", lambda: 0)  # each rank has a host of its own
    monkeypatch.setattr(checkpoint_file, "cross_rank", lambda: RANK)
    folder = tmp_path_factory.mktemp(f"host{RANK}")  # which the others do not have
    path = folder / "state.pt"
    first = hvd.elastic.Job(**parts(), checkpoint=path, save_every=2)
    train(first, 2, stop=5)
    assert path.exists() == (RANK < 2)  # two hosts are enough
    if RANK == 0:
        path.unlink()  # the host is another one
    hvd.barrier()
    second = hvd.elastic.Job(**parts(seed=50), checkpoint=path, save_every=2)
    assert second.position == 4
    assert same_on_all_ranks(weights(second))
    train(first, 2)
    train(second, 2)
    assert torch.equal(weights(second), weights(first))
    assert [file.name for file in folder.iterdir()] == ["state.pt"][: RANK < 2]
    assert RANK >= 2 or torch.load(path, weights_only=False)["position"] == 6


@pytest.mark.parametrize("error", [PeerLostError("a rank is gone"), ValueError("a mistake of the program")])
def test_what_a_step_has_changed_before_a_loss_is_as_before_it(error):
    """Random numbers, buffers, scheduler and scaler. Other errors than a loss leave the step, too, and undo nothing."""
    made = {**parts(), "batch_size": 2 * SIZE}  # BatchNorm trains with two samples or more
    made["model"].train()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made["optimizer"], 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    job = hvd.elastic.Job(**made, scheduler=scheduler, scaler=scaler)

    def state():
        buffers = [buffer.tolist() for buffer in made["model"].buffers()]
        numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return buffers, numbers, scheduler.state_dict(), scaler.state_dict(), made["optimizer"].param_groups[0]["lr"]

    x, y = next(job.batches(SAMPLES, 1))
    before = copy.deepcopy(state())
    with pytest.raises(type(error), match=str(error)), job.step() as step:  # noqa: PT012
        noise = torch.rand(1) + random.random() + np.random.rand()
        scaler.scale(torch.nn.functional.mse_loss(job.model(x + noise), y)).backward()
        scaler.update(2.0)
        scheduler.step()
        assert all(map(operator.ne, state(), before))
        raise error
    assert not step.applied
    assert (state() == before) == isinstance(error, PeerLostError)
    hvd.barrier()


@pytest.mark.parametrize("grows", [False, True])
def test_a_step_that_is_not_applied_leaves_what_a_compression_keeps(grows):
    made = parts(compression=hvd.Compression.int8(between="ranks", error_feedback=True))
    job, optimizer = hvd.elastic.Job(**made), made["optimizer"]

    def kept():
        states = optimizer.state_dict()["hvdlite_compression"]["state"].values()
        return [tensor.clone() for state in states for tensor in state.values()]

    train(job, 1, stop=2)
    before = kept()
    x, y = next(job.batches(SAMPLES, 1))
    with pytest.raises(PeerLostError), job.step():  # noqa: PT012 - this launcher cannot continue, so the loss leaves the step
        loss = torch.nn.functional.mse_loss(job.model(x), y)
        if grows:
            added = torch.nn.Parameter(torch.ones(3))
            optimizer.add_param_group({"params": [added]})
            loss = loss + added.square().sum()
        loss.backward()
        assert not all(map(torch.equal, kept(), before))
        raise PeerLostError("a rank is gone")
    after = kept()
    assert len(after) == len(before) > 0
    assert all(map(torch.equal, after, before))


@pytest.mark.parametrize("shard", [False, True])
def test_without_a_loss_a_step_has_no_message_and_no_operation_more_than_without_a_job(shard):
    made = parts(shard=shard)
    job = hvd.elastic.Job(**made, commit_every=1000)
    inputs, targets = (torch.stack(tensors) for tensors in zip(*SAMPLES[:4], strict=True))

    def counted():
        counters = RUNTIME.engine.counters()
        return [counters[name] for name in ("submitted", "completed", "fused_ops", "control_messages_sent", "data_bytes_sent")]

    def plain_steps(count):
        for _ in range(count):
            torch.nn.functional.mse_loss(made["model"](inputs), targets).backward()
            made["optimizer"].step()
            made["optimizer"].zero_grad()

    made["optimizer"].weight = 1 + RANK
    plain_steps(3)  # the ranks get to know their step
    before = counted()
    plain_steps(5)
    plain = [after - start for after, start in zip(counted(), before, strict=True)]
    batches = job.batches(SAMPLES, 3)
    for number, (x, y) in enumerate(batches):
        if number == 3:
            before = counted()
        with job.step():
            torch.nn.functional.mse_loss(job.model(x), y).backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
        if number == 7:
            break  # the last step has a commit
    assert [after - start for after, start in zip(counted(), before, strict=True)] == plain
    assert plain[0] > 0
    assert plain[3] == 0  # control messages
    batches.close()


class Augmented:
    """A dataset with random numbers of all three kinds."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, torch.rand(()).item(), random.random(), np.random.rand()


def test_random_numbers_of_a_sample_depend_on_its_index_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a sample seeds the GPUs"))
    samples = SeededSamples(Augmented(), 3, 1)
    torch.default_generator.manual_seed(RANK)
    expected = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    batch = samples.__getitems__([7, 2])
    assert (torch.get_rng_state() == expected[0]).all()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected[1:]
    assert batch == [samples[7], samples[2]]
    assert batch == hvd.broadcast_object(batch)
    assert len({number for sample in batch for number in sample[1:]}) == 6
    assert samples[7] != SeededSamples(Augmented(), 3, 2)[7]
