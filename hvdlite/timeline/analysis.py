"""Computes from the traces of a job's ranks how the job spent the time of its steps."""

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from hvdlite.errors import InvalidArgumentError
from hvdlite.timeline.files import Span, Trace, TracedOperation, align, matches


@dataclass
class Share:
    """The parts of the time of one step of one rank, in microseconds.

    Attributes:
        step: the time from this step's first operation to the first operation of the next step.
        wait: the time in which the program only waited for operations.
        communicate: the time in which data of some operation moved.
        hidden: the part of `communicate` in which the program did not wait.
    """

    step: float
    wait: float
    communicate: float
    hidden: float

    @property
    def compute(self) -> float:
        """The time in which the program did not wait."""
        return self.step - self.wait


@dataclass
class LateRank:
    """The operations for which a rank was the last to ask.

    The lateness at an operation is the time from the request of the second last rank to the request of this rank.

    Attributes:
        times: number of the operations.
        lateness: sum of the lateness at all operations, in microseconds.
        tensors: for each name of a tensor, the number of the operations.
        members: the ranks that took part in the operations, this rank included.
        spans: the spans of lateness, on the clock of the first trace.
        lost: for each step, the microseconds in which the programs of other ranks waited for this rank (the mean over the
            other `members`).
    """

    times: int = 0
    lateness: float = 0.0
    tensors: Counter[str] = field(default_factory=Counter)
    members: set[int] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)


@dataclass
class RankAnalysis:
    """The results for one rank.

    Attributes:
        trace: the rank's trace.
        shift: the number to add to the trace's times (`align`).
        shares: the `Share` of each step.
    """

    trace: Trace
    shift: float
    shares: list[Share]

    @property
    def typical(self) -> Share:
        """The medians over the steps."""
        parts = zip(*((s.step, s.wait, s.communicate, s.hidden) for s in self.shares), strict=True)
        return Share(*map(median, parts))

    @property
    def overlap(self) -> float | None:
        """The share of the communication that was hidden behind other work; None if there was no communication."""
        total = sum(share.communicate for share in self.shares)
        return sum(share.hidden for share in self.shares) / total if total > 0 else None


@dataclass
class Analysis:
    """The results of `analyse`. Times are in microseconds.

    Attributes:
        ranks: the results of each rank that has a trace, by rank and in the order of ranks.
        boundaries: times at which steps begin, on the clock of the first rank.
        late: by rank, the `LateRank` of each rank that was ever the last to ask for an operation.
        first_steps: number of steps at the beginning that took far longer than later steps.
        fused: number of tensors and bytes of each FusedOp of the first rank.
        unfused: number of operations of the first rank whose data travelled with the agreement.
        num_bytes: bytes that a step of the first rank reduces or moves (the median).
        operations: number of operations in a step of the first rank (the median).
    """

    ranks: dict[int, RankAnalysis]
    boundaries: list[float]
    late: dict[int, LateRank]
    first_steps: int
    fused: list[tuple[int, int]]
    unfused: int
    num_bytes: float
    operations: float

    @property
    def first(self) -> RankAnalysis:
        """The results of the first rank that has a trace."""
        return next(iter(self.ranks.values()))

    @property
    def lengths(self) -> list[float]:
        """The time of each step on the first rank."""
        return [end - begin for begin, end in itertools.pairwise(self.boundaries)]


def union(spans: Iterable[Span]) -> list[Span]:
    """The union of the spans, as spans in order that do not overlap."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def length_within(spans: Sequence[Span], begin: float, end: float) -> float:
    """The length of the part of [begin, end] that the spans (from `union`) cover."""
    place = max(0, bisect_right(spans, (begin, float("inf"))) - 1)
    total = 0.0
    for first, last in spans[place:]:
        if first >= end:
            break
        total += max(0.0, min(last, end) - max(first, begin))
    return total


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The intersection of two lists of spans, both from `union`."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def _boundaries(trace: Trace) -> list[float]:
    """The times at which steps begin.

    Of the tensors with the most operations, one is the first in the trace. Each operation of this tensor begins a step.
    """
    asked = sorted((each.submitted, (each.kind, each.name, each.process_set)) for each in trace.operations.values())
    counts = Counter(tensor for _, tensor in asked)
    if not counts:
        return []
    most = max(counts.values())
    anchor = next(tensor for _, tensor in asked if counts[tensor] == most)
    return [time for time, tensor in asked if tensor == anchor]


def _shares(trace: Trace, boundaries: Sequence[float], shift: float) -> list[Share]:
    waits = union(trace.waits)
    moving = union(operation.data for operation in trace.operations.values())
    exposed = common(waits, moving)
    shares = []
    for begin, end in itertools.pairwise(boundaries):
        begin, end = begin - shift, end - shift
        communicate = length_within(moving, begin, end)
        shares.append(
            Share(end - begin, length_within(waits, begin, end), communicate, communicate - length_within(exposed, begin, end))
        )
    return shares


def _late(traces: Sequence[Trace], shifts: Sequence[float]) -> dict[int, LateRank]:
    asked: dict[int, list[tuple[float, int]]] = {}
    names: dict[int, str] = {}
    first = traces[0]
    for operation in first.operations.values():
        asked[id(operation)] = [(operation.submitted, first.rank)]
        names[id(operation)] = operation.name
    for trace, shift in zip(traces[1:], shifts[1:], strict=True):
        for mine, theirs in matches(first, trace, shift):
            asked[id(mine)].append((theirs.submitted + shift, trace.rank))
    late: dict[int, LateRank] = defaultdict(LateRank)
    for key, times in asked.items():
        if len(times) < 2:
            continue
        (before, _), (last, rank) = sorted(times)[-2:]
        entry = late[rank]
        entry.times += 1
        entry.lateness += last - before
        entry.tensors[names[key]] += 1
        entry.members.update(member for _, member in times)
        entry.spans.append((before, last))
    for entry in late.values():
        entry.spans = union(entry.spans)
    return dict(late)


def _add_lost(traces: Sequence[Trace], shifts: Sequence[float], late: dict[int, LateRank], boundaries: Sequence[float]) -> None:
    waits = {
        trace.rank: union((begin + shift, end + shift) for begin, end in trace.waits)
        for trace, shift in zip(traces, shifts, strict=True)
    }
    waiting_of: dict[frozenset[int], _WaitingRanks] = {}
    for rank, entry in late.items():
        members = frozenset(entry.members)
        if members not in waiting_of:
            waiting_of[members] = _WaitingRanks(waits[member] for member in members)
        waiting = waiting_of[members]
        # A program that gets its results by callbacks has no waits in its trace. Such a rank counts as always waiting.
        callbacks = sum(not waits[member] for member in members if member != rank)
        entry.lost = [0.0] * (len(boundaries) - 1)
        for span in entry.spans:
            for step in range(max(0, bisect_right(boundaries, span[0]) - 1), bisect_left(boundaries, span[1])):
                begin, end = max(span[0], boundaries[step]), min(span[1], boundaries[min(step + 1, len(boundaries) - 1)])
                if begin < end:
                    others = waiting.time_between(begin, end) - length_within(waits[rank], begin, end)
                    entry.lost[step] += (others + callbacks * (end - begin)) / (len(members) - 1)


class _WaitingRanks:
    """The number of ranks that wait, as a function of time.

    Args:
        waits: the waits of each rank, from `union`.
    """

    def __init__(self, waits: Iterable[Sequence[Span]]) -> None:
        changes = sorted(change for spans in waits for begin, end in spans for change in ((begin, 1), (end, -1)))
        self._times = [time for time, _ in changes]
        self._counts = list(itertools.accumulate(change for _, change in changes))
        lengths = (after - before for before, after in itertools.pairwise(self._times))
        areas = (length * count for length, count in zip(lengths, self._counts, strict=False))
        self._until = list(itertools.accumulate(areas, initial=0.0))

    def time_between(self, begin: float, end: float) -> float:
        """The sum over all ranks of the time in [begin, end] in which the rank waits."""
        return self._time_until(end) - self._time_until(begin)

    def _time_until(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._until[place] + self._counts[place] * (time - self._times[place]) if place >= 0 else 0.0


def _first_steps(lengths: Sequence[float]) -> int:
    """The number of steps at the beginning that take more than twice the median, but at most half of all steps."""
    usual = median(lengths)
    count = next((index for index, length in enumerate(lengths) if length <= 2 * usual), 0)
    return min(count, len(lengths) // 2)


def analyse(traces: Sequence[Trace]) -> Analysis:
    """Compares the traces of a job's ranks.

    Args:
        traces: one trace for each rank, in the order of ranks. There is at least one.

    Raises:
        InvalidArgumentError: the first trace has no operations, or fewer than two steps.
    """
    shifts = align(traces)
    first = traces[0]
    boundaries = _boundaries(first)
    if len(boundaries) < 2:
        raise InvalidArgumentError(
            f"the timeline of rank {first.rank} has {len(first.operations)} operations, and no tensor occurs twice, so there "
            "are no steps to compare: trace a few training steps"
        )
    fused: dict[int, list[TracedOperation]] = defaultdict(list)
    for operation in first.operations.values():
        fused[operation.fused_op].append(operation)
    unfused = len(fused.pop(0, []))
    steps: dict[int, list[int]] = defaultdict(list)
    for operation in first.operations.values():
        steps[bisect_right(boundaries, operation.submitted)].append(operation.num_bytes)
    inner = [steps[index] for index in range(1, len(boundaries))]
    late = _late(traces, shifts)
    _add_lost(traces, shifts, late, boundaries)
    placed = zip(traces, shifts, strict=True)
    return Analysis(
        ranks={trace.rank: RankAnalysis(trace, shift, _shares(trace, boundaries, shift)) for trace, shift in placed},
        boundaries=boundaries,
        late=late,
        first_steps=_first_steps([end - begin for begin, end in itertools.pairwise(boundaries)]),
        fused=[(len(group), sum(operation.num_bytes for operation in group)) for group in fused.values()],
        unfused=unfused,
        num_bytes=median(sum(sizes) for sizes in inner),
        operations=median(len(sizes) for sizes in inner),
    )
