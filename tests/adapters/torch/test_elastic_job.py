"""hvd.elastic.Job where no rank is lost: its order of samples, its checkpoints, and what it refuses."""

import functools
import operator
import random

import numpy as np
import pytest
import torch
from support.world import WORLD

import hvdlite.torch as hvd
from hvdlite import InvalidArgumentError
from hvdlite.torch.elastic.samples import SeededSamples

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
    with pytest.raises(InvalidArgumentError, match=r"state\.pt does not fit this job: KeyError: 'ema'"):
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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"save_every": 5}, "checkpoint and save_every belong together"),
        ({"ema": object()}, r"elastic.Job\(ema=...\): a object has no state_dict"),
        ({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])}, "takes an hvdlite.torch.DistributedOptimizer"),
    ],
)
def test_what_it_refuses(changes, text):
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.elastic.Job(**{**parts(), **changes})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": True}, "shard=True: with a lost rank its part"),
        ({"compression": hvd.Compression.powersgd()}, "a compression that keeps state from step to step"),
    ],
)
def test_state_that_cannot_go_on_is_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.elastic.Job(**parts(**options))


def test_without_a_loss_a_step_has_no_message_and_no_operation_more_than_without_a_job():
    made = parts()
    job = hvd.elastic.Job(**made)
    inputs, targets = (torch.stack(tensors) for tensors in zip(*SAMPLES[:4], strict=True))

    def plain_steps(count):
        before = hvd.stats()
        for _ in range(count):
            torch.nn.functional.mse_loss(made["model"](inputs), targets).backward()
            made["optimizer"].step()
            made["optimizer"].zero_grad()
        return hvd.stats() - before

    plain_steps(3)  # the ranks get to know their step
    plain = plain_steps(6)
    train(job, epochs=1)  # 3 steps each
    before = hvd.stats()
    train(job, epochs=3, stop=8)
    spent = hvd.stats() - before
    assert spent.steps == 5
    assert spent.operations * plain.steps == plain.operations * spent.steps
    assert spent.control_messages == plain.control_messages == 0


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
