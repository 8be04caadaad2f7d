"""Makes sentences with advice from the numbers of an analysis.

Percentages refer to the whole traced time, without the first steps if these took far longer than the others. No percentage is
computed from medians, because a median does not show events that happen in few steps.
"""

import itertools
from statistics import median

from hvdlite.timeline.analysis import Analysis, common
from hvdlite.timeline.files import Span
from hvdlite.timeline.tails import Tail, busiest_calls, find_tail

# Advice is given only if it concerns more than this share of the time.
_NOTHING = 0.05
# For a FusedOp of fewer bytes, the latency takes longer than the transfer of the data.
_SMALL_BYTES = 64 << 10
_WHILE_THEY_WAITED = "While they waited, its program was"


def advice(analysis: Analysis) -> list[str]:
    """The advice: a list of at least one sentence, the most important first."""
    first = analysis.first_steps
    time = sum(analysis.lengths[first:])
    counted = [rank.shares[first:] for rank in analysis.ranks.values()]
    ranks = len(counted)
    wait = sum(share.wait for shares in counted for share in shares) / ranks
    exposed = sum(share.communicate - share.hidden for shares in counted for share in shares) / ranks
    lines = [text for _, text in sorted(_about_slow_steps(analysis, time), reverse=True)]
    if wait < _NOTHING * time:
        lines.append(
            f"The program waits for {_percent(wait, time)} of the time. Faster communication would gain little: look at the "
            "computation, or at the input."
        )
    lines += _about_late_ranks(analysis, wait - exposed, time)
    overlap = analysis.first.overlap
    if exposed > _NOTHING * time and overlap is not None and overlap < 0.5:
        lines.append(
            f"Only {overlap:.0%} of the time in which data moves is hidden behind computation. With a smaller "
            "HVDLITE_FUSION_THRESHOLD gradients that are ready are sent earlier, and with compression "
            "(compression=hvdlite.Compression.bf16) fewer bytes are sent."
        )
    lines += _about_fusion(analysis)
    if dropped := sum(rank.trace.dropped for rank in analysis.ranks.values()):
        lines.append(f"{dropped} events are missing from the traces, because the disk was too slow. Trace fewer steps.")
    return (lines or ["There is nothing unusual in these traces."]) + _about_first_steps(analysis)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "nothing"


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


# --- few slow steps -----------------------------------------------------------------------------------------------------


def _about_slow_steps(analysis: Analysis, time: float) -> list[tuple[float, str]]:
    """Sentences about steps that take much longer than others, each with the share of the time that its steps lost."""
    found = []
    first, usual = analysis.first_steps, median(analysis.lengths)
    for rank, late in analysis.late.items():
        tail = find_tail(late.lost, usual, analysis.boundaries, first)
        if tail.excess > _NOTHING * time:
            found.append((tail.excess / time, _rank_was_late(analysis, rank, tail, time)))
    others = [length - sum(late.lost[step] for late in analysis.late.values()) for step, length in enumerate(analysis.lengths)]
    tail = find_tail([max(0.0, value - usual) for value in others], usual, analysis.boundaries, first)
    if tail.excess > _NOTHING * time:
        found.append((tail.excess / time, _all_were_slow(analysis, tail, time)))
    return found


def _how_often(analysis: Analysis, tail: Tail) -> str:
    steps = len(analysis.lengths) - analysis.first_steps
    times = f"in {len(tail.steps)} of {steps} steps"
    if len(tail.steps) == 1:
        return f"in step {tail.steps[0]}"
    return f"{times}, {tail.rhythm}" if tail.rhythm else f"{times}, at irregular intervals"


def _rank_was_late(analysis: Analysis, rank: int, tail: Tail, time: float) -> str:
    late = analysis.late[rank]
    inside, outside = _inside_and_outside(analysis, tail)
    where = busiest_calls(analysis.ranks[rank], common(late.spans, inside), outside)
    return (
        f"{_named(analysis, rank)} made the others wait for {_percent(tail.excess, time)} of the time "
        f"({_milliseconds(tail.excess)} of {_milliseconds(time)}) {_how_often(analysis, tail)}: {_milliseconds(tail.each)} "
        f"each time, most often at '{late.tensors.most_common(1)[0][0]}'. {_where(where, _WHILE_THEY_WAITED)}Look for work "
        "that this rank does in these steps: input, checkpoints, evaluation, logging, garbage collection."
    )


def _all_were_slow(analysis: Analysis, tail: Tail, time: float) -> str:
    slow = set(tail.steps)
    more = {
        "computation": 0.0,
        "waiting while data moves": 0.0,
    }  # time in a slow step minus time in another step, on the first rank
    steps = range(analysis.first_steps, len(analysis.lengths))
    for step in steps:
        share = analysis.first.shares[step]
        weight = 1 / len(slow) if step in slow else -1 / max(1, len(steps) - len(slow))
        more["computation"] += weight * share.compute
        more["waiting while data moves"] += weight * (share.communicate - share.hidden)
    what = max(more, key=lambda name: more[name])
    inside, outside = _inside_and_outside(analysis, tail)
    where = busiest_calls(analysis.first, inside, outside) if what == "computation" else None
    return (
        f"All ranks together are slow {_how_often(analysis, tail)}: each slow step takes {_milliseconds(tail.each)} longer, "
        f"together {_percent(tail.excess, time)} of the time. Most of it is {what}. "
        f"{_where(where, f'In these steps the program of rank {analysis.first.trace.rank} was')}".rstrip()
    )


def _where(calls: tuple[str, float] | None, begin: str) -> str:
    return f"{begin} at {calls[0]} ({calls[1]:.0%} of the samples). " if calls else ""


def _inside_and_outside(analysis: Analysis, tail: Tail) -> tuple[list[Span], list[Span]]:
    """The spans of the slow steps, and those of the other steps."""
    steps = list(itertools.pairwise(analysis.boundaries))
    slow = set(tail.steps)
    others = [span for step, span in enumerate(steps) if step >= analysis.first_steps and step not in slow]
    return [steps[step] for step in tail.steps], others


# --- every step ---------------------------------------------------------------------------------------------------------


def _named(analysis: Analysis, rank: int) -> str:
    return f"Rank {rank} (host {analysis.ranks[rank].trace.host})"


def _about_late_ranks(analysis: Analysis, idle: float, time: float) -> list[str]:
    """Sentences about ranks that make others wait in most steps. The waiting in few slow steps (`Tail`) does not count."""
    usual = median(analysis.lengths)
    steady = {}
    for rank, late in analysis.late.items():
        tail = find_tail(late.lost, usual, analysis.boundaries, analysis.first_steps)
        steady[rank] = sum(late.lost[analysis.first_steps :]) - tail.excess
    total = sum(steady.values())
    if idle < _NOTHING * time or total < _NOTHING * time:
        return []
    rank = max(steady, key=lambda each: steady[each])
    if len(analysis.ranks) > 1 and steady[rank] > 1.5 * total / len(analysis.ranks):
        late = analysis.late[rank]
        where = busiest_calls(analysis.ranks[rank], late.spans)
        return [
            f"{_named(analysis, rank)} is the last to arrive in most steps. The others wait for it for "
            f"{_percent(steady[rank], time)} of the time, which is {_percent(steady[rank], total)} of all waiting for ranks, "
            f"most often at '{late.tensors.most_common(1)[0][0]}'. {_where(where, _WHILE_THEY_WAITED)}Look for differences "
            "of that rank: its input, its share of the data, its processors (are ranks bound to different cores?), other "
            "programs on its host."
        ]
    return [
        f"Ranks wait for each other for {_percent(total, time)} of the time, and no single rank is the cause: the slowest rank "
        "changes from step to step. Give all ranks equal batches, or give each rank its own cores (mpirun --bind-to core)."
    ]


# --- the rest -----------------------------------------------------------------------------------------------------------


def _about_first_steps(analysis: Analysis) -> list[str]:
    first, lengths = analysis.first_steps, analysis.lengths
    if not first or sum(lengths[:first]) < _NOTHING * sum(lengths):
        return []
    steps = "The first step" if first == 1 else f"The first {first} steps"
    return [
        f"{steps} took {_milliseconds(sum(lengths[:first]))}, a later step takes {_milliseconds(median(lengths[first:]))} (the "
        "median). Programs are compiled, files opened and buffers made only once. All other sentences leave these steps out."
    ]


def _about_fusion(analysis: Analysis) -> list[str]:
    steps = len(analysis.boundaries) - 1
    alone = sum(1 for tensors, num_bytes in analysis.fused if tensors == 1 and num_bytes < _SMALL_BYTES)
    if alone / steps > 8:
        return [
            f"In each step {alone / steps:.0f} small tensors are sent alone. DistributedOptimizer fuses gradients by itself; "
            "to send your own tensors together, use grouped_allreduce."
        ]
    return []
