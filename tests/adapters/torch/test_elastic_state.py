"""TorchState and ElasticSampler: commit, restore, sync, and the share of each rank."""

import operator

import pytest
import torch
from mpi4py import MPI
from reference import adam, assert_same_bits, mse, network, part_of, whole_batch

from hvdlite.elastic import HostUpdateResult
from hvdlite.errors import HorovodInternalError, HostsUpdatedInterrupt, InvalidArgumentError, UnsupportedError
from hvdlite.torch.elastic import ElasticSampler, TorchState
from hvdlite.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry

WORLD = MPI.COMM_WORLD


class Model(torch.nn.Module):
    """A network with buffers too, different on each rank."""

    def __init__(self, seed):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6, dtype=torch.float64)
        self.layers = network(seed)

    def forward(self, inputs):
        return self.layers(self.norm(inputs))


def training(hvd, seed, wrapped):
    model = Model(seed)
    optimizer = adam(model.parameters())
    if wrapped:
        options = {"start_check": "off", "shard": wrapped == "shard"}  # ranks differ at first
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    return model, optimizer


def train(hvd, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()


def tensors_of(model, optimizer):
    """Copies of all there is, in a fixed order."""
    found = list(model.state_dict().values())
    for state in optimizer.state_dict()["state"].values():
        found += [state[name] for name in sorted(state)]
    return [tensor.clone() for tensor in found]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("wrapped", [False, True, "shard"])
def test_commit_and_restore(hvd, wrapped):
    model, optimizer = training(hvd, hvd.rank(), wrapped)
    state = TorchState(model, optimizer, epoch=0, history=[hvd.rank()])
    assert state.model is model
    assert state.optimizer is optimizer
    train(hvd, model, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.25
    state.epoch = 2
    state.commit()
    committed = tensors_of(model, optimizer)
    for repeat in range(2):  # what happens after a restore does not reach what was committed
        train(hvd, model, optimizer, range(2, 4))
        optimizer.param_groups[0]["lr"] = 0.5
        state.epoch = 4
        state.history.append(repeat)
        assert not torch.equal(model.layers[0].weight, committed[5])
        state.restore()
        assert_equal(tensors_of(model, optimizer), committed)
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert (state.epoch, state.history) == (2, [hvd.rank()])
    assert state.model is model
    train(hvd, model, optimizer, range(1))


@pytest.mark.parametrize("wrapped", [False, True, "shard"])
def test_sync_gives_all_ranks_the_state_of_rank_0(hvd, wrapped):
    model, optimizer = training(hvd, hvd.rank(), wrapped)
    other = torch.nn.Linear(2, 1)
    state = TorchState(model=model, optimizer=optimizer, other=other, epoch=hvd.rank(), best=None)
    if hvd.rank() == 0 and not wrapped:
        train(hvd, model, optimizer, range(3))  # the others' optimizers have no state
    state.epoch = 10 + hvd.rank()
    expected = WORLD.bcast((tensors_of(model, optimizer), list(other.parameters())))
    state.sync()
    assert_equal(tensors_of(model, optimizer), expected[0])
    assert_equal(list(other.parameters()), expected[1])
    assert (state.epoch, state.best) == (10, None)
    # A sync is a commit.
    train(hvd, model, optimizer, range(1))
    state.epoch = 0
    state.restore()
    assert_equal(tensors_of(model, optimizer), expected[0])
    assert state.epoch == 10
    train(hvd, model, optimizer, range(2))
    if wrapped:
        assert_same_bits(list(model.parameters()))


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    """Hands over to another scheduler, which its state dict refers to as it is."""

    def __init__(self, optimizer, after):
        self.after = after
        super().__init__(optimizer)

    def get_lr(self):
        return [0.5 * group["lr"] for group in self.optimizer.param_groups]


class Smoothed:
    """Refers to parameters and to a scheduler, and has no state dict."""

    def __init__(self, model, schedulers):
        self.params = list(model.parameters())
        self.average = [param.detach().clone() for param in self.params]
        self.schedulers = schedulers


@pytest.mark.parametrize("wrapped", [False, True])
def test_schedulers_and_all_that_has_a_state_dict_stay_what_they_are(hvd, wrapped):
    model, optimizer = training(hvd, hvd.rank(), wrapped)
    warmup = Warmup(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1 * (1 + hvd.rank())))
    train(hvd, model, optimizer, range(1))
    schedulers = [warmup, warmup.after]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (3 + hvd.rank()))
    generator = torch.Generator().manual_seed(hvd.rank())
    averaged = torch.optim.swa_utils.AveragedModel(model)
    kept = {"averaged": averaged, "scaler": scaler, "warmup": warmup, "generator": generator}
    smoothed = Smoothed(model, schedulers)
    state = TorchState(model, optimizer, smoothed=smoothed, schedulers=schedulers, **kept)
    for put_back in (state.sync, state.restore, state.restore):
        for param in [*model.parameters(), *averaged.parameters()]:
            param.data += put_back == state.restore  # which a sync takes from rank 0 as it is
        put_back()
        assert all(getattr(state, name) is value for name, value in kept.items())
        assert state.schedulers == schedulers == state.smoothed.schedulers
        assert all(map(operator.is_, state.smoothed.params, model.parameters()))
        assert all(scheduler.optimizer is optimizer for scheduler in schedulers)
        everything = [*model.parameters(), *averaged.state_dict().values(), *state.smoothed.average]
        assert_same_bits([tensor.detach() for tensor in everything])
        lr = optimizer.param_groups[0]["lr"]
        schedulers[1].step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * lr)
        assert scaler.get_scale() == 8
        drawn = torch.rand(3, generator=state.generator)
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(0)))
        scaler.load_state_dict({**scaler.state_dict(), "scale": 4.0 + hvd.rank()})
        warmup.after = None
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state.warmup = [scheduler]
    state.sync()
    assert state.warmup == [scheduler]


def test_another_model_takes_the_first_ones_place(hvd):
    model, optimizer = training(hvd, 0, False)
    state = TorchState(model, optimizer)
    state.model = Model(5)
    weight = state.model.layers[0].weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1)
    state.restore()
    assert torch.equal(weight, before)
    assert not torch.equal(model.layers[0].weight, weight)


class Counting(torch.nn.Linear):
    """A layer whose state is more than tensors."""

    seen = None

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


def test_a_model_whose_state_is_more_than_tensors(hvd):
    model = Counting(2, 1)
    model.seen = {"batches": hvd.rank()}
    state = TorchState(model)
    state.sync()
    assert model.seen == {"batches": 0}
    model.seen = {"batches": 5}
    state.restore()
    assert model.seen == {"batches": 0}
    assert_same_bits(list(model.parameters()))


def test_no_model_and_names_that_are_taken(hvd):
    state = TorchState(epoch=hvd.rank())
    state.sync()
    assert (state.model, state.optimizer, state.epoch) == (None, None, 0)
    with pytest.raises(ValueError, match="has a method 'commit'"):
        TorchState(commit=1)


def test_a_handler_of_ones_own(hvd):
    class Counter:
        count = 0

    class CounterHandler(StateHandler):
        def save(self):
            self.saved = self.value.count

        def restore(self):
            self.value.count = self.saved

        def sync(self):
            self.value.count = hvd.broadcast_object(self.value.count)
            self.save()

    before = get_handler_registry()
    set_handler_registry([*before, (Counter, CounterHandler)])
    try:
        counter = Counter()
        counter.count = hvd.rank() + 3
        state = TorchState(counter=counter)
        state.sync()
        counter.count = 0
        state.restore()
        assert state.counter is counter
        assert counter.count == 3
    finally:
        set_handler_registry(before)


def shares(sampler):
    """Every rank's share, in rank order."""
    return WORLD.allgather(list(sampler))


@pytest.mark.parametrize("length", [0, 1, 2, 7, 12, 100])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_is_dealt_out_in_equal_shares(hvd, length, shuffle):
    sampler = ElasticSampler(range(length), shuffle, seed=4)
    dealt = shares(sampler)
    each = -(-length // hvd.size())
    assert [len(share) for share in dealt] == [each] * hvd.size()
    assert len(sampler) == sampler.num_samples == each
    assert set().union(*dealt) == set(range(length))
    assert (sampler.rank, sampler.num_replicas, sampler.total_size) == (hvd.rank(), hvd.size(), each * hvd.size())
    if not shuffle:
        assert dealt[hvd.rank()][: length // hvd.size()] == list(range(hvd.rank(), length, hvd.size()))[: length // hvd.size()]


def test_each_epoch_has_an_order_of_its_own(hvd):
    sampler = ElasticSampler(range(100))
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(ElasticSampler(range(100), seed=1)) != first


def test_what_is_processed_is_not_dealt_out_again(hvd):
    """Rank r has done r + 1 batches of two when the state is synchronised."""
    sampler = ElasticSampler(range(23))
    state = TorchState(sampler=sampler)
    loader = torch.utils.data.DataLoader(range(23), batch_size=2, sampler=sampler)
    done = []
    for index, batch in enumerate(loader):
        done += batch.tolist()
        sampler.record_batch(index, 2)
        if index == hvd.rank():
            break
    assert sampler.processed_indices == set(done)
    everyone = set().union(*WORLD.allgather(done))
    state.commit()
    state.sync()
    rest = shares(sampler)
    assert sampler.processed_indices == everyone
    assert set().union(*rest) == set(range(23)) - everyone
    assert len({len(share) for share in rest}) == 1
    # Samples recorded after the commit are forgotten by a restore.
    sampler.record_indices(rest[hvd.rank()][:1])
    state.restore()
    assert sampler.processed_indices == everyone
    sampler.set_epoch(1)
    assert set().union(*shares(sampler)) == set(range(23))


def test_the_state_of_a_sampler_can_be_kept_in_a_file(hvd):
    sampler = ElasticSampler(range(10), shuffle=False)
    list(sampler)
    sampler.record_batch(0, 3)
    kept = sampler.state_dict()
    sampler.record_batch(1, 3)
    other = ElasticSampler(range(10))
    other.load_state_dict(kept)
    assert other.processed_indices == set(range(hvd.rank(), 10, hvd.size())[:3])
    other.record_indices([9])
    assert kept["processed_indices"] == set(range(hvd.rank(), 10, hvd.size())[:3])


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_state_of_horovods_sampler(hvd, shuffle):
    """It has a number, of samples in the order in which they are dealt out."""
    first = ElasticSampler(range(23), shuffle, seed=3)
    first.set_epoch(2)
    loader = torch.utils.data.DataLoader(range(23), batch_size=2, sampler=first)
    done = next(iter(loader)).tolist()
    first.record_batch(0, 2)
    assert first.processed_num == 2 * hvd.size()
    second = ElasticSampler(range(23), shuffle, seed=3)
    second.load_state_dict({"epoch": 2, "processed_num": first.processed_num})
    assert second.processed_indices == set().union(*WORLD.allgather(done))
    assert second.processed_num == first.processed_num
    with pytest.raises(InvalidArgumentError, match=r"'processed_num'; this one has \['epoch', 'indices'\]"):
        second.load_state_dict({"epoch": 1, "indices": []})


def test_batches_that_are_not_there(hvd):
    sampler = ElasticSampler(range(4 * hvd.size()), shuffle=False)
    with pytest.raises(ValueError, match="none until an iteration begins"):
        sampler.record_batch(0, 2)
    assert list(sampler) == [hvd.rank() + place * hvd.size() for place in range(4)]
    assert sampler.get_indices(1, 3) == [hvd.rank() + 3 * hvd.size()]
    with pytest.raises(ValueError, match="batch 2 of 2 samples is not in this iteration"):
        sampler.record_batch(2, 2)


def test_changed_hosts_interrupt_all_ranks_at_one_commit(hvd):
    state = TorchState(epoch=0)
    state.commit()
    if hvd.rank() == 0:
        state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.epoch = 1
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.commit()


def test_run(hvd):
    """Syncs, trains, and on a failure that would need other ranks: restores and says that it cannot."""
    model, optimizer = training(hvd, hvd.rank(), True)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def train_until(state, failing_epoch):
        assert_same_bits(list(state.model.state_dict().values()))
        for state.epoch in range(state.epoch, 4):  # noqa: B020 - as Horovod's examples write it
            train(hvd, state.model, state.optimizer, [state.epoch])
            if state.epoch == failing_epoch:
                raise HorovodInternalError("something happened")
            state.commit()
        return state.epoch

    with pytest.raises(UnsupportedError, match="something happened"):
        train_until(state, 2)
    assert state.epoch == 1
    restored = tensors_of(model, optimizer)
    state.epoch += 1
    assert train_until(state, None) == 3
    # The same as without an interruption: epochs 0 to 3 once each.
    twin, twin_optimizer = training(hvd, 0, True)
    train(hvd, twin, twin_optimizer, range(2))
    assert_equal(restored, tensors_of(twin, twin_optimizer))
    hvd.broadcast_parameters(twin.state_dict(), 0)  # the buffers, as the second run's sync does
    train(hvd, twin, twin_optimizer, range(2, 4))
    assert_equal(tensors_of(model, optimizer), tensors_of(twin, twin_optimizer))
