"""`python -m hvdlite.bench messages`: measures the time of a message from the first rank to the last, for tensors of all sizes.

The tensor is sent to the last rank and back, and half of the time is reported, so the two ranks need no common clock. The
report also has the time in which the first rank copies as many bytes while the others do nothing.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hvdlite.bench import report
from hvdlite.bench.collectives import Sink
from hvdlite.bench.machine import aligned_zeros
from hvdlite.bench.measure import Effort, Subject, measure, measurements
from hvdlite.bench.peers import Array, Peer
from hvdlite.bench.team import Team, contribution, refuse_wrong
from hvdlite.bench.world import World

PEERS = ("hvdlite", "hvdlite-numpy", "mpi4py", "gloo")
DEFAULT_SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 64 << 20)

_EFFORT = Effort(sample_seconds=1e-3, most_calls=500)


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``messages``.
        sink: a function that gets the records.

    Raises:
        WrongSum: a received tensor differs from the sent one. All ranks raise it.
    """
    team = Team(world, PEERS)
    deadline = time.monotonic() + options.seconds
    try:
        sink(team.records)
        for place, nbytes in enumerate(sorted(options.sizes)):
            array = aligned_zeros(nbytes // 4)
            copy = partial(np.copyto, aligned_zeros(array.shape), array) if world.rank == 0 else _nothing
            subjects = [Subject(peer.name, _there_and_back(world, peer, array), units=2) for peer in team.peers]
            subjects.append(Subject("memcpy", copy))
            left = world.from_first((deadline - time.monotonic()) / (len(options.sizes) - place))
            done = measure(world, subjects, _EFFORT, left)
            sink(report.with_percentages(measurements(world, "message", done, bytes=nbytes)))
    finally:
        team.close()


def _nothing() -> None:
    pass


def _there_and_back(world: World, peer: Peer, array: Array) -> Callable[[], Any]:
    """This rank's part of sending the tensor to the last rank and back, as a function. Checks the function once. Collective."""
    first, last = world.rank == 0, world.rank == world.size - 1
    if not first and not last:
        call: Callable[[], Any] = _nothing
    else:
        send, receive = peer.message(array, world.size - 1 if first else 0)
        call = partial(_both, send, receive) if first else partial(_both, receive, send)
    array[:] = contribution(world.rank, array.size)
    call()
    right = call is _nothing or bool((array == contribution(0, array.size)).all())
    refuse_wrong(world, peer.name, None if right else "the received tensor differs from the sent one")
    return call


def _both(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    one()
    other()
