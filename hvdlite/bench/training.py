"""`python -m hvdlite.bench training`: measures a step of training with each way to average gradients, and without averages.

All ways start from the same weights and use the same data. Before a way is timed, the gradient of its first step is compared
with the average that MPI computes of the ranks' own gradients.
"""

import gc
import importlib
import importlib.metadata
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdlite.bench import report
from hvdlite.bench.measure import Effort, Subject, measure
from hvdlite.bench.models import MODELS, Model
from hvdlite.bench.peers import PEERS, join_gloo, leave_groups
from hvdlite.bench.team import refuse_wrong
from hvdlite.bench.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["WAYS", "ZERO_GRAD", "TrainingPlan", "check_gradient", "run"]

# Between two steps torch either frees the gradients (its default) or keeps their memory and writes zeros into it.
ZERO_GRAD = ("none", "zero")

_BATCHES = 16  # the number of different batches
_LEARNING_RATE = 1e-3
_TOLERANCE = 1e-4  # the largest error, relative to the gradient's norm; sums in another order differ by far less
_EFFORT = Effort(sample_seconds=0.25, most_calls=200, most_samples=1)


@dataclass(frozen=True)
class TrainingPlan:
    """The selection to measure.

    Attributes:
        models: names of `MODELS`.
        zero_grad: names of `ZERO_GRAD`.
        ways: names of `WAYS`.
        seconds: the approximate time for all measurements.
    """

    models: Sequence[str]
    zero_grad: Sequence[str]
    ways: Sequence[str]
    seconds: float


# --- the ways ---------------------------------------------------------------------------------------------------------

_Wrapped = tuple["torch.nn.Module", "torch.optim.Optimizer"]


@dataclass(frozen=True)
class Way:
    """A way to average gradients.

    Attributes:
        missing: returns the reason why the way cannot be measured here, or None.
        wrap: makes a network and its optimizer train on all ranks. Collective.
        version: returns the version of the way's software.
        by_default: does the way take part if ``--peers`` is not given?
    """

    missing: Callable[[], str | None]
    wrap: "Callable[[World, torch.nn.Module, torch.optim.Optimizer], _Wrapped]"
    version: Callable[[], str]
    by_default: bool = True


def _alone(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
    return network, optimizer


def _in_step(world: World, network: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> _Wrapped:
    """The ranks wait for each other in each step, but exchange no data."""
    optimizer.register_step_pre_hook(lambda *_: world.barrier())
    return network, optimizer


def _by_module(name: str, **arguments: Any) -> "Callable[[World, torch.nn.Module, torch.optim.Optimizer], _Wrapped]":
    """The `wrap` of hvdlite or Horovod, which have the same names.

    Args:
        name: the name of the module.
        arguments: further arguments of its `DistributedOptimizer`.
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
    "none": Way(lambda: None, _alone, lambda: ""),
    "lockstep": Way(lambda: None, _in_step, lambda: ""),
    "hvdlite": Way(lambda: None, _by_module("hvdlite.torch"), _version_of("hvdlite")),
    "hvdlite-view": Way(
        lambda: None, _by_module("hvdlite.torch", gradient_as_bucket_view=True), _version_of("hvdlite"), by_default=False
    ),
    "ddp": Way(PEERS["gloo"].missing, _by_ddp(view=False), _version_of("torch")),
    "ddp-view": Way(PEERS["gloo"].missing, _by_ddp(view=True), _version_of("torch")),
    "horovod": Way(PEERS["horovod"].missing, _by_module("horovod.torch"), _version_of("horovod")),
}


# --- the run ----------------------------------------------------------------------------------------------------------


def run(world: World, plan: TrainingPlan, sink: Callable[[Sequence[report.Record]], None]) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Raises:
        WrongSum: a way does not average the gradients. All ranks raise it.
    """
    import torch

    torch.set_num_threads(world.cores)
    absent = {name: world.all_agree(WAYS[name].missing()) for name in plan.ways}
    sink(
        [
            {"record": "peer", "peer": name, "absent": reason, "version": "" if reason else WAYS[name].version()}
            for name, reason in absent.items()
        ]
    )
    present = [name for name in plan.ways if absent[name] is None]
    groups = list(itertools.product(plan.models, plan.zero_grad))
    try:
        for model, zero_grad in groups:
            sink(_measured(world, model, zero_grad, present, plan.seconds / len(groups)))
            gc.collect()  # frees the networks before the next ones are made
    finally:
        leave_groups()


def _measured(world: World, model: str, zero_grad: str, ways: Sequence[str], seconds: float) -> list[report.Record]:
    batches = _make_batches(MODELS[model], world.rank)
    average = _average_gradient(world, MODELS[model], batches)
    subjects = []
    for name in ways:
        training = _Training(world, name, MODELS[model], zero_grad, batches)
        training.step()
        check_gradient(world, name, model, training.first_gradient(), average, name in ("none", "lockstep"))
        subjects.append(Subject(name, [], training.step))
    done = measure(world, subjects, _EFFORT, seconds)
    more = {"model": model, "zero_grad": zero_grad, "gradient_bytes": average.nbytes, "ranks": world.size, "bind": world.bind}
    group = [report.measurement("training", name, at.rounds, at.calls, **more) for name, at in done.items()]
    return report.with_percentages(group)


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


class _Training:
    """One network that is trained in one way."""

    def __init__(self, world: World, way: str, model: Model, zero_grad: str, batches: Sequence[_Batch]) -> None:
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

    def step(self) -> None:
        """Makes one step on the next batch. The batch is copied into the memory of the last one, as loaders do."""
        inputs, labels = next(self._turns)
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._optimizer.zero_grad(set_to_none=self._to_none)
        self._loss(self._network(self._inputs), self._labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def first_gradient(self) -> NDArray[np.float32]:
        """The gradient of the first step, to be called after this step. The optimizer's momentum is then this gradient."""
        momenta = [self._optimizer.state[parameter]["momentum_buffer"] for parameter in self._parameters]
        return np.concatenate([momentum.numpy().ravel() for momentum in momenta])


def _average_gradient(world: World, model: Model, batches: Sequence[_Batch]) -> NDArray[np.float32]:
    """The average of the ranks' own gradients, computed by MPI. Collective."""
    alone = _Training(world, "none", model, "none", batches)
    alone.step()
    total = world.sum(alone.first_gradient())
    total /= world.size
    return total


def check_gradient(
    world: World, way: str, model: str, gradient: NDArray[np.float32], average: NDArray[np.float32], alone: bool
) -> None:
    """Checks that this rank's gradient is the average over the ranks; or, with `alone`, that it is not. Collective.

    Args:
        world: the ranks.
        way: the name of the way, for the error.
        model: the name of the model, for the error.
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
    refuse_wrong(world, f"{way} on {model}", problem)
