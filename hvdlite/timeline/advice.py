"""Advice from the numbers of an analysis, in words.

Shares refer to the whole traced time, without the first steps if these took far longer than the others. They do not use
medians, because a median does not show what happens in few steps.
"""

import itertools
from statistics import median

from hvdlite.timeline.analysis import Analysis, common
from hvdlite.timeline.files import Span
from hvdlite.timeline.tails import Tail, busiest_calls, find_tail

__all__ = ["advice"]

# Advice is given only for more than this share of the time.
_NOTHING = 0.05
# FusedOps smaller than this cost more in latency than in data.
_SMALL_BYTES = 64 << 10
_WHILE_THEY_WAITED = "While they waited, its program was"


def advice(analysis: Analysis) -> list[str]:
    """Sentences, the most important first. There is always at least one."""
    first = analysis.first_steps
    time = sum(analysis.lengths[first:])
    counted = [shares[first:] for shares in analysis.shares]
    ranks = len(counted)
    wait = sum(share.wait for shares in counted for share in shares) / ranks
    exposed = sum(share.communicate - share.hidden for shares in counted for share in shares) / ranks
    lines = [text for _, text in sorted(_about_slow_steps(analysis, time), reverse=True)]
    if wait < _NOTHING * time:
        lines.append(
            f"The program waits for {_percent(wait, time)} of the time. There is little to gain from communication: look at "
            "the computation, or at the input."
        )
    lines += _about_late_ranks(analysis, wait - exposed, time)
    overlap = analysis.overlap(0)
    if exposed > _NOTHING * time and overlap is not None and overlap < 0.5:
        lines.append(
            f"Only {overlap:.0%} of the time in which data moves is hidden behind computation. Gradients that are ready early "
            "are sent early: a smaller HVDLITE_FUSION_THRESHOLD lets them go sooner, and compression "
            "(compression=hvdlite.Compression.bf16) halves what is sent."
        )
    lines += _about_fusion(analysis)
    if analysis.dropped:
        lines.append(f"{analysis.dropped} events are missing from the traces: the disk was too slow. Trace fewer steps.")
    return (lines or ["Nothing stands out."]) + _about_first_steps(analysis)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "nothing"


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


# --- few slow steps -----------------------------------------------------------------------------------------------------


def _about_slow_steps(analysis: Analysis, time: float) -> list[tuple[float, str]]:
    """Sentences about steps that take much longer than others, each with the share of the time that it is about."""
    found = []
    first, usual = analysis.first_steps, median(analysis.lengths)
    for rank, lost in analysis.lost.items():
        tail = find_tail(lost, usual, analysis.boundaries, first)
        if tail.excess > _NOTHING * time:
            found.append((tail.excess / time, _rank_was_late(analysis, rank, tail, time)))
    total = [sum(lost) for lost in zip(*analysis.lost.values(), strict=True)] or [0.0] * len(analysis.lengths)
    others = [length - waited for length, waited in zip(analysis.lengths, total, strict=True)]
    tail = find_tail([max(0.0, value - usual) for value in others], usual, analysis.boundaries, first)
    if tail.excess > _NOTHING * time:
        found.append((tail.excess / time, _all_were_slow(analysis, tail, time)))
    return found


def _how_often(analysis: Analysis, tail: Tail) -> str:
    steps = len(analysis.lengths) - analysis.first_steps
    times = f"in {len(tail.steps)} of {steps} steps"
    if len(tail.steps) == 1:
        return f"in step {tail.steps[0]}"
    return f"{times}, {tail.rhythm}" if tail.rhythm else f"{times}, without a rhythm"


def _rank_was_late(analysis: Analysis, rank: int, tail: Tail, time: float) -> str:
    late = analysis.late[rank]
    inside, outside = _inside_and_outside(analysis, tail)
    where = busiest_calls(analysis, _place(analysis, rank), common(late.spans, inside), outside)
    return (
        f"{_named(analysis, rank)} made the others wait for {_percent(tail.excess, time)} of the time "
        f"({_milliseconds(tail.excess)} of {_milliseconds(time)}) {_how_often(analysis, tail)}: {_milliseconds(tail.each)} "
        f"each, most often at '{late.tensors.most_common(1)[0][0]}'. {_where(where, _WHILE_THEY_WAITED)}Look at what this "
        "rank does in these steps: input, checkpoints, evaluation, logging, garbage collection."
    )


def _all_were_slow(analysis: Analysis, tail: Tail, time: float) -> str:
    slow = set(tail.steps)
    more = {"computation": 0.0, "waiting while data moves": 0.0}  # in a slow step than in another one, on the first rank
    steps = range(analysis.first_steps, len(analysis.lengths))
    for step in steps:
        share = analysis.shares[0][step]
        weight = 1 / len(slow) if step in slow else -1 / max(1, len(steps) - len(slow))
        more["computation"] += weight * share.compute
        more["waiting while data moves"] += weight * (share.communicate - share.hidden)
    what = max(more, key=lambda name: more[name])
    inside, outside = _inside_and_outside(analysis, tail)
    where = busiest_calls(analysis, 0, inside, outside) if what == "computation" else None
    return (
        f"All ranks together are slow {_how_often(analysis, tail)}: {_milliseconds(tail.each)} longer each, "
        f"{_percent(tail.excess, time)} of the time. Most of that is {what}. "
        f"{_where(where, f'In these steps the program of rank {analysis.ranks[0][0]} was')}".rstrip()
    )


def _where(calls: tuple[str, float] | None, begin: str) -> str:
    return f"{begin} at {calls[0]} ({calls[1]:.0%} of the samples). " if calls else ""


def _inside_and_outside(analysis: Analysis, tail: Tail) -> tuple[list[Span], list[Span]]:
    """The time of the slow steps, and that of the others."""
    steps = list(itertools.pairwise(analysis.boundaries))
    slow = set(tail.steps)
    others = [span for step, span in enumerate(steps) if step >= analysis.first_steps and step not in slow]
    return [steps[step] for step in tail.steps], others


# --- every step ---------------------------------------------------------------------------------------------------------


def _place(analysis: Analysis, rank: int) -> int:
    return next(place for place, (number, _) in enumerate(analysis.ranks) if number == rank)


def _named(analysis: Analysis, rank: int) -> str:
    return f"Rank {rank} (host {dict(analysis.ranks)[rank]})"


def _about_late_ranks(analysis: Analysis, idle: float, time: float) -> list[str]:
    """About waiting that goes on in most steps; what few slow steps take is left out."""
    usual = median(analysis.lengths)
    tails = {rank: find_tail(lost, usual, analysis.boundaries, analysis.first_steps) for rank, lost in analysis.lost.items()}
    steady = {rank: sum(analysis.lost[rank][analysis.first_steps :]) - tail.excess for rank, tail in tails.items()}
    total = sum(steady.values())
    if idle < _NOTHING * time or total < _NOTHING * time:
        return []
    rank = max(steady, key=lambda each: steady[each])
    if len(analysis.ranks) > 1 and steady[rank] > 1.5 * total / len(analysis.ranks):
        late = analysis.late[rank]
        where = busiest_calls(analysis, _place(analysis, rank), late.spans)
        return [
            f"{_named(analysis, rank)} is the last to arrive in most steps: the others wait for it for "
            f"{_percent(steady[rank], time)} of the time, {_percent(steady[rank], total)} of all waiting for ranks, most often "
            f"at '{late.tensors.most_common(1)[0][0]}'. {_where(where, _WHILE_THEY_WAITED)}Look at what that rank does "
            "differently: its input, its share of the data, its processors (are ranks bound to different cores?), other "
            "programs on its host."
        ]
    return [
        f"Ranks wait for each other for {_percent(total, time)} of the time, and no single rank is to blame: their steps take "
        "unequal time by turns. Even out the batches, or give each rank cores of its own (mpirun --bind-to core)."
    ]


# --- the rest -----------------------------------------------------------------------------------------------------------


def _about_first_steps(analysis: Analysis) -> list[str]:
    first, lengths = analysis.first_steps, analysis.lengths
    if not first or sum(lengths[:first]) < _NOTHING * sum(lengths):
        return []
    steps = "The first step" if first == 1 else f"The first {first} steps"
    return [
        f"{steps} took {_milliseconds(sum(lengths[:first]))}, a later one takes {_milliseconds(median(lengths[first:]))} (the "
        "median). Compiling, reading files and making buffers come once; all other sentences leave them out."
    ]


def _about_fusion(analysis: Analysis) -> list[str]:
    if not analysis.fused:
        return []
    steps = max(1, len(analysis.boundaries) - 1)
    alone = sum(1 for tensors, num_bytes in analysis.fused if tensors == 1 and num_bytes < _SMALL_BYTES)
    if alone / steps > 8:
        return [
            f"{alone / steps:.0f} small tensors in each step travel alone. DistributedOptimizer fuses gradients by itself; "
            "tensors of your own can go together with grouped_allreduce."
        ]
    return []
