"""The steps of a job that take much longer than the others: which, how often, and where the Python programs were meanwhile."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hvdlite.timeline.analysis import Analysis, length_within, union
from hvdlite.timeline.files import Span

__all__ = ["Tail", "busiest_calls", "find_tail"]

# A step is slow if its value is above both: so many times the median, and the median with so much of a usual step.
_TIMES_MEDIAN = 3.0
_PART_OF_STEP = 0.2
# A rhythm explains so much of the excess of all slow steps, and so many of the steps that it foretells are slow.
_EXPLAINS = 0.6
_COMES = 0.8
_LEAST_BEATS = 3
# Times between slow steps count as equal if they differ from the median by this part of it at most.
_EQUAL = 0.15
# How many calls, from the innermost on, say where a program is.
_CALLS = 3


@dataclass(frozen=True)
class Tail:
    """The slow steps.

    Attributes:
        steps: their numbers.
        excess: what they take beyond the median of all steps, together, in microseconds.
        usual: the median.
        rhythm: such as ``every 10th step``; empty if they have none.
    """

    steps: tuple[int, ...]
    excess: float
    usual: float
    rhythm: str

    @property
    def each(self) -> float:
        """The mean excess of a slow step."""
        return self.excess / len(self.steps) if self.steps else 0.0


def find_tail(values: Sequence[float], usual_step: float, begins: Sequence[float], skipped: int = 0) -> Tail:
    """The steps with unusually large values; if most of that comes in a rhythm of steps, those in the rhythm.

    Args:
        values: one for each step, in microseconds.
        usual_step: the time of a usual step, in microseconds.
        begins: when each step began, in microseconds.
        skipped: so many steps at the beginning do not count.
    """
    usual = median(values[skipped:])
    threshold = max(_TIMES_MEDIAN * usual, usual + _PART_OF_STEP * usual_step)
    slow = {step: value - usual for step, value in enumerate(values) if step >= skipped and value > threshold}
    rhythm, beats = _rhythm_of_steps(slow, skipped, len(values))
    if rhythm:
        slow = {step: slow[step] for step in beats}
    else:
        rhythm = _rhythm_of_time([begins[step] for step in slow])
    return Tail(tuple(slow), sum(slow.values()), usual, rhythm)


def _rhythm_of_steps(slow: dict[int, float], first: int, steps: int) -> tuple[str, list[int]]:
    """How slow steps come again by their number, and those that do; empty if no rule holds.

    Args:
        slow: step to its excess.
        first: the first step that counts.
        steps: the number of all steps.
    """
    total = sum(slow.values())
    for period in range(2, (steps - first) // _LEAST_BEATS + 1):
        by_place: dict[int, list[int]] = defaultdict(list)
        for step in slow:
            by_place[step % period].append(step)
        for place, beats in by_place.items():
            foretold = sum(1 for step in range(first, steps) if step % period == place)
            enough = len(beats) >= max(_LEAST_BEATS, _COMES * foretold)
            if enough and sum(slow[step] for step in beats) >= _EXPLAINS * total:
                return f"every {_ordinal(period)} step", beats
    return "", []


def _rhythm_of_time(begins: Sequence[float]) -> str:
    """How slow steps come again by the clock; empty if they do not."""
    gaps = [after - before for before, after in itertools.pairwise(begins)]
    if len(gaps) < _LEAST_BEATS:
        return ""
    middle = median(gaps)
    equal = sum(abs(gap - middle) <= _EQUAL * middle for gap in gaps)
    return f"every {middle / 1e6:.3g} s" if equal >= _COMES * len(gaps) else ""


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def busiest_calls(
    analysis: Analysis, place: int, spans: Iterable[Span], usually: Iterable[Span] = ()
) -> tuple[str, float] | None:
    """Where a rank's Python program was in these spans, and for which share of its samples; None if it was not sampled then.

    Args:
        analysis: of the job.
        place: of the rank in `Analysis.ranks`.
        spans: on the clock of the first rank.
        usually: if given, the place counts in which the program was longer in `spans` than in as much of this time.
    """
    here, whole = _time_by_calls(analysis, place, spans)
    if not whole:
        return None
    elsewhere, other = _time_by_calls(analysis, place, usually)
    score = {calls: time - elsewhere.get(calls, 0.0) * (whole / other if other else 0.0) for calls, time in here.items()}
    calls = max(score, key=lambda each: score[each])
    return calls, here[calls] / whole


def _time_by_calls(analysis: Analysis, place: int, spans: Iterable[Span]) -> tuple[dict[str, float], float]:
    found: dict[str, float] = defaultdict(float)
    shift, joined = analysis.shifts[place], union(spans)
    for (begin, end), calls in analysis.traces[place].stacks:
        time = length_within(joined, begin + shift, end + shift)
        if time > 0:
            found[" > ".join(calls.split(" > ")[-_CALLS:])] += time
    return found, sum(found.values())
