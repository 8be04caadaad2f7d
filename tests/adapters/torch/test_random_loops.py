"""Training loops put together at random from everything a loop may do, beside one process that does the same."""

import random
from contextlib import nullcontext

import pytest
import torch
from reference import FEATURES, STEPS, assert_close, assert_same_bits, grads_of, part_of, whole_batch
from support.seeds import seeds
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    """Branches to choose from, a layer that is used twice, a table with sparse gradients, and a layer that is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(21)
        self.table = torch.nn.Embedding(10, FEATURES, sparse=True)
        self.stem = torch.nn.Linear(FEATURES, 5)
        self.shared = torch.nn.Linear(5, 5)
        self.left = torch.nn.Linear(5, 3)
        self.right = torch.nn.Linear(5, 3)
        self.idle = torch.nn.Linear(2, 2)
        self.double()

    def forward(self, inputs, take, reentrant):
        if "table" in take:
            inputs = inputs + self.table(inputs[:, 0].abs().mul(3).long().clamp(max=9))
        hidden = torch.tanh(self.stem(inputs))
        for _ in range(2):
            hidden = torch.tanh(self.shared(hidden))
        if reentrant:
            inner = [checkpoint(getattr(self, name), hidden, use_reentrant=True) for name in take if name != "table"]
        else:
            inner = [getattr(self, name)(hidden) for name in take if name != "table"]
        return sum(inner)


BRANCHES = [("left",), ("right",), ("left", "right"), ("table", "left"), ("table", "right")]


class Loop:
    """One side: the ranks' (whose loss is that of its part) or one process's (the mean of all parts' losses)."""

    def __init__(self, hvd, alone, options, factor):
        self.hvd = hvd
        self.alone = alone
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        if not alone:
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters(), **options)
        self.factor = factor

    def loss(self, number, takes, reentrant):
        """Of the ranks of this side that take part."""
        ranks = range(self.hvd.size()) if self.alone else [self.hvd.rank()]
        batch = whole_batch(number, self.hvd.size())
        losses = []
        for rank in ranks:
            if takes[rank]:
                inputs, targets = part_of(batch, rank)
                losses.append((self.model(inputs, takes[rank], reentrant) - targets).square().mean())
        return sum(losses) * (self.factor / len(ranks) if self.alone else 1.0)

    def kept_back(self, quiet):
        return self.optimizer.no_sync() if quiet and not self.alone else nullcontext()

    def reset(self, how):
        if how == "optimizer":
            self.optimizer.zero_grad()
        elif how == "zeros":
            self.optimizer.zero_grad(set_to_none=False)
        elif how == "module":
            self.model.zero_grad()
        elif how == "by hand":
            for param in self.model.parameters():
                param.grad = None

    def backward(self, kind, *args):
        loss = self.loss(*args)
        if not isinstance(loss, torch.Tensor):
            return  # this rank has nothing to do
        if kind == "twice":
            loss.backward(retain_graph=True)
            loss.backward()
        elif kind == "some":
            loss.backward(inputs=[param for param in self.model.shared.parameters() if param.requires_grad])
        else:
            loss.backward()
        if kind == "looked at":
            used = [param for param in self.model.stem.parameters() if param.requires_grad]
            if used:
                torch.autograd.grad(self.loss(*args), used)

    def scale(self):
        for param in self.model.parameters():
            if param.grad is not None:
                param.grad.mul_(0.5)

    def synchronize(self):
        if not self.alone:
            self.optimizer.synchronize()

    def step(self, how):
        if how == "skip" and not self.alone:
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        elif how == "closure":
            self.optimizer.step(lambda: 0.0)
        else:
            self.optimizer.step()

    def thaw(self, layer, thawed):
        getattr(self.model, layer).requires_grad_(thawed)


def one_step(loops, choose, step, size):
    """The same on all ranks, but for the branches."""
    layer, thawed = choose.choice(["stem", "left", "right", "idle"]), choose.random() < 0.7
    reset = choose.choice(["optimizer", "optimizer", "zeros", "module", "by hand", "nothing"])
    for loop in loops:
        loop.thaw(layer, thawed)
        loop.reset(reset)
    reduced = True
    passes = choose.randint(1, 3)
    for number in range(passes):
        takes = [choose.choice(BRANCHES) for _ in range(size)]
        kind = choose.choice(["plain", "plain", "twice", "some", "looked at"])
        reentrant = kind in ("plain", "twice") and choose.random() < 0.2
        quiet = choose.random() < 0.3
        # A rank may do without backward where step() or synchronize() is the first of the step to reduce.
        idle = passes == 1 and kind == "plain" and not quiet and reset in ("optimizer", "zeros")
        if idle:
            takes[choose.randrange(size)] = ()
        for loop in loops:
            with loop.kept_back(quiet):
                loop.backward(kind, 10 * step + number, takes, reentrant)
        if idle:
            for loop in loops:
                loop.synchronize()
        reduced = not quiet  # before that, what is there must be left alone
        if reduced and choose.random() < 0.3:
            for loop in loops:
                loop.scale()
        if choose.random() < 0.2:
            for loop in loops:
                loop.synchronize()
            reduced = True
        if reduced:
            compare([loop.model for loop in loops])
    how = choose.choice(["plain", "plain", "closure", "skip" if reduced else "plain"])
    if choose.random() < 0.9:
        for loop in loops:
            loop.step(how)
        compare([loop.model for loop in loops])


def compare(models):
    ours, alone = models
    assert_close(grads_of(ours), grads_of(alone), 1e-9)
    assert_close(list(ours.parameters()), list(alone.parameters()), 1e-9)


@pytest.mark.parametrize("seed", seeds([*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))]))
def test_random_loops(hvd, seed):
    choose = random.Random(seed)
    op = choose.choice(["Average", "Sum"])
    options = {
        "op": getattr(hvd, op),
        "groups": choose.choice([None, None, 1, 2]),
        "gradient_as_bucket_view": choose.choice([None, True, False]),
        "sparse_as_dense": choose.choice([False, True]),
        "gradient_predivide_factor": choose.choice([1.0, 4.0]) if op == "Average" else 1.0,
    }
    factor = hvd.size() if op == "Sum" else 1.0
    loops = [Loop(hvd, alone, options, factor) for alone in (False, True)]
    for step in range(STEPS):
        one_step(loops, choose, step, hvd.size())
    assert_same_bits(list(loops[0].model.parameters()))
