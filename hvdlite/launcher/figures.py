"""The figures of ``hvdlite top``: the difference of two answers of each rank. docs/top.md defines each figure.

A figure that is not known is None. This module only computes figures; it asks no rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The answer of a rank (hvdlite/live_view.py). For a rank that did not answer in time, the key "silent" is true.
Answer = Mapping[str, Any]

# `hvdlite top` calls an operation a stall if more seconds have passed since its submission. The log reports stalls much later
# (HVDLITE_STALL_CHECK_TIME_SECONDS).
STALL_SECONDS = 1.0


@dataclass(frozen=True)
class RankFigures:
    """The figures of one rank for the time between two answers.

    Attributes:
        rank: the rank's number.
        host: the host of the rank.
        pid: the process id of the rank.
        state: ``answers``; ``silent``: the rank did not answer in time; ``ended``: its process has left the job.
        seconds: the time between the answers, on the rank's clock.
        steps: the number of steps that ended.
        step_seconds: the mean time of a step; None if none ended.
        computing, waiting, communicating: the shares of `seconds` in which the program was not blocked, was blocked while no
            data moved, and was blocked while data moved. None if the program takes results by callbacks, because hvdlite then
            sees no blocked thread; None also if the blocked times of several threads add up to more than `seconds`.
        blocked_on: the ranks for which this rank waited, each with the share of `seconds` in which this rank waited until that
            rank asked for an operation; at most 1. A wait counts when it ends, even if it began before the first answer.
        bytes_per_second: ``bus_bytes`` (docs/stats.md) divided by the time in which data moved; None if no data moved.
        memory_bytes: the memory of the process in RAM.
        oldest: the operation that has not ended for the longest time: ``operation``, ``seconds``, ``stage``; None if there is
            none.
        where: the Python stack of the main thread at the latest answer, the innermost call last. Calls in libraries are left
            out, except the innermost call.
    """

    rank: int
    host: str
    pid: int
    state: str = "answers"
    seconds: float | None = None
    steps: int | None = None
    step_seconds: float | None = None
    computing: float | None = None
    waiting: float | None = None
    communicating: float | None = None
    blocked_on: Mapping[int, float] | None = None
    bytes_per_second: float | None = None
    memory_bytes: int | None = None
    oldest: Mapping[str, Any] | None = None
    where: str | None = None


@dataclass(frozen=True)
class JobFigures:
    """The figures of a job for the time between two looks, in types that JSON can express.

    Attributes:
        job: the name of the job.
        program: the script of the rank that answered first.
        hvdlite: the version of hvdlite on that rank.
        size: the number of ranks.
        ranks: the figures of each rank that was asked in this look or an earlier one, in the order of the ranks.
        not_asked: for each host that was not asked, the number of its ranks.
        waited_for: the rank for which the others waited longest; None if they waited for none.
        waited_for_share: the mean of `blocked_on` for the rank `waited_for`, over the other ranks that answered.
        last_stall: the latest operation that was older than a second in a look at this job: ``rank``, ``operation``,
            ``seconds`` and ``stage`` at that look, and ``looks_ago``, the number of later looks. None: no look has
            seen such an operation.
    """

    job: str
    program: str
    hvdlite: str
    size: int
    ranks: tuple[RankFigures, ...]
    not_asked: Mapping[str, int]
    waited_for: int | None
    waited_for_share: float | None
    last_stall: Mapping[str, Any] | None


def figures_of_rank(before: Answer, after: Answer) -> RankFigures:
    """The figures of one rank from two of its answers.

    Figures that are differences are None if the first answer is missing or comes from another process or job.
    """
    stats, earlier = after["stats"], before.get("stats") or {}
    found: dict[str, Any] = {
        "rank": stats["rank"],
        "host": after["host"],
        "pid": after["pid"],
        "memory_bytes": after["memory_bytes"],
        "oldest": after["oldest"],
        "where": after["where"],
    }
    same = (before.get("pid"), before.get("job"), earlier.get("job")) == (after["pid"], after["job"], stats["job"])
    seconds = stats["seconds"] - earlier["seconds"] if same else 0.0
    if seconds <= 0:
        return RankFigures(**found)
    steps = stats["steps"] - earlier["steps"]
    moving = stats["moving_seconds"] - earlier["moving_seconds"]
    bus_bytes = stats["bus_bytes"] - earlier["bus_bytes"]
    waited = zip(stats["waited_for_seconds"], earlier["waited_for_seconds"], strict=True)
    blocked = [min(1.0, (late - early) / seconds) for late, early in waited]
    return RankFigures(
        **found,
        **_shares(stats, earlier, seconds),
        seconds=seconds,
        steps=steps,
        step_seconds=seconds / steps if steps else None,
        blocked_on={rank: share for rank, share in enumerate(blocked) if share > 0},
        bytes_per_second=bus_bytes / moving if moving > 0 and bus_bytes else None,
    )


def _shares(stats: Mapping[str, Any], earlier: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    if stats["operations"] and not stats["exposed_seconds"]:
        return {}  # operations have ended, and no thread was ever blocked: callbacks take the results
    exposed = (stats["exposed_seconds"] - earlier["exposed_seconds"]) / seconds
    moving = min(exposed, (stats["exposed_moving_seconds"] - earlier["exposed_moving_seconds"]) / seconds)
    # A wait is counted in slices of a tenth of a second, each when it ends. A slice may have begun before the first answer, so
    # `exposed` may be a little larger than 1.
    if exposed > 1 + 0.2 / seconds:
        return {}
    scale = 1 / exposed if exposed > 1 else 1.0
    return {"computing": max(0.0, 1 - exposed), "waiting": (exposed - moving) * scale, "communicating": moving * scale}


def figures_of_job(
    before: Mapping[int, Answer], after: Sequence[Answer], last_stall: Mapping[str, Any] | None = None
) -> JobFigures:
    """The figures of a job between two looks.

    Args:
        before: each rank's latest answer in earlier looks; at least one rank has one.
        after: the answers of this look.
        last_stall: `JobFigures.last_stall` of the previous look.
    """
    first = next(answer for answer in (*after, *before.values()) if not answer.get("silent"))
    ranks = []
    for answer in after:
        if answer.get("silent"):
            ranks.append(RankFigures(answer["rank"], answer["host"], answer["pid"], "silent"))
        else:
            ranks.append(figures_of_rank(before.get(answer["rank"], {}), answer))
    present = {each.rank for each in ranks}
    gone = [answer for rank, answer in before.items() if rank not in present]
    ranks += [RankFigures(answer["rank"], answer["host"], answer["pid"], "ended") for answer in gone]
    asked = {each.host for each in ranks}
    rank, share = _most_waited_for(ranks)
    return JobFigures(
        job=first["job"],
        program=first["program"],
        hvdlite=first["hvdlite"],
        size=first["stats"]["size"],
        ranks=tuple(sorted(ranks, key=lambda each: each.rank)),
        not_asked={host: count for host, count in first["hosts"].items() if host not in asked},
        waited_for=rank,
        waited_for_share=share,
        last_stall=_last_stall(ranks, last_stall),
    )


def _most_waited_for(ranks: Sequence[RankFigures]) -> tuple[int | None, float | None]:
    shares: dict[int, float] = {}
    known = [each for each in ranks if each.blocked_on is not None]
    for each in known:
        for rank, share in (each.blocked_on or {}).items():
            if rank != each.rank:
                shares[rank] = shares.get(rank, 0.0) + share
    if not shares:
        return None, None
    rank = max(shares, key=lambda each: shares[each])
    others = sum(each.rank != rank for each in known)
    return rank, shares[rank] / others


def _last_stall(ranks: Sequence[RankFigures], before: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    stalled = [each for each in ranks if each.oldest is not None and each.oldest["seconds"] > STALL_SECONDS]
    if stalled:
        worst = max(stalled, key=lambda each: float((each.oldest or {})["seconds"]))
        return {"rank": worst.rank, **(worst.oldest or {}), "looks_ago": 0}
    return None if before is None else {**before, "looks_ago": before["looks_ago"] + 1}
