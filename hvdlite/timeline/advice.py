"""Advice from the numbers of an analysis, in words."""

from statistics import median

from hvdlite.timeline.analysis import Analysis

__all__ = ["advice"]

# A share of the step below which nothing is worth a change.
_NOTHING = 0.05
# FusedOps smaller than this cost more in latency than in data.
_SMALL_BYTES = 64 << 10


def advice(analysis: Analysis) -> list[str]:
    """Sentences, the most important first. There is always at least one."""
    typical = [analysis.typical(place) for place in range(len(analysis.ranks))]
    step = median(share.step for share in typical)
    wait = median(share.wait for share in typical)
    exposed = median(share.communicate - share.hidden for share in typical)
    found: list[str] = []
    if wait < _NOTHING * step:
        found.append(
            f"The program waits for {_percent(wait, step)} of a step. There is little to gain from communication: look at the "
            "computation, or at the input."
        )
    found += _about_late_ranks(analysis, wait - exposed, step)
    overlap = analysis.overlap(0)
    if exposed > _NOTHING * step and overlap is not None and overlap < 0.5:
        found.append(
            f"Only {overlap:.0%} of the time in which data moves is hidden behind computation. Gradients that are ready early "
            "are sent early: a smaller HVDLITE_FUSION_THRESHOLD lets them go sooner, and compression "
            "(compression=hvdlite.Compression.bf16) halves what is sent."
        )
    found += _about_fusion(analysis)
    if analysis.dropped:
        found.append(f"{analysis.dropped} events are missing from the traces: the disk was too slow. Trace fewer steps.")
    return found or ["Nothing stands out."]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "nothing"


def _about_late_ranks(analysis: Analysis, idle: float, step: float) -> list[str]:
    if idle < _NOTHING * step or not analysis.late:
        return []
    hosts = dict(analysis.ranks)
    total = sum(late.lateness for late in analysis.late.values())
    rank, worst = max(analysis.late.items(), key=lambda item: item[1].lateness)
    if total <= 0:
        return []
    if len(analysis.ranks) > 1 and worst.lateness > 1.5 * total / len(analysis.ranks):
        tensor = worst.tensors.most_common(1)[0][0]
        return [
            f"Rank {rank} (host {hosts.get(rank, '?')}) is the last to arrive and accounts for {worst.lateness / total:.0%} of "
            f"the time that ranks wait for others, most often at '{tensor}'. Look at what that rank does differently: its "
            "input, its share of the data, its processors (are ranks bound to different cores?), other programs on its host."
        ]
    return [
        f"Ranks wait for each other for {_percent(idle, step)} of a step, and no single rank is to blame: their steps take "
        "unequal time by turns. Even out the batches, or give each rank cores of its own (mpirun --bind-to core)."
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
