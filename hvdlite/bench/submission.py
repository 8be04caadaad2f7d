"""`python -m hvdlite.bench submission`: measures the time in which a caller submits one of many tensors, by each interface.

All tensors are small and equal, so the time is that of the call and not of the bytes. For `DistributedOptimizer` the program
compares a backward pass with the optimizer's hooks to one without hooks.
"""

import argparse
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from hvdlite.bench.collectives import SMALL_ELEMENTS, Sink, batches
from hvdlite.bench.measure import Effort, Subject, measure, measurements
from hvdlite.bench.peers import installed
from hvdlite.bench.team import Team, refuse_wrong
from hvdlite.bench.world import World

PEERS = ("hvdlite", "hvdlite-numpy", "hvdlite-grouped", "hvdlite-engine", "hvdlite-prepared")
BACKWARDS = ("none", "hooks", "reduced")

_EFFORT = Effort(sample_seconds=0, most_calls=1, block_seconds=0.1, most_samples=5, most_rounds=400)


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``submission``.
        sink: a function that gets the records.

    Raises:
        WrongSum: a result is wrong. All ranks raise it.
    """
    team = Team(world, PEERS)
    try:
        sink(team.records)
        batches(team, "submission", [(SMALL_ELEMENTS,)] * options.tensors, options.seconds / 2, sink, _EFFORT)
        absent = world.all_agree(installed("torch", "pip install torch"))
        sink([{"record": "peer", "peer": "hooks", "absent": absent, "version": ""}])
        if absent is None:
            _backwards(world, options, sink)
    finally:
        team.close()


def _backwards(world: World, options: argparse.Namespace, sink: Sink) -> None:
    with ExitStack() as open_contexts:
        subjects = [_backward(world, way, options.tensors, open_contexts) for way in BACKWARDS]
        done = measure(world, subjects, _EFFORT, options.seconds / 2)
    sink(measurements(world, "backward", done, tensors=options.tensors))


def _backward(world: World, way: str, count: int, open_contexts: ExitStack) -> Subject:
    """A backward pass that makes `count` gradients. Collective.

    The way ``none`` has no hooks, ``hooks`` has hooks that only count the gradients, and ``reduced`` also reduces them.
    """
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
    return Subject(way, backward, count, forward)


def _check(world: World, way: str, params: Sequence[Any], wanted: float) -> None:
    right = all(param.grad is not None and bool((param.grad == wanted).all()) for param in params)
    refuse_wrong(world, way, None if right else "a gradient is wrong")
