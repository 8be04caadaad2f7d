"""`python -m hvdlite.bench submission`: measures the time in which a caller submits one of many tensors, by each interface.

All tensors are small and equal, so the time is that of the call and not of the bytes. For `DistributedOptimizer` the program
compares a backward with its hooks to a backward without hooks.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.collectives import SMALL_ELEMENTS, batches
from hvdlite.bench.measure import Effort, Subject, divided, measure
from hvdlite.bench.peers import installed
from hvdlite.bench.team import Team, refuse_wrong
from hvdlite.bench.world import World

__all__ = ["BACKWARDS", "PEERS", "SubmissionPlan", "run"]

PEERS = ("hvdlite", "hvdlite-numpy", "hvdlite-grouped", "hvdlite-engine", "hvdlite-prepared")
BACKWARDS = ("none", "hooks", "reduced")

_EFFORT = Effort(sample_seconds=0, most_calls=1, block_seconds=0.1, most_samples=5, most_rounds=400)


@dataclass(frozen=True)
class SubmissionPlan:
    """The selection to measure.

    Attributes:
        tensors: the number of tensors that are submitted before the wait, and of the gradients of a backward.
        seconds: the approximate limit for all measurements.
    """

    tensors: int = 100
    seconds: float = 20.0


def run(world: World, plan: SubmissionPlan, sink: Callable[[Sequence[report.Record]], None]) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Raises:
        WrongSum: a result is wrong. All ranks raise it.
    """
    team = Team(world, PEERS)
    try:
        sink(team.records)
        batches(world, team, "submission", [(SMALL_ELEMENTS,)] * plan.tensors, plan.seconds / 2, sink, _EFFORT)
        absent = world.all_agree(installed("torch", "pip install torch"))
        sink([{"record": "peer", "peer": "hooks", "absent": absent, "version": ""}])
        if absent is None:
            _backwards(world, plan, sink)
    finally:
        team.close()


def _backwards(world: World, plan: SubmissionPlan, sink: Callable[[Sequence[report.Record]], None]) -> None:
    with ExitStack() as open_contexts:
        subjects = [_backward(world, way, plan.tensors, open_contexts) for way in BACKWARDS]
        done = measure(world, subjects, _EFFORT, plan.seconds / 2)
    more = {"ranks": world.size, "bind": world.bind, "tensors": plan.tensors}
    group = []
    for way, at in done.items():
        group.append(report.measurement("backward", way, divided(at.rounds, plan.tensors), at.calls, **more))
    sink(group)


def _backward(world: World, way: str, count: int, open_contexts: ExitStack) -> Subject:
    """A backward of `count` gradients: without hooks, with hooks that only count them, or with reductions. Collective."""
    import torch

    import hvdlite.torch as hvd

    params = [torch.zeros(SMALL_ELEMENTS, requires_grad=True) for _ in range(count)]
    optimizer: Any = torch.optim.SGD(params, lr=1.0)
    if way != "none":
        names = [(f"{way}.{place}", param) for place, param in enumerate(params)]
        optimizer = hvd.DistributedOptimizer(optimizer, names)
    losses: list[Any] = []
    turns = itertools.count()

    def forward() -> None:
        optimizer.zero_grad()
        losses[:] = [torch.stack(params).sum() * (1 + world.rank + next(turns) % 7)]

    def backward() -> None:
        losses[0].backward()

    forward()
    backward()  # the first backward makes the optimizer's plan, and is not timed
    average = sum(range(1, world.size + 1)) / world.size
    _check(world, way, params, 1 + world.rank if way == "none" else average)
    if way == "hooks":
        open_contexts.enter_context(optimizer.no_sync())
        forward()
        backward()
        _check(world, way, params, 2 + world.rank)
    return Subject(way, [forward], backward)


def _check(world: World, way: str, params: Sequence[Any], wanted: float) -> None:
    right = all(param.grad is not None and bool((param.grad == wanted).all()) for param in params)
    refuse_wrong(world, way, None if right else "a gradient is wrong")
