"""`sharded_state_dict()` through torch.distributed.checkpoint: each rank writes and reads its part, for any number of ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from groups import RANK, SIZE, WORLD, world  # noqa: F401
from reference import mse, part_of, whole_batch
from test_optimizers import maker
from test_sharding import Whitening, adam, network, tensors_of, train

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.torch import sharded_checkpoint, sharding

RANKS = (3,)
MORE_RANKS = (4,)

checkpoint = pytest.importorskip("torch.distributed.checkpoint")
try:
    sharded_checkpoint.require_slices()
except UnsupportedError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def folder(tmp_path):
    """Rank 0's, on all ranks."""
    return WORLD.bcast(str(tmp_path))


@pytest.fixture
def sets(hvd):
    """Process sets of so many ranks, with torch's groups of the same; one rank alone is a set, too."""
    made = {}

    def first(count):
        ranks = list(range(count))
        made[count] = hvd.add_process_set(ranks)
        return made[count], dist.new_group(ranks)

    yield first
    for process_set in made.values():
        hvd.remove_process_set(process_set)


def trained(hvd, make, **options):
    model = network()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), shard=True, **options)
    train(hvd, model, optimizer)
    return model, optimizer


def save(optimizer, folder, group=None):
    checkpoint.save({"optimizer": optimizer.sharded_state_dict()}, checkpoint_id=folder, process_group=group)


def load(hvd, make, folder, process_set, group=None):
    model = network()
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), process_set=process_set, shard=True
    )
    state = {"optimizer": optimizer.sharded_state_dict(checkpoint.FileSystemReader(folder))}
    checkpoint.load(state, checkpoint_id=folder, process_group=group)
    optimizer.load_sharded_state_dict(state["optimizer"])
    return model, optimizer


class FlatWhitening(Whitening):
    """Part of its state has one dimension, and as many elements as the parameter."""

    @torch.no_grad()
    def step(self):
        super().step()
        for param, state in self.state.items():
            state["flat"] = param.grad.flatten()


def counters(state):
    return [entries["step"] for _, entries in sorted(state["state"].items()) if "step" in entries]


@pytest.mark.parametrize("make", [adam, maker("SGD", "loop"), maker("Adafactor", "loop"), Whitening, FlatWhitening])
def test_fewer_and_fewer_ranks_read_what_more_have_written(hvd, sets, folder, monkeypatch, make):
    """From all of them by way of one fewer to one alone: exact, and nothing is gathered."""
    _, last = trained(hvd, make)
    expected, group = copy.deepcopy(last.state_dict()), None
    monkeypatch.setattr(sharding.ShardedState, "gather_state", None)
    for count in range(SIZE, 0, -1):
        if count >= RANK:
            save(last, f"{folder}/{count}", group)
        dist.barrier()
        process_set, group = sets(count)
        if count > RANK:
            _, last = load(hvd, make, f"{folder}/{count}", process_set, group)
    monkeypatch.undo()
    if RANK == 0:
        found = last.state_dict()
        assert found["param_groups"] == expected["param_groups"]
        pairs = [*zip(tensors_of(found), tensors_of(expected), strict=True)]
        assert all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)
        assert counters(found) == counters(expected)
    dist.barrier()


def test_training_goes_on_with_the_same_bits(hvd, folder):
    model, optimizer = trained(hvd, adam)
    save(optimizer, folder)
    resumed, again = load(hvd, adam, folder, hvd.global_process_set)
    resumed.load_state_dict(model.state_dict())
    for each, stepped in ((model, optimizer), (resumed, again)):
        train(hvd, each, stepped, range(3))
    assert all(torch.equal(*both) for both in zip(model.parameters(), resumed.parameters(), strict=True))


def test_parameters_without_a_state_have_none_afterwards(hvd, folder):
    model = torch.nn.ModuleList([network(), network()])
    options = {"named_parameters": model.named_parameters(), "shard": True}
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), **options)
    mse(model[0], *part_of(whole_batch(0, SIZE), RANK)).backward()
    optimizer.step()
    save(optimizer, folder)
    state = {"optimizer": optimizer.sharded_state_dict(checkpoint.FileSystemReader(folder))}
    checkpoint.load(state, checkpoint_id=folder)
    expected = optimizer.state_dict()
    optimizer.load_sharded_state_dict(state["optimizer"])
    assert optimizer.state_dict()["state"].keys() == expected["state"].keys()


def test_an_optimizer_without_a_step_is_saved_and_loaded(hvd, folder):
    _, optimizer = trained(hvd, adam)
    twin = network()
    save(hvd.DistributedOptimizer(adam(twin.parameters()), twin.named_parameters(), shard=True), folder)
    state = {"optimizer": optimizer.sharded_state_dict(checkpoint.FileSystemReader(folder))}
    checkpoint.load(state, checkpoint_id=folder)
    optimizer.load_sharded_state_dict(state["optimizer"])
    assert optimizer.state_dict()["state"] == {}


def test_what_does_not_fit_is_refused(hvd, folder, monkeypatch):
    _, optimizer = trained(hvd, adam)
    save(optimizer, folder)
    with pytest.raises(InvalidArgumentError, match="no sharded state of an optimizer under 'mine'"):
        optimizer.sharded_state_dict(checkpoint.FileSystemReader(folder), "mine")
    state = optimizer.sharded_state_dict()
    with pytest.raises(InvalidArgumentError, match="another layout in memory"):
        optimizer.load_sharded_state_dict({**state, "orders": "[]"})
    with pytest.raises(InvalidArgumentError, match="or with other groups"):
        optimizer.load_sharded_state_dict({**state, "param_groups": []})
    with pytest.raises(InvalidArgumentError, match=r"this one has \['state', 'param_groups'\]\. .* goes to load_state_dict"):
        optimizer.load_sharded_state_dict(optimizer.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"result of sharded_state_dict\(\).*pass it to load_sharded_state_dict"):
        optimizer.load_state_dict(state)
    before = dict(optimizer.state)
    with monkeypatch.context() as changed:
        changed.setattr(optimizer._hvdlite.sharded, "_ranks", list(range(SIZE + 1)))  # as after a loss
        with pytest.raises(InvalidArgumentError, match="other ranks than before"):
            optimizer.load_sharded_state_dict(state)
    assert optimizer.state == before
    kept = {param: dict(own) for param, own in optimizer.state.items()}
    state["state"][list(state["state"])[-1]] = None
    with pytest.raises(AttributeError):  # of a file that something has damaged
        optimizer.load_sharded_state_dict(state)
    assert {param: dict(own) for param, own in optimizer.state.items()} == kept
