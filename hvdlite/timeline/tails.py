"""Finds the steps of a job that take much longer than the others, their rhythm, and the Python calls in them."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hvdlite.timeline.analysis import RankAnalysis, length_within, union
from hvdlite.timeline.files import Span

# Each step has a value in microseconds, such as its time. A step is slow if its value is above _TIMES_MEDIAN times the median
# of the values, and above the median plus _PART_OF_STEP of the time of a usual step.
_TIMES_MEDIAN = 3.0
_PART_OF_STEP = 0.2
# A rhythm has at least _LEAST_BEATS slow steps. They have at least the part _EXPLAINS of the excess of all slow steps. At
# least the part _COMES of the steps that the rhythm predicts is slow.
_EXPLAINS = 0.6
_COMES = 0.8
_LEAST_BEATS = 3
# Times between slow steps count as equal if they differ from their median by at most this part of the median.
_EQUAL = 0.15
# How many calls, the innermost ones of the stack, are named as the place of a program.
_CALLS = 3


@dataclass(frozen=True)
class Tail:
    """The slow steps of one cause.

    Attributes:
        steps: the numbers of the steps.
        excess: sum over these steps of their value minus the median, in microseconds.
        rhythm: a text such as ``every 10th step``; empty if the steps have no rhythm.
    """

    steps: tuple[int, ...]
    excess: float
    rhythm: str

    @property
    def each(self) -> float:
        """The mean excess of a slow step, in microseconds."""
        return self.excess / len(self.steps) if self.steps else 0.0


def find_tail(values: Sequence[float], usual_step: float, begins: Sequence[float], skipped: int = 0) -> Tail:
    """Finds the steps with unusually large values. If a rhythm explains most of their excess, returns only the slow steps
    of the rhythm.


    Args:
        values: a value for each step, in microseconds.
        usual_step: the time of a usual step, in microseconds.
        begins: the time at which each step began, in microseconds.
        skipped: number of steps at the beginning that are left out.
    """
    usual = median(values[skipped:])
    threshold = max(_TIMES_MEDIAN * usual, usual + _PART_OF_STEP * usual_step)
    slow = {step: value - usual for step, value in enumerate(values) if step >= skipped and value > threshold}
    rhythm, beats = _rhythm_of_steps(slow, skipped, len(values))
    if rhythm:
        slow = {step: slow[step] for step in beats}
    else:
        rhythm = _rhythm_of_time([begins[step] for step in slow])
    return Tail(tuple(slow), sum(slow.values()), rhythm)


def _rhythm_of_steps(slow: dict[int, float], first: int, steps: int) -> tuple[str, list[int]]:
    """Finds a rhythm in the numbers of the slow steps: a text, and the slow steps that follow it; empty if there is none.

    Args:
        slow: the excess of each slow step, by the number of the step.
        first: the first step that counts.
        steps: the number of all steps.
    """
    total = sum(slow.values())
    for period in range(2, (steps - first) // _LEAST_BEATS + 1):
        by_place: dict[int, list[int]] = defaultdict(list)
        for step in slow:
            by_place[step % period].append(step)
        for place, beats in by_place.items():
            predicted = sum(1 for step in range(first, steps) if step % period == place)
            enough = len(beats) >= max(_LEAST_BEATS, _COMES * predicted)
            if enough and sum(slow[step] for step in beats) >= _EXPLAINS * total:
                return f"every {_ordinal(period)} step", beats
    return "", []


def _rhythm_of_time(begins: Sequence[float]) -> str:
    """Finds a rhythm in the times at which the slow steps begin: a text; empty if there is none."""
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


def busiest_calls(rank: RankAnalysis, spans: Iterable[Span], usually: Iterable[Span] = ()) -> tuple[str, float] | None:
    """The Python calls in which a rank's program was most of the time in these spans.

    Args:
        rank: the rank.
        spans: the spans to look at, on the clock of the first rank.
        usually: other spans to compare with. If there are any, the result is the calls whose share of the time grows most from
            `usually` to `spans`.

    Returns:
        The innermost calls, and their share of the samples in `spans` (0 to 1). None: the spans have no samples.
    """
    here, whole = _time_by_calls(rank, spans)
    if not whole:
        return None
    elsewhere, other = _time_by_calls(rank, usually)
    score = {calls: time - elsewhere.get(calls, 0.0) * (whole / other if other else 0.0) for calls, time in here.items()}
    calls = max(score, key=lambda each: score[each])
    return calls, here[calls] / whole


def _time_by_calls(rank: RankAnalysis, spans: Iterable[Span]) -> tuple[dict[str, float], float]:
    found: dict[str, float] = defaultdict(float)
    joined = union(spans)
    for (begin, end), calls in rank.trace.stacks:
        time = length_within(joined, begin + rank.shift, end + rank.shift)
        if time > 0:
            found[" > ".join(calls.split(" > ")[-_CALLS:])] += time
    return found, sum(found.values())
