"""`DistributedOptimizer(shard=True)`: the weights of one that is not sharded, from a part of its state on each rank.

Over 400 lines, because all cases compare the same pair of optimizers.
"""

import copy
import functools
import pickle

import pytest
import reference
import torch
from reference import assert_close, assert_same_bits, grads_of, mse, part_of, whole_batch
from support.world import WORLD
from test_optimizers import OPTIMIZERS, SignDescent, maker

from hvdlite.errors import InvalidArgumentError, MismatchError, OperationTimeoutError, UnsupportedError
from hvdlite.torch import sharding
from hvdlite.torch.sharded_parameter import assign_largest_first, cut_evenly

STEPS = 4
SPLIT = [name for name in OPTIMIZERS if name != "Adafactor"]  # between ranks, by elements


network = functools.partial(reference.network, hidden=30)  # its parameters are cut inside, and have ends that are no vectors


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(sharding, "PACKED_BYTES", 1 << 9)  # parts travel by themselves, and several together
    monkeypatch.setattr(sharding, "LEAST_BYTES", 1 << 11)


def train(hvd, model, optimizer, steps=range(STEPS)):
    for step in steps:
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()


def pair(hvd, make, build=network, steps=STEPS, **options):
    """Two like models that all ranks train, (model, optimizer) each: the first with a sharded optimizer, the second without."""
    found = []
    for shard in (True, False):
        model = build()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), shard=shard, **options)
        train(hvd, model, optimizer, range(steps))
        found.append((model, optimizer))
    return found


def adam(params):
    return torch.optim.Adam(params, lr=0.01, weight_decay=0.01)


def assert_equal(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))
    assert_same_bits(found)


def tensors_of(state):
    """The tensors of a state_dict's state, in order, without the counters of steps."""
    return [
        value
        for _, entries in sorted(state["state"].items())
        for _, value in sorted(entries.items())
        if isinstance(value, torch.Tensor) and value.dim()
    ]


def elements_kept(optimizer):
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() for value in values if torch.is_tensor(value) and value.dim())


@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("name", SPLIT)
def test_weights_and_state_have_the_same_bits(hvd, name, implementation):
    (model, optimizer), (twin, plain) = pair(hvd, maker(name, implementation))
    assert_equal(model.parameters(), twin.parameters())
    if implementation == "loop":  # others may use the gradients' memory for their own sums
        assert_equal(grads_of(model), grads_of(twin))
    state, expected = optimizer.state_dict(), plain.state_dict()
    assert_equal(tensors_of(state), tensors_of(expected))
    assert [sorted(entries) for entries in state["state"].values()] == [
        sorted(entries) for entries in expected["state"].values()
    ]
    assert state["param_groups"] == expected["param_groups"]
    everything = elements_kept(plain)
    mine = elements_kept(optimizer)
    assert sum(WORLD.allgather(mine)) == everything
    moments = everything // sum(param.numel() for param in model.parameters())
    assert abs(mine - everything / hvd.size()) <= 64 * max(1, moments)  # where a parameter is cut


class Whitening(torch.optim.Optimizer):
    """It looks at whole matrices: an element's step depends on its row and column."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in filter(lambda param: param.grad is not None, group["params"]):
                state = self.state[param]
                mean = state.setdefault("mean", torch.zeros_like(param.grad.sum(0)))
                mean.mul_(0.9).add_(param.grad.sum(0))
                if param.dim() == 2:  # two tensors in the order of columns, one of them of the parameter's shape
                    state["turned"] = param.grad.t().clone().t()
                    state["twice"] = param.grad.t().repeat(2, 1).t()
                param.sub_(group["lr"] * (param.grad / (1 + param.grad.norm()) + mean))


@pytest.mark.parametrize("make", [maker("Adafactor", "loop"), Whitening, lambda params: SignDescent(params, 0.01)])
def test_optimizers_that_look_at_whole_parameters_step_each_on_one_rank(hvd, make):
    (model, optimizer), (twin, plain) = pair(hvd, make)
    assert_equal(model.parameters(), twin.parameters())
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(plain.state_dict()))
    assert sum(WORLD.allgather(elements_kept(optimizer))) == elements_kept(plain)
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


class Odd(torch.nn.Module):
    """Parameters in other orders of memory, of no dimension, without elements, frozen, unused and tied ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(6, 5)
        self.second = torch.nn.Linear(5, 5)
        self.second.bias = self.first.bias
        self.turned = torch.nn.Parameter(torch.randn(3, 5).t())  # its memory is in the order of columns
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.nothing = torch.nn.Parameter(torch.empty(0, 5))
        self.frozen = torch.nn.Parameter(torch.randn(5, 5), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.randn(4))
        self.narrow = torch.nn.Parameter(torch.randn(5))

    def forward(self, x):
        hidden = torch.tanh(self.second(self.first(x)) @ self.frozen) + self.narrow
        return (hidden @ self.turned) * self.scale + self.nothing.sum()


@pytest.mark.parametrize("make", [adam, Whitening])
def test_parameters_of_every_kind(hvd, make):
    def build():
        model = Odd().to(torch.float64)
        model.narrow.data = model.narrow.data.float()
        return model

    (model, optimizer), (twin, plain) = pair(hvd, make, build)
    assert_equal(model.parameters(), twin.parameters())
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(plain.state_dict()))
    assert model.turned.stride() == twin.turned.stride()


def test_clipping_hooks_and_a_closure_see_whole_gradients(hvd):
    """A hook that is registered after the wrapping, too."""
    seen = []

    def clip(optimizer, *_):
        params = optimizer.param_groups[0]["params"]
        seen.append(float(torch.nn.utils.clip_grad_norm_(params, 0.05)))

    models = []
    for shard in (True, False):
        model = network()
        optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=shard)
        optimizer.register_step_pre_hook(clip)
        shapes = []

        def note(*_, model=model, shapes=shapes):
            shapes += [param.shape for param in model.parameters()]

        optimizer.register_step_post_hook(note)
        for step in range(STEPS):
            inputs, targets = part_of(whole_batch(step, hvd.size()), hvd.rank())

            def closure(model=model, optimizer=optimizer, inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = mse(model, inputs, targets)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            assert_same_bits([loss])
        assert shapes[: len(list(model.parameters()))] == [param.shape for param in model.parameters()]
        models.append(model)
    assert seen[:STEPS] == seen[STEPS:]
    assert_equal(models[0].parameters(), models[1].parameters())


@pytest.mark.parametrize("before_wrapping", [True, False])
def test_schedulers(hvd, before_wrapping):
    models = []
    for shard in (True, False):
        model = network()
        optimizer = adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if before_wrapping else None
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=shard)
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(STEPS):
            train(hvd, model, optimizer, [step])
            scheduler.step()
        models.append(model)
    assert_equal(models[0].parameters(), models[1].parameters())


def test_parameters_that_are_added_later(hvd):
    models = []
    for shard in (True, False):
        model, head = network(), network(seed=8)
        optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=shard)
        train(hvd, model, optimizer)
        optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.1})
        both = torch.nn.ModuleList([model, head])
        for step in range(STEPS):
            optimizer.zero_grad()
            batch = part_of(whole_batch(step, hvd.size()), hvd.rank())
            (mse(model, *batch) + mse(head, *batch)).backward()
            optimizer.step()
        models.append((both, optimizer))
    assert_equal(models[0][0].parameters(), models[1][0].parameters())
    assert_equal(tensors_of(models[0][1].state_dict()), tensors_of(models[1][1].state_dict()))


def test_a_group_that_is_refused_is_not_added(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    gaps = torch.nn.Parameter(torch.zeros(4, 8)[:, ::2])
    with pytest.raises(InvalidArgumentError, match="elements that overlap, or have gaps between them"):
        optimizer.add_param_group({"params": [gaps]})
    assert len(optimizer.param_groups) == 1
    train(hvd, model, optimizer)


def test_a_state_goes_to_any_number_of_ranks(hvd):
    """From all ranks to a pair of them, sharded anew, and from there into an optimizer that nobody wrapped."""
    (model, optimizer), (twin, plain) = pair(hvd, adam)
    few = hvd.add_process_set([0, 1])
    saved = copy.deepcopy(optimizer.state_dict())
    resumed, reference = network(), network()
    resumed.load_state_dict(model.state_dict())
    reference.load_state_dict(twin.state_dict())
    expected = adam(reference.parameters())
    expected.load_state_dict(plain.state_dict())
    sharded = hvd.DistributedOptimizer(adam(resumed.parameters()), resumed.named_parameters(), process_set=few, shard=True)
    if few.included():
        sharded.load_state_dict(saved)
        for step in range(STEPS):
            batch = whole_batch(step, 1)  # the same on both, so that their average is that of one process
            for each, stepped in ((resumed, sharded), (reference, expected)):
                stepped.zero_grad()
                mse(each, *batch).backward()
                stepped.step()
        assert all(torch.equal(*both) for both in zip(resumed.parameters(), reference.parameters(), strict=True))
        last = sharded.state_dict()
        alone = adam(network().parameters())
        alone.load_state_dict(last)
        states = zip(tensors_of(alone.state_dict()), tensors_of(expected.state_dict()), strict=True)
        assert all(torch.equal(*both) for both in states)
    hvd.remove_process_set(few)


@pytest.mark.parametrize("stepped", [False, True])
def test_the_state_of_one_rank_is_broadcast(hvd, stepped):
    """As programs of Horovod resume: rank 0 reads a file, before or after the optimizer has stepped."""
    (_, optimizer), (_, plain) = pair(hvd, adam)
    saved = plain.state_dict()
    model = network()
    fresh = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    if stepped:
        train(hvd, model, fresh, range(2))
    if hvd.rank() == 0:
        fresh.load_state_dict(copy.deepcopy(saved))
    hvd.broadcast_optimizer_state(fresh, root_rank=0)
    assert_equal(tensors_of(fresh.state_dict()), tensors_of(saved))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # changes nothing
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(saved))


def test_a_gathered_state_is_broadcast_before_the_first_step(hvd):
    """The check of the start finds no difference: all ranks have their part."""
    model = network()
    plain = adam(model.parameters())
    mse(model, *whole_batch(0, 1)).backward()
    plain.step()
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), shard=True)
    saved = copy.deepcopy(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(saved))
    train(hvd, model, optimizer)


def test_a_state_that_only_one_rank_has_loaded_is_named(hvd):
    (_, _), (_, plain) = pair(hvd, adam, steps=1)
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    if hvd.rank() == 0:
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"missing on rank 1.*hvd\.broadcast_optimizer_state"):
        optimizer.state_dict()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(plain.state_dict()))


def test_wrapping_again_gives_the_whole_state_back(hvd):
    (model, optimizer), (_, plain) = pair(hvd, adam)
    hvd.DistributedOptimizer(optimizer, model.named_parameters())
    assert elements_kept(optimizer) == elements_kept(plain)
    assert_equal(tensors_of(optimizer.state_dict()), tensors_of(plain.state_dict()))
    hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=True)
    train(hvd, model, optimizer, [5])
    assert sum(WORLD.allgather(elements_kept(optimizer))) == elements_kept(plain)


def test_wrapping_again_without_the_whole_state_changes_nothing(hvd):
    (_, _), (_, plain) = pair(hvd, adam, steps=1)
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    if hvd.rank() == 0:
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"missing on rank 1"):
        hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(hvd, model, optimizer)
    assert_same_bits(grads_of(model))


@pytest.mark.parametrize("make", [adam, Whitening])
def test_the_memory_format_may_change(hvd, make):
    models = []
    for shard in (True, False):
        torch.manual_seed(4)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 9, 3), torch.nn.Conv2d(9, 5, 1))
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), shard=shard)
        for step, memory_format in enumerate((torch.contiguous_format, torch.channels_last, torch.contiguous_format)):
            model.to(memory_format=memory_format)
            for turn in range(2):
                images = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2 * step + turn))
                optimizer.zero_grad()
                model(images * (hvd.rank() + 1)).square().mean().backward()
                optimizer.step()
        models.append((model, tensors_of(optimizer.state_dict())))
    (model, state), (twin, expected) = models
    assert_close(list(model.parameters()), list(twin.parameters()), 1e-5)  # torch adds up in the order of memory
    assert_close(state, expected, 1e-5)
    assert_same_bits(state)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_that_raises_leaves_parameters_whole(hvd, scheduled):
    """With a scheduler that was made before the wrapping, too: it calls the step of the plain class."""
    model = network()
    optimizer = adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1) if scheduled else None
    own = vars(optimizer).get("step")
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=True)
    before = [param.detach().clone() for param in model.parameters()]
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    grads = [grad.clone() for grad in grads_of(model)]
    optimizer.param_groups[0]["betas"] = None
    with pytest.raises(TypeError):
        optimizer.step()
    assert_equal(model.parameters(), before)
    assert_equal(grads_of(model), grads)
    assert len(optimizer.param_groups[0]["params"]) == len(before)
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert_same_bits(list(model.parameters()))
    assert not torch.equal(before[0], next(model.parameters()))
    hvd.DistributedOptimizer(optimizer)
    assert vars(optimizer).get("step") is own
    assert scheduled == (scheduler is not None)


class InterruptedOnce(list):
    """Ctrl-C comes when the first item has been removed."""

    def pop(self):
        value = super().pop()
        if not hasattr(self, "came"):
            self.came = True
            raise KeyboardInterrupt
        return value


@pytest.mark.parametrize("what", ["_swapped", "_groups"])
def test_an_interrupted_step_leaves_parameters_whole(hvd, what):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    shapes = [param.shape for param in model.parameters()]
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    setattr(optimizer._hvdlite.sharded, what, InterruptedOnce())
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert [param.shape for param in model.parameters()] == shapes
    assert len(optimizer.param_groups[0]["params"]) == len(shapes)


def test_what_does_not_go_with_sharding_is_refused(hvd):
    model = network()
    make = hvd.DistributedOptimizer
    with pytest.raises(UnsupportedError, match=r"LBFGS: its step combines all parameters"):
        make(torch.optim.LBFGS(model.parameters()), shard=True)
    with pytest.raises(UnsupportedError, match=r"SparseAdam"):
        make(torch.optim.SparseAdam(model.parameters()), shard=True)
    with pytest.raises(InvalidArgumentError, match=r"shard must be True or False, got 2"):
        make(adam(model.parameters()), shard=2)
    if hvd.size() == 2:
        with pytest.raises(UnsupportedError, match=r"op=Adasum"):
            make(adam(model.parameters()), op=hvd.Adasum, shard=True)
    expanded = torch.nn.Parameter(torch.zeros(3, 1).expand(3, 4))
    with pytest.raises(InvalidArgumentError, match=r"'0\.0' of strides \[1, 0\].*contiguous"):
        make(adam([expanded]), shard=True)
    optimizer = make(adam(model.parameters()), model.named_parameters(), shard=True)
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match=r"save optimizer\.state_dict\(\)"):
            copying(optimizer)
    embedding = torch.nn.Embedding(9, 4, sparse=True)
    optimizer = make(torch.optim.SGD(embedding.parameters(), lr=0.1), shard=True)
    embedding(torch.tensor([hvd.rank()])).sum().backward()
    with pytest.raises(UnsupportedError, match=r"gradient of '.*' is sparse"):
        optimizer.step()


def test_ranks_that_differ_in_it_are_named(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=hvd.rank() != 1)
    with pytest.raises(MismatchError, match=r"shard is True on rank.*False on rank 1"):
        train(hvd, model, optimizer, [0])


def test_a_rank_that_has_joined_steps_nothing(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    train(hvd, model, optimizer, [0])
    if hvd.rank() != 0:
        with pytest.raises(
            MismatchError, match=r"no rank may have joined: .*rank 0, has joined.*calls hvd\.join\(\), leave shard out"
        ):
            train(hvd, model, optimizer, [1])
    hvd.join()


def test_a_state_dict_without_a_rank_that_has_joined_is_refused(hvd):
    (_, optimizer), _ = pair(hvd, adam, steps=1)
    if hvd.rank() != 0:
        with pytest.raises(MismatchError, match=r"rank 0 joined, so a part of the state is missing"):
            optimizer.state_dict()
    hvd.join()


def test_a_state_dict_that_one_rank_alone_asks_for_is_named(hvd):
    (_, optimizer), _ = pair(hvd, adam, steps=1)
    call = optimizer.state_dict if hvd.rank() == 0 else lambda: hvd.allreduce(torch.ones(3), name="others.go.on")
    with pytest.raises(OperationTimeoutError, match=r"optimizer\d+\.state_dict"):
        call()


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("cut", [cut_evenly, assign_largest_first])
def test_parts_are_disjoint_complete_and_even(cut, ranks):
    sizes = [100, 0, 1, 640, 30, 30, 2000, 5, 5, 410]
    bounds = cut(sizes, ranks)
    owned = [0] * ranks
    for size, own in zip(sizes, bounds, strict=True):
        assert own[0] == 0
        assert own[-1] == size
        assert list(own) == sorted(own)
        for rank in range(ranks):
            owned[rank] += own[rank + 1] - own[rank]
        if cut is assign_largest_first and size:
            assert sum(own[rank + 1] > own[rank] for rank in range(ranks)) == 1
        assert all(bound % 64 == 0 or bound == size for bound in own)
    assert sum(owned) == sum(sizes)
    assert max(owned) - min(owned) <= (2 * 64 if cut is cut_evenly else max(sizes))


def test_close_to_one_process(hvd):
    """On the whole batch, as all of this is about."""
    (model, _), _ = pair(hvd, adam)
    twin = network()
    plain = adam(twin.parameters())
    for step in range(STEPS):
        plain.zero_grad()
        mse(twin, *whole_batch(step, hvd.size())).backward()
        plain.step()
    assert_close(list(model.parameters()), list(twin.parameters()), 1e-9)
