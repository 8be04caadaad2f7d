"""Times several subjects side by side: in rounds, in an order that changes, so that the machine's noise hits all alike.

One sample: prepare (not timed), start together (`Gate`), a number of back-to-back calls, stop; its time is that of the
slowest rank. One block: the samples that a subject takes in one round. Everything is decided from numbers that all
ranks have, so that all ranks do the same.
"""

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdlite.bench.world import World

__all__ = ["Effort", "Samples", "Subject", "another_round", "calls_per_sample", "measure", "order_of_round"]

_PILOT_CALLS = 6  # show how long a subject takes, and warm it up
_PILOT_SECONDS = 0.2  # after which fewer will do
_FEWEST_ROUNDS = 3  # unless even they take twice the time there is
_LONG_CALL = 0.05  # seconds; a call that long leaves nothing of what was in the caches before it


@dataclass(frozen=True)
class Effort:
    """How much is spent on a subject.

    Attributes:
        sample_seconds: calls are repeated back to back until a sample lasts about this long, against the clock's noise.
        most_calls: the limit to their number.
        block_seconds: samples are repeated until a block lasts about this long.
        most_samples: the limit to their number.
        most_rounds: rounds, however short they are.
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
    """Something to be timed.

    Attributes:
        name: of the peer.
        preparations: what has to be done before each sample, outside the time.
        call: what is timed.
        part: the seconds of one part of the last call, for a second result; None where there is none.
    """

    name: str
    preparations: Sequence[Callable[[], Any]]
    call: Callable[[], Any]
    part: Callable[[], float] | None = None

    def prepare(self) -> None:
        """Does what is to be done before a sample."""
        for step in self.preparations:
            step()


@dataclass
class Samples:
    """What was measured of one subject: seconds of one call on the slowest rank, by round."""

    calls: int
    rounds: list[list[float]] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)


def calls_per_sample(seconds: float, effort: Effort) -> int:
    """How many calls of this length make a sample."""
    return max(1, min(effort.most_calls, math.ceil(effort.sample_seconds / max(seconds, 1e-9))))


def another_round(done: int, spent: float, seconds: float, effort: Effort) -> bool:
    """Decides on one more round, after this many rounds and this much time."""
    wanted = spent < seconds or (done < _FEWEST_ROUNDS and spent < 2 * seconds)
    return done == 0 or (done < effort.most_rounds and wanted)


def order_of_round(number: int, count: int) -> list[int]:
    """The places of the subjects in a round: rotated, and every second time backwards, so that none keeps its neighbour."""
    places = [(place + number // 2) % count for place in range(count)]
    return places[::-1] if number % 2 else places


def measure(world: World, subjects: Sequence[Subject], effort: Effort, seconds: float) -> dict[str, Samples]:
    """Times the subjects for about `seconds`, but at least once, and three times if that takes no more than twice as long.

    Collective. The garbage collector, which would strike some sample of some subject, waits until the end.
    """
    gc.collect()
    gc.disable()
    try:
        pilots = [_pilot(world, subject) for subject in subjects]
        blocks = [_Block.plan(*pilot, effort) for pilot in pilots]
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
    """What a subject does in a round."""

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
    """The seconds of a call and of its preparation; the same on all ranks."""
    times: list[tuple[float, float]] = []
    while len(times) < _PILOT_CALLS and sum(map(sum, times)) < _PILOT_SECONDS:
        before = time.perf_counter()
        subject.prepare()
        preparation = time.perf_counter() - before
        start = world.gate.wait()
        subject.call()
        call = (time.perf_counter_ns() - start) / 1e9
        times.append(tuple(world.slowest([call, preparation]).tolist()))
    known = times[1:] or times  # the first call is never like the others
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
        times.append((time.perf_counter_ns() - start) / 1e9 / block.calls)
        if part is not None:
            parts.append(part())
    done.rounds.append(times)
    if part is not None:
        done.parts.append(parts)


def _slowest(world: World, rounds: list[list[float]]) -> list[list[float]]:
    """The same with the times of the slowest rank."""
    flat = iter(world.slowest([value for values in rounds for value in values]).tolist())
    return [[next(flat) for _ in values] for values in rounds]
