"""`python -m hvdlite.bench collectives`: measures allreduces of arrays of all sizes, of a network's gradients and of many small
tensors, and the processor time of idle engines.

All peers reduce the same array of each size, so that none has an array whose memory is faster. Before a peer is timed, its sum
is compared with the right one.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hvdlite.bench import report
from hvdlite.bench.machine import aligned_zeros, cache_flusher, thread_seconds
from hvdlite.bench.measure import Effort, Subject, divided, measure
from hvdlite.bench.models import resnet50_shapes
from hvdlite.bench.peers import Array, Submissions
from hvdlite.bench.team import Team, check_batch, check_call
from hvdlite.bench.world import World

__all__ = ["CACHES", "CASES", "DEFAULT_SIZES", "SHARES", "SMALL_ELEMENTS", "CollectivesPlan", "Sink", "batches", "run"]

CASES = ("idle", "allreduce", "gradients", "small")
CACHES = ("warm", "cold")
DEFAULT_SIZES = tuple(4**power for power in range(1, 14))  # 4 B to 64 MiB
SMALL_ELEMENTS = 16  # the number of elements of each small tensor

SHARES = {"allreduce": 0.7, "gradients": 0.15, "small": 0.15}  # the part of the time that each case gets
_IDLE_ROUNDS = 3
_BATCH = Effort(sample_seconds=0, most_calls=1, block_seconds=0.5, most_samples=5)


@dataclass(frozen=True)
class CollectivesPlan:
    """The selection to measure.

    Attributes:
        cases: names of `CASES`.
        sizes: the sizes of the arrays of the case allreduce, in bytes.
        caches: names of `CACHES`.
        tensors: the number of tensors of the case small.
        peers: the names of the peers; None for those that take part by default.
        seconds: the approximate time for all measurements.
    """

    cases: Sequence[str] = CASES
    sizes: Sequence[int] = DEFAULT_SIZES
    caches: Sequence[str] = CACHES
    tensors: int = 10_000
    peers: Sequence[str] | None = None
    seconds: float = 120.0


Sink = Callable[[Sequence[report.Record]], None]


def run(world: World, plan: CollectivesPlan, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    team = Team(world, plan.peers)
    try:
        sink(team.records)
        seconds = {
            case: plan.seconds * share / sum(SHARES[other] for other in plan.cases if other in SHARES)
            for case, share in SHARES.items()
            if case in plan.cases
        }
        if "idle" in plan.cases:
            sink(_idle(world, team, min(1.0, plan.seconds / 60)))
        if "allreduce" in plan.cases:
            _sizes(world, team, plan, seconds["allreduce"], sink)
        if "gradients" in plan.cases:
            batches(world, team, "gradients", resnet50_shapes(), seconds["gradients"], sink)
        if "small" in plan.cases:
            batches(world, team, "small", [(SMALL_ELEMENTS,)] * plan.tensors, seconds["small"], sink)
    finally:
        team.close()


# --- arrays of all sizes ----------------------------------------------------------------------------------------------


def _sizes(world: World, team: Team, plan: CollectivesPlan, seconds: float, sink: Sink) -> None:
    deadline = time.monotonic() + seconds
    flush = cache_flusher()
    groups = [(nbytes, cache) for nbytes in sorted(plan.sizes) for cache in plan.caches]
    for place, (nbytes, cache) in enumerate(groups):
        array = aligned_zeros(nbytes // 4)
        steps = [_toucher([array], world.rank)] + [flush] * (cache == "cold")
        subjects = []
        for peer in [*team.peers, *team.ceilings]:
            call = peer.blocking(array)
            if call is None:
                continue
            if peer.sums:
                check_call(world, peer, array, call)
            subjects.append(Subject(peer.name, steps, call))
        # If small arrays need less than their part of the time, the large arrays get the rest.
        left = world.from_first((deadline - time.monotonic()) / (len(groups) - place))
        done = measure(world, subjects, effort_of(cache, world.size, world.crowded), left)
        more = {"bytes": nbytes, "ranks": world.size, "bind": world.bind, "cache": cache}
        group = [report.measurement("allreduce", name, at.rounds, at.calls, **more) for name, at in done.items()]
        sink(report.with_percentages(group))


def effort_of(cache: str, ranks: int, crowded: bool = False) -> Effort:
    """The effort for an array.

    Each of several back-to-back calls sums the sums of the call before. So the number of calls is bounded, because float32 has
    to hold the result. If ranks share cores (`crowded`), a sample is longer: the time until each rank has had the core once is
    as long as several calls, and belongs to none of them.

    Args:
        cache: a name of `CACHES`.
        ranks: the number of ranks.
        crowded: do ranks share cores?
    """
    if cache == "cold":
        return Effort(sample_seconds=0, most_calls=1, warm_up=False)
    return Effort(sample_seconds=1e-3 if crowded else 50e-6, most_calls=int(100 / max(1.0, math.log2(ranks))))


def _toucher(arrays: Sequence[Array], rank: int) -> Callable[[], None]:
    """A function that writes new values into the arrays, as a step of training does."""
    turns = itertools.count()

    def touch() -> None:
        value = 1 + rank + next(turns) % 7
        for array in arrays:
            array.fill(value)

    return touch


# --- many tensors -----------------------------------------------------------------------------------------------------


def batches(
    world: World,
    team: Team,
    case: str,
    shapes: Sequence[tuple[int, ...]],
    seconds: float,
    sink: Sink,
    effort: Effort = _BATCH,
) -> None:
    """Measures many tensors that are submitted one by one and then waited for, and passes the records to `sink`. Collective.

    If all tensors have the same shape, the reported time is that of one tensor. A second measurement, of the case
    ``{case}_submit``, is the time to submit one tensor.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    alike = len(set(shapes)) == 1
    arrays = [aligned_zeros(shape) for shape in shapes]
    touch = _toucher(arrays, world.rank)
    subjects = []
    for peer in [*team.peers, *([] if alike else team.ceilings)]:
        batch = peer.batch(arrays)
        if batch is None:
            continue
        if peer.sums:
            check_batch(world, peer, arrays, batch)
        subjects.append(Subject(peer.name, [touch], batch.run, _submitting(batch)))
    done = measure(world, subjects, effort, seconds)
    divisor = len(arrays) if alike else 1
    more = {"ranks": world.size, "bind": world.bind, "cache": "warm", "tensors": len(arrays)}
    nbytes = sum(array.nbytes for array in arrays) // divisor
    group = []
    for name, at in done.items():
        group.append(report.measurement(case, name, divided(at.rounds, divisor), 1, bytes=nbytes, **more))
    sink(report.with_percentages(group))
    peers = {peer.name for peer in team.peers}
    submits = {name: divided(at.parts, len(arrays)) for name, at in done.items() if name in peers}
    sink([report.measurement(f"{case}_submit", name, rounds, 1, **more) for name, rounds in submits.items()])


def _submitting(batch: Submissions) -> Callable[[], float]:
    return lambda: batch.submitted


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
