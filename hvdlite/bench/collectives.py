"""`python -m hvdlite.bench collectives`: measures allreduces of arrays of all sizes, of a network's gradients and of many small
tensors, and the processor time of idle engines.

For each size, all peers reduce the same array, so that no peer has faster memory than another. Before a peer is timed, its sum
is compared with the right sum.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.machine import cache_flusher, thread_seconds
from hvdlite.bench.measure import Effort, Samples, Subject, measure, measurements
from hvdlite.bench.models import resnet50_shapes
from hvdlite.bench.peers import Submissions
from hvdlite.bench.team import Team
from hvdlite.bench.world import World

CASES = ("idle", "allreduce", "gradients", "small")
CACHES = ("warm", "cold")
DEFAULT_SIZES = tuple(4**power for power in range(1, 14))  # 4 B to 64 MiB
DEFAULT_TENSORS = 10_000
SMALL_ELEMENTS = 16  # the number of elements of each small tensor

_SHARES = {"allreduce": 0.7, "gradients": 0.15, "small": 0.15}  # the part of the time that each case gets
_IDLE_ROUNDS = 3
_BATCH = Effort(sample_seconds=0, most_calls=1, block_seconds=0.5, most_samples=5)


Sink = Callable[[Sequence[report.Record]], None]


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``collectives``.
        sink: a function that gets the records.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    team = Team(world, options.peers)
    try:
        sink(team.records)
        if "idle" in options.cases:
            sink(_idle(world, team, min(1.0, options.seconds / 60)))
        measure_cases(team, options, sink, _sizes)
    finally:
        team.close()


def measure_cases(
    team: Team,
    options: argparse.Namespace,
    sink: Sink,
    measure_sizes: Callable[[Team, argparse.Namespace, float, Sink], None],
) -> None:
    """Measures all chosen cases except ``idle``. Collective.

    `measure_sizes` measures the case ``allreduce``; its third argument is the time in seconds for this case.
    """
    shares = {case: share for case, share in _SHARES.items() if case in options.cases}
    for case, share in shares.items():
        seconds = options.seconds * share / sum(shares.values())
        if case == "allreduce":
            measure_sizes(team, options, seconds, sink)
        else:
            shapes = resnet50_shapes() if case == "gradients" else [(SMALL_ELEMENTS,)] * options.tensors
            batches(team, case, shapes, seconds, sink)


# --- arrays of all sizes ----------------------------------------------------------------------------------------------


def _sizes(team: Team, options: argparse.Namespace, seconds: float, sink: Sink) -> None:
    world = team.world
    deadline = time.monotonic() + seconds
    flush = cache_flusher()
    groups = [(nbytes, cache) for nbytes in sorted(options.sizes) for cache in options.cache]
    for place, (nbytes, cache) in enumerate(groups):
        array = team.memory.zeros(nbytes // 4)
        touch = _toucher([array], world.rank, flush if cache == "cold" else team.memory.wait)
        subjects = []
        for peer in [*team.peers, *team.ceilings]:
            call = peer.blocking(array)
            if call is None:
                continue
            if peer.sums:
                team.check_call(peer, array, call)
            subjects.append(Subject(peer.name, call, prepare=touch))
        # If small arrays need less than their part of the time, the large arrays get the rest.
        left = world.from_first((deadline - time.monotonic()) / (len(groups) - place))
        done = measure(world, subjects, effort_of(cache, world.size, world.crowded), left)
        sink(report.with_percentages(measurements(world, "allreduce", done, bytes=nbytes, cache=cache)))


def effort_of(cache: str, ranks: int, crowded: bool = False) -> Effort:
    """The effort for an array.

    A sample is several back-to-back calls on one array, and each call sums the results of the previous call. So the values
    grow with each call, and the number of calls is bounded so that float32 can hold the values. If ranks share cores
    (`crowded`), a sample is longer, because the time until each rank has had the core once is as long as several calls.

    Args:
        cache: a name of `CACHES`.
        ranks: the number of ranks.
        crowded: do ranks share cores?
    """
    if cache == "cold":
        return Effort(sample_seconds=0, most_calls=1, warm_up=False)
    return Effort(sample_seconds=1e-3 if crowded else 50e-6, most_calls=int(100 / max(1.0, math.log2(ranks))))


def _toucher(arrays: Sequence[Any], rank: int, then: Callable[[], None]) -> Callable[[], None]:
    """A function that writes new values into the arrays, as a training step does, and then calls `then`."""
    turns = itertools.count()

    def touch() -> None:
        value = 1 + rank + next(turns) % 7
        for array in arrays:
            array[...] = value
        then()

    return touch


# --- many tensors -----------------------------------------------------------------------------------------------------


def batches(
    team: Team,
    case: str,
    shapes: Sequence[tuple[int, ...]],
    seconds: float,
    sink: Sink,
    effort: Effort = _BATCH,
) -> None:
    """Measures many tensors that are submitted one by one and then waited for, and passes the records to `sink`. Collective.

    If all tensors have the same shape, the reported time is that of one tensor, otherwise that of all tensors. A second
    measurement, of the case ``{case}_submit``, is the time to submit one tensor.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    alike = len(set(shapes)) == 1
    world, memory = team.world, team.memory
    arrays = [memory.zeros(shape) for shape in shapes]
    units = len(arrays) if alike else 1
    touch = _toucher(arrays, world.rank, memory.wait)
    subjects = []
    for peer in [*team.peers, *([] if alike else team.ceilings)]:
        batch = peer.batch(arrays)
        if batch is None:
            continue
        if peer.sums:
            team.check_batch(peer, arrays, batch)
        subjects.append(Subject(peer.name, partial(team.run, batch), units, touch, _submitting(batch, len(arrays))))
    done = measure(world, subjects, effort, seconds)
    more = {"cache": memory.manner, "tensors": len(arrays)}
    nbytes = sum(array.nbytes for array in arrays) // units
    sink(report.with_percentages(measurements(world, case, done, bytes=nbytes, **more)))
    peers = {peer.name for peer in team.peers}
    submits = {name: Samples(at.calls, at.parts) for name, at in done.items() if name in peers}
    sink(measurements(world, f"{case}_submit", submits, **more))


def _submitting(batch: Submissions, count: int) -> Callable[[], float]:
    return lambda: batch.submitted / count


# --- idle engines -----------------------------------------------------------------------------------------------------


def _idle(world: World, team: Team, seconds: float) -> list[report.Record]:
    """The processor time of each peer's threads while the program makes no call, in seconds for each second."""
    names = [peer.name for peer in team.peers if team.threads[peer.name]]
    time.sleep(seconds / 4)  # threads that still spin after the last call go to sleep in this time
    rounds: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(_IDLE_ROUNDS):
        before = {name: thread_seconds(team.threads[name]) for name in names}
        begun = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begun
        for name in names:
            rounds[name].append([(thread_seconds(team.threads[name]) - before[name]) / passed])
    slowest = {name: [world.slowest(values).tolist() for values in rounds[name]] for name in names}
    return [report.measurement("idle", name, slowest[name], 1, ranks=world.size, bind=world.bind) for name in names]
