"""Training on all ranks' parts of a batch, beside one process (each rank, for itself) on the whole batch."""

import torch
from support.world import WORLD

ROWS = 4  # of the batch, for each rank
STEPS = 10  # of a training; rounding errors and stale state have grown visible by then
FEATURES = 6
CLASSES = 3
DEVICE = torch.device("cpu")  # of networks and batches; tests/gpu sets another


def whole_batch(step, size, dtype=torch.float64, rows=ROWS):
    """The same on all ranks, different for each step; the parts differ by construction."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(rows * size, FEATURES, generator=generator, dtype=dtype)
    targets = torch.randn(rows * size, CLASSES, generator=generator, dtype=dtype)
    return inputs.to(DEVICE), targets.to(DEVICE)


def part_of(tensors, rank, rows=ROWS):
    """A rank's rows of each tensor."""
    return [tensor[rank * rows : (rank + 1) * rows] for tensor in tensors]


def network(seed=7, dtype=torch.float64, hidden=8):
    """A small network, the same wherever it is made."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, CLASSES),
    ).to(DEVICE, dtype)


def mse(model, inputs, targets):
    """The mean over the rows, so that the ranks' average is that of the whole batch."""
    return (model(inputs) - targets).square().mean()


def assert_same_bits(tensors):
    """All ranks hold the same bits; compared through mpi4py, not through hvdlite."""
    mine = [None if tensor is None else tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    everyone = WORLD.allgather([None if bits is None else bits.cpu().numpy().tobytes() for bits in mine])
    for rank, theirs in enumerate(everyone):
        differing = [place for place, pair in enumerate(zip(theirs, everyone[0], strict=True)) if pair[0] != pair[1]]
        assert not differing, f"tensors {differing} differ between rank 0 and rank {rank}"


def grads_of(model):
    return [param.grad for param in model.parameters()]


def assert_close(found, expected, tolerance=1e-12):
    """Lists of tensors, or of None in the same places, are equal up to rounding."""
    assert len(found) == len(expected)
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one is None) == (other is None), f"tensor {place}: {one} and {other}"
        if one is not None:
            one, other = one.detach(), other.detach()
            if one.layout is not torch.strided:
                one = one.to_dense()
            if other.layout is not torch.strided:
                other = other.to_dense()
            scale = max(1.0, other.abs().max().item()) if other.numel() else 1.0
            worst = (one - other).abs().max().item() if one.numel() else 0.0
            assert worst <= tolerance * scale, f"tensor {place} is off by {worst} (scale {scale})"


class Pair:
    """One model trained by all ranks on their parts, and its twin trained here on the whole batch.

    Attributes:
        model, optimizer: distributed; its gradients are compared with the twin's after each backward.
        twin, twin_optimizer: of one process.
    """

    def __init__(self, hvd, make_optimizer, build=network, tolerance=1e-12, named=True, **options):
        self.hvd = hvd
        self.tolerance = tolerance
        self.model, self.twin = build(), build()
        plain = make_optimizer(self.model.parameters())
        if named:
            options["named_parameters"] = self.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(plain, **options)
        self.twin_optimizer = make_optimizer(self.twin.parameters())

    def parts(self, step, dtype=torch.float64, rows=ROWS):
        """(this rank's inputs and targets, the whole batch's)."""
        whole = whole_batch(step, self.hvd.size(), dtype, rows)
        return part_of(whole, self.hvd.rank(), rows), whole

    def backward(self, *batch):
        """A pass of each through its part of a batch, of `mse`. batch: as `parts` takes it."""
        part, whole = self.parts(*batch)
        mse(self.model, *part).backward()
        mse(self.twin, *whole).backward()

    def zero(self, **options):
        self.optimizer.zero_grad(**options)
        self.twin_optimizer.zero_grad(**options)

    def step(self):
        self.optimizer.step()
        self.twin_optimizer.step()

    def check_grads(self):
        assert_close(grads_of(self.model), grads_of(self.twin), self.tolerance)
        assert_same_bits(grads_of(self.model))

    def check_weights(self):
        assert_close(list(self.model.parameters()), list(self.twin.parameters()), self.tolerance)
        assert_same_bits(list(self.model.parameters()))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(params):
    return torch.optim.Adam(params, lr=0.01, weight_decay=0.01)
