"""Times several subjects alternately: in rounds, in an order that changes, so that noise of the machine affects all alike.

A *subject* is a call that is timed (`Subject`), in most cases a call of one peer.

A *sample* is the time of a number of back-to-back calls. Before each sample the subject is prepared, which is not timed, and
all ranks start at one moment (`Gate`). The time of a sample is that of the slowest rank. A *block* is the samples that a
subject takes in one round. All decisions are made from numbers that all ranks have, so that all ranks decide the same.
"""

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.world import World

_PILOT_CALLS = 6  # the calls that show how long a subject takes, and warm it up
_PILOT_SECONDS = 0.2  # after this time, fewer pilot calls are enough
_FEWEST_ROUNDS = 3  # unless these rounds take twice the given time
_LONG_CALL = 0.05  # seconds; a call that takes longer replaces all that was in the caches, so no warm-up helps


@dataclass(frozen=True)
class Effort:
    """The limits to the time that a subject takes.

    Attributes:
        sample_seconds: the approximate length of a sample; a long sample has less noise from the clock.
        most_calls: the largest number of calls in a sample.
        block_seconds: the approximate length of a block.
        most_samples: the largest number of samples in a block.
        most_rounds: the largest number of rounds.
        warm_up: does a block begin with a call that is not timed?
    """

    sample_seconds: float
    most_calls: int
    block_seconds: float = 0.02
    most_samples: int = 8
    most_rounds: int = 40
    warm_up: bool = True


@dataclass
class Subject:
    """A call that is timed.

    Attributes:
        name: the name of the peer.
        call: the function that is timed.
        units: the number of tensors, training steps or directions (of a message) in a call. Reported times are for one of them.
        prepare: a function that is called before each sample and is not timed.
        part: a function that returns the seconds of one part of the last call, for a second result; None for no second result.
    """

    name: str
    call: Callable[[], Any]
    units: int = 1
    prepare: Callable[[], Any] = lambda: None
    part: Callable[[], float] | None = None


@dataclass
class Samples:
    """The measurements of one subject.

    Attributes:
        calls: the number of calls in a sample.
        rounds: for each round, the samples: the seconds of one unit of the subject on the slowest rank.
        parts: for each round, the results of `Subject.part` after each sample, on the slowest rank.
    """

    calls: int
    rounds: list[list[float]] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)


def calls_per_sample(seconds: float, effort: Effort) -> int:
    """The number of calls in a sample, if one call takes `seconds`."""
    return max(1, min(effort.most_calls, math.ceil(effort.sample_seconds / max(seconds, 1e-9))))


def another_round(done: int, spent: float, seconds: float, effort: Effort) -> bool:
    """Whether to measure one more round.

    Args:
        done: the number of rounds so far.
        spent: the seconds that these rounds took.
        seconds: the time that the rounds together should take.
        effort: the limits.
    """
    wanted = spent < seconds or (done < _FEWEST_ROUNDS and spent < 2 * seconds)
    return done == 0 or (done < effort.most_rounds and wanted)


def order_of_round(number: int, count: int) -> list[int]:
    """The order of the subjects in a round: rotated, and reversed in every second round, so that no subject always follows the
    same one.
    """
    places = [(place + number // 2) % count for place in range(count)]
    return places[::-1] if number % 2 else places


def measure(world: World, subjects: Sequence[Subject], effort: Effort, seconds: float) -> dict[str, Samples]:
    """Times the subjects for about `seconds`, and at least for one round. Collective.

    There are at least three rounds, unless fewer rounds take twice `seconds`.

    The garbage collector does not run in this time, because it would lengthen single samples.
    """
    gc.collect()
    gc.disable()
    try:
        blocks = [_Block.plan(*_pilot(world, subject), effort) for subject in subjects]
        done = {subject.name: Samples(block.calls) for subject, block in zip(subjects, blocks, strict=True)}
        begun = time.monotonic()
        for number in itertools.count():
            if not world.from_first(another_round(number, time.monotonic() - begun, seconds, effort)):
                break
            for place in order_of_round(number, len(subjects)):
                subject = subjects[place]
                _run_block(world, subject, blocks[place], done[subject.name])
    finally:
        gc.enable()
    for samples in done.values():
        samples.rounds = _slowest(world, samples.rounds)
        samples.parts = _slowest(world, samples.parts)
    return done


@dataclass(frozen=True)
class _Block:
    """The number of calls in a sample and of samples in a block, and whether the block begins with a call that is not timed."""

    calls: int
    samples: int
    warm_up: bool

    @staticmethod
    def plan(call: float, preparation: float, effort: Effort) -> "_Block":
        calls = calls_per_sample(call, effort)
        sample = preparation + call * calls
        samples = max(1, min(effort.most_samples, int(effort.block_seconds / sample)))
        return _Block(calls, samples, effort.warm_up and call < _LONG_CALL)


def _pilot(world: World, subject: Subject) -> tuple[float, float]:
    """The median seconds of a call and of its preparation, the same numbers on all ranks."""
    times: list[tuple[float, float]] = []
    while len(times) < _PILOT_CALLS and sum(map(sum, times)) < _PILOT_SECONDS:
        before = time.perf_counter()
        subject.prepare()
        preparation = time.perf_counter() - before
        start = world.gate.wait()
        subject.call()
        call = (time.perf_counter_ns() - start) / 1e9
        times.append(tuple(world.slowest([call, preparation]).tolist()))
    known = times[1:] or times  # the first call takes longer than the others
    return statistics.median(call for call, _ in known), statistics.median(preparation for _, preparation in known)


def _run_block(world: World, subject: Subject, block: _Block, done: Samples) -> None:
    prepare, call, part, wait = subject.prepare, subject.call, subject.part, world.gate.wait
    if block.warm_up:
        prepare()
        call()
    times, parts = [], []
    for _ in range(block.samples):
        prepare()
        start = wait()
        for _ in itertools.repeat(None, block.calls):
            call()
        times.append((time.perf_counter_ns() - start) / 1e9 / block.calls / subject.units)
        if part is not None:
            parts.append(part())
    done.rounds.append(times)
    if part is not None:
        done.parts.append(parts)


def measurements(world: World, case: str, done: Mapping[str, Samples], **more: Any) -> list[report.Record]:
    """The records of subjects in one case. `more` has further keys of the records."""
    more |= {"ranks": world.size, "bind": world.bind}
    return [report.measurement(case, name, at.rounds, at.calls, **more) for name, at in done.items()]


def _slowest(world: World, rounds: list[list[float]]) -> list[list[float]]:
    """The rounds with each time replaced by that of the slowest rank."""
    flat = iter(world.slowest([value for values in rounds for value in values]).tolist())
    return [[next(flat) for _ in values] for values in rounds]
