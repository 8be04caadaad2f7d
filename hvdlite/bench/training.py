"""`python -m hvdlite.bench training`: measures a training step with each *way* to average gradients, and without averages.

All ways start from the same weights and use the same data. Before a way is timed, the gradient of its first step is compared
with the average that MPI computes of the ranks' own gradients.
"""

import argparse
import gc
import importlib
import importlib.metadata
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdlite.bench import report
from hvdlite.bench.collectives import Sink
from hvdlite.bench.measure import Effort, Subject, measure, measurements
from hvdlite.bench.models import MODELS, Model
from hvdlite.bench.peers import PEERS, join_gloo, leave_groups
from hvdlite.bench.team import refuse_wrong
from hvdlite.bench.world import World

if TYPE_CHECKING:
    import torch

# Between two steps torch frees the gradients (none, torch's default), or keeps their memory and writes zeros into it (zero).
ZERO_GRAD = ("none", "zero")

_BATCHES = 16  # the number of different batches
_LEARNING_RATE = 1e-3
_TOLERANCE = 1e-4  # the largest error, relative to the gradient's norm; sums in another order differ by far less
_EFFORT = Effort(sample_seconds=0.25, most_calls=200, most_samples=1)


# --- the ways ---------------------------------------------------------------------------------------------------------

_Wrapped = tuple["torch.nn.Module", "torch.optim.Optimizer"]


@dataclass(frozen=True)
class Way:
    """A way to average gradients.

    Attributes:
        wrap: makes a network and its optimizer train on all ranks. Collective.
        missing: returns the reason why the way cannot be measured here, or None.
        version: returns the version of the way's software; empty if there is none.
        by_default: does the way take part if ``--peers`` is not given?
    """

    wrap: "Callable[[World, torch.nn.Module, torch.optim.Optimizer], _Wrapped]"
    missing: Callable[[], str | None] = lambda: None
    version: Callable[[], str] = str
    by_default: bool = True


def _alone(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
    return network, optimizer


def _in_step(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
    """The ranks wait for each other in each step, but exchange no data."""
    optimizer.register_step_pre_hook(lambda *_: world.barrier())
    return network, optimizer


def _by_module(name: str, **arguments: Any) -> "Callable[[World, torch.nn.Module, torch.optim.Optimizer], _Wrapped]":
    """The `wrap` of a way that uses hvdlite or Horovod; both modules have the same names.

    Args:
        name: the name of the module.
        arguments: further arguments of the module's `DistributedOptimizer`.
    """

    def wrap(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
        hvd = importlib.import_module(name)
        hvd.init()
        if hvd.size() != world.size:
            raise RuntimeError(f"{name} finds {hvd.size()} of {world.size} ranks")
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        return network, hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters(), **arguments)

    return wrap


def _by_ddp(view: bool) -> "Callable[[World, torch.nn.Module, torch.optim.Optimizer], _Wrapped]":
    def wrap(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
        from torch.nn.parallel import DistributedDataParallel

        join_gloo(world)
        return DistributedDataParallel(network, gradient_as_bucket_view=view), optimizer

    return wrap


def _version_of(package: str) -> Callable[[], str]:
    return lambda: importlib.metadata.version(package)


WAYS: Mapping[str, Way] = {
    "none": Way(_alone),
    "lockstep": Way(_in_step),
    "hvdlite": Way(_by_module("hvdlite.torch"), version=_version_of("hvdlite")),
    "hvdlite-view": Way(
        _by_module("hvdlite.torch", gradient_as_bucket_view=True), version=_version_of("hvdlite"), by_default=False
    ),
    "ddp": Way(_by_ddp(view=False), PEERS["gloo"].missing, _version_of("torch")),
    "ddp-view": Way(_by_ddp(view=True), PEERS["gloo"].missing, _version_of("torch")),
    "horovod": Way(_by_module("horovod.torch"), PEERS["horovod"].missing, _version_of("horovod")),
}


# --- the run ----------------------------------------------------------------------------------------------------------


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``training``.
        sink: a function that gets the records.

    Raises:
        WrongSum: a way does not average the gradients. All ranks raise it.
    """
    import torch

    torch.set_num_threads(world.cores)
    absent = {name: world.all_agree(WAYS[name].missing()) for name in options.peers}
    sink(
        [
            {"record": "peer", "peer": name, "absent": reason, "version": "" if reason else WAYS[name].version()}
            for name, reason in absent.items()
        ]
    )
    present = [name for name in options.peers if absent[name] is None]
    groups = list(itertools.product(options.models, options.zero_grad))
    try:
        for model, zero_grad in groups:
            batches = _make_batches(MODELS[model], world.rank)
            make = partial(_Training, world, MODELS[model], zero_grad, batches)
            about = {"model": model, "zero_grad": zero_grad}
            sink(measure_ways(world, present, make, about, options.seconds / len(groups)))
            gc.collect()  # frees the networks before the next ones are made
    finally:
        leave_groups()


class NetworkTraining(ABC):
    """One network that is trained in one way.

    Attributes:
        STEPS: the number of steps in a call of `steps`.
    """

    STEPS = 1

    @abstractmethod
    def steps(self) -> None:
        """Makes `STEPS` steps."""

    def first_step(self) -> None:
        """Makes one step on the first batch."""
        self.steps()

    @abstractmethod
    def first_gradient(self) -> NDArray[np.float32]:
        """The gradient of the first step, computed from the optimizer's momentum. Called directly after the first step."""


def measure_ways(
    world: World, ways: Sequence[str], make: Callable[[str], NetworkTraining], about: report.Record, seconds: float
) -> list[report.Record]:
    """Checks the gradients of all ways, and measures their steps. Collective.

    Args:
        world: the ranks.
        ways: the names of the ways.
        make: a function that makes the network for a way; always called for ``none`` too, whose gradients give the average.
        about: the keys of the records that name the model and the loop.
        seconds: the approximate time.

    Raises:
        WrongSum: a way does not average the gradients. All ranks raise it.
    """
    alone = make("none")
    alone.first_step()
    average, steps = world.sum(alone.first_gradient()) / np.float32(world.size), alone.STEPS
    del alone  # its memory is free for the others
    subjects = []
    for way in ways:
        training = make(way)
        training.first_step()
        what = f"{way} on {', '.join(about.values())}"
        _check_gradient(world, what, training.first_gradient(), average, way in ("none", "lockstep"))
        training.steps()
        subjects.append(Subject(way, training.steps, training.STEPS))
    done = measure(world, subjects, _EFFORT, seconds)
    for samples in done.values():
        samples.calls *= steps
    return report.with_percentages(measurements(world, "training", done, **about, gradient_bytes=average.nbytes))


_Batch = tuple["torch.Tensor", "torch.Tensor"]


def _make_batches(model: Model, rank: int) -> list[_Batch]:
    """Inputs and labels that differ between ranks."""
    import torch

    dice = torch.Generator().manual_seed(1000 + rank)
    return [
        (
            torch.randn(model.batch, *model.input_shape, generator=dice),
            torch.randint(model.classes, (model.batch,), generator=dice),
        )
        for _ in range(_BATCHES)
    ]


class _Training(NetworkTraining):
    def __init__(self, world: World, model: Model, zero_grad: str, batches: Sequence[_Batch], way: str) -> None:
        import torch

        torch.manual_seed(1)
        network = model.make()
        optimizer = torch.optim.SGD(network.parameters(), lr=_LEARNING_RATE, momentum=0.9)
        self._parameters = list(network.parameters())
        self._network, self._optimizer = WAYS[way].wrap(world, network, optimizer)
        self._to_none = zero_grad == "none"
        self._turns = itertools.cycle(batches)
        self._inputs, self._labels = (tensor.clone() for tensor in batches[0])
        self._loss = torch.nn.functional.cross_entropy

    def steps(self) -> None:
        """Makes one step on the next batch. The batch is copied into the memory of the previous batch, as data loaders do."""
        inputs, labels = next(self._turns)
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._optimizer.zero_grad(set_to_none=self._to_none)
        self._loss(self._network(self._inputs), self._labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def first_gradient(self) -> NDArray[np.float32]:
        momenta = [self._optimizer.state[parameter]["momentum_buffer"] for parameter in self._parameters]
        return np.concatenate([momentum.numpy().ravel() for momentum in momenta])


def _check_gradient(
    world: World, subject: str, gradient: NDArray[np.float32], average: NDArray[np.float32], alone: bool
) -> None:
    """Checks that this rank's gradient is the average over the ranks. Collective.

    With `alone` and several ranks, checks that the gradient is not the average.

    Args:
        world: the ranks.
        subject: the name of the way and the model, for the error.
        gradient: all elements of this rank's gradient, float32.
        average: the right average, with the shape of `gradient`.
        alone: does the way average nothing?

    Raises:
        WrongSum: the check fails on a rank. All ranks raise it.
    """
    error = float(np.linalg.norm(gradient - average) / np.linalg.norm(average))
    if world.size > 1 and alone:
        problem = "all ranks have the same gradient, so the check shows nothing" if error < 100 * _TOLERANCE else None
    else:
        problem = None if error <= _TOLERANCE else f"the gradient has an error of {100 * error:.3g} %"
    refuse_wrong(world, subject, problem)
