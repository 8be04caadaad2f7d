"""The step protocol of elastic training: small jobs of it in every order, with deaths and leaves at any moment."""

import itertools
from dataclasses import dataclass, replace

import pytest

from hvdlite.elastic.steps import is_commit_due, plan_copy, share_of_batch
from hvdlite.errors import InternalError

MEETINGS = ("reduce", "parts", "commit", "confirm")  # of one step


@dataclass(frozen=True)
class Rank:
    """One rank of a job, as the world sees it. It applies steps, and keeps in `history` in which roster each was reduced."""

    phase: str = "compute"
    roster: int = 0  # -1: it is a spare
    history: tuple[int, ...] = ()
    commit: tuple[int, ...] = ()  # the history at the newest commit
    commits: int = 0
    asked: bool = False  # has it got SIGTERM?
    agreed: bool = False  # has any rank told the others in the last step that it has to leave?
    passed: bool = False  # has it passed the end of the function?
    life: str = "lives"  # or is dead, or gone: its program has ended


@dataclass(frozen=True)
class Job:
    """Ranks, the members of each roster so far, and who has come to which meeting: all of a roster have to come to it."""

    ranks: tuple[Rank, ...]
    rosters: tuple[tuple[int, ...], ...]
    steps: int
    every: int = 0  # the steps between two commits of a sharded optimizer; 0: each rank has the whole state
    met: frozenset[tuple[object, int]] = frozenset()
    deaths: int = 0
    sigterms: int = 0


def meeting(rank):
    """Which meeting this phase is about. What a rank contributes there is there for good, also when it dies."""
    return (rank.roster, rank.phase, (rank.history, rank.commits) if rank.phase in MEETINGS else ())


def come(job, number, **changes):
    """The rank changes, and contributes to the meeting to which it comes."""
    ranks = list(job.ranks)
    ranks[number] = replace(ranks[number], **changes)
    alone = {"compute", "shrink", job.ranks[number].phase}
    new = set() if ranks[number].phase in alone else {(meeting(ranks[number]), number)}
    return replace(job, ranks=tuple(ranks), met=job.met | new)


def nexts(job):
    """All that may happen next."""
    for number, rank in enumerate(job.ranks):
        if rank.life != "lives" or rank.roster < 0:
            continue
        members = job.rosters[rank.roster]
        place = meeting(rank)
        all_came = all((place, member) in job.met for member in members)
        somebody_is_lost = any(job.ranks[member].life == "dead" for member in members)
        if job.deaths:
            yield replace(come(job, number, life="dead"), deaths=job.deaths - 1)
        if job.sigterms and not rank.asked:
            yield replace(come(job, number, asked=True), sigterms=job.sigterms - 1)
        if rank.phase == "compute":
            if job.every and not rank.commits:  # the first commit, before the first step
                yield come(job, number, phase="commit")
            elif len(rank.history) == job.steps:
                yield come(job, number, phase="end")
            else:
                if rank.agreed and rank.asked:  # after the commit each rank may leave, also one that was asked since
                    yield come(job, number, life="dead")
                told = come(job, number, phase="reduce", agreed=False)
                about = ("leaves", meeting(told.ranks[number]))
                yield replace(told, met=told.met | {(about, number)}) if rank.asked else told
            continue
        if rank.phase == "shrink":
            continue  # below
        if somebody_is_lost:
            yield come(job, number, phase="shrink", agreed=False)
        if rank.phase == "copy":
            source = members[plan_copy(points_of(job, rank.roster)).source]
            if (place, source) in job.met:
                its = said(job, rank.roster)[source]
                commit = {"commit": its.commit, "commits": its.commits}
                yield come(job, number, phase="compute", history=its.commit if job.every else its.history, **commit)
        elif all_came:
            yield come(job, number, **after_meeting(job, rank, members, place))
    # The agreement on who lives: all that live have to come. Spares come as well, and become ranks.
    for roster in {rank.roster for rank in job.ranks if rank.life == "lives" and rank.phase == "shrink"}:
        living = [member for member in job.rosters[roster] if job.ranks[member].life == "lives"]
        if all(job.ranks[member].phase == "shrink" for member in living):
            living += [number for number, rank in enumerate(job.ranks) if rank.roster < 0]
            made, agreed = len(job.rosters), replace(job, rosters=(*job.rosters, tuple(living)))
            for member in living:
                report = (("said", made, job.ranks[member]), member)
                agreed = come(replace(agreed, met=agreed.met | {report}), member, phase="report", roster=made)
            yield agreed


def after_meeting(job, rank, members, place):
    """What a rank becomes at the end of a meeting to which all have come."""
    if rank.phase == "reduce":
        agreed = any((("leaves", place), member) in job.met for member in members)
        if job.every:  # it has updated its part, and needs the others' parts
            return {"phase": "parts", "agreed": agreed}
        return {"phase": "compute", "history": (*rank.history, rank.roster)}
    if rank.phase == "parts":
        history = (*rank.history, rank.roster)
        due = is_commit_due(len(history), job.steps, (job.every, 0), rank.agreed)
        return {"phase": "commit" if due else "compute", "history": history}
    if rank.phase == "commit":
        phase = "confirm" if rank.agreed else "compute"
        return {"phase": phase, "commit": rank.history, "commits": rank.commits + 1}
    if rank.phase == "confirm":  # all have ended the commit
        return {"phase": "compute"}
    if rank.phase == "end":
        return {"phase": "farewell", "passed": True}
    if rank.phase == "farewell":
        return {"life": "gone"}
    if rank.passed or any(before.passed for before in said(job, rank.roster).values()):
        return {"phase": "farewell", "passed": True}
    back = {"history": rank.commit} if job.every else {}
    return {"phase": "copy" if plan_copy(points_of(job, rank.roster)).receivers else "compute", **back}


def said(job, roster):
    """What each rank was when it reported to this roster."""
    return {number: place[2] for place, number in job.met if place[:2] == ("said", roster)}


def points_of(job, roster):
    before = said(job, roster)
    ranks = [before[member] for member in job.rosters[roster]]
    return [None if rank.roster < 0 else rank.commits if job.every else len(rank.history) for rank in ranks]


def explore(ranks, deaths, steps=2, spares=0, **options):
    parts = (*[Rank()] * ranks, *[Rank(phase="spare", roster=-1)] * spares)
    first = Job(parts, (tuple(range(ranks)),), steps, deaths=deaths, **options)
    seen, todo, ends = {first}, [first], 0
    while todo:
        job = todo.pop()
        following = list(nexts(job))
        living = [rank for rank in job.ranks if rank.life == "lives" and rank.roster >= 0]
        if not [each for each in following if (each.deaths, each.sigterms) == (job.deaths, job.sigterms)]:
            assert not living, f"they wait for ever: {job}"
            ends += 1
            # A spare that joined after the end has no part in the training.
            finished = [
                rank for number, rank in enumerate(job.ranks) if rank.life == "gone" and (number < ranks or rank.history)
            ]
            assert all(len(rank.history) == steps for rank in finished), job
            # Each step was reduced in one roster, and all that ended have that one's result.
            assert len({rank.history for rank in finished}) <= 1, job
        for each in following:
            for before, after in zip(job.ranks, each.ranks, strict=True):
                kept = before.commit if job.every and deaths else before.history
                assert after.history[: len(kept)] == kept, f"a step that counts was taken back: {job} {each}"
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return len(seen), ends


@pytest.mark.parametrize(
    ("ranks", "deaths", "options", "least"),
    [
        (2, 2, {}, 100),
        (3, 1, {}, 1000),
        (3, 2, {}, 4000),
        (2, 1, {"spares": 1}, 500),
        # A sharded optimizer: after a death the ranks go back to a commit. After a leave no rank takes a step back.
        (2, 1, {"every": 2, "steps": 3, "spares": 1}, 2000),
        (3, 1, {"every": 2, "steps": 3}, 8000),
        (2, 2, {"every": 1, "sigterms": 1}, 4000),
        (3, 0, {"every": 2, "sigterms": 1}, 1000),
    ],
)
def test_no_step_is_lost_or_counted_twice(ranks, deaths, options, least):
    states, ends = explore(ranks, deaths, **options)
    assert ends
    assert states >= least, states


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "deaths", "options"),
    [(4, 2, {}), (3, 2, {"every": 2}), (3, 1, {"every": 2, "sigterms": 1})],
)
def test_no_step_is_lost_or_counted_twice_in_larger_jobs(ranks, deaths, options):
    states, _ = explore(ranks, deaths, **options)
    assert states >= 20000, states


@pytest.mark.parametrize(("points", "source", "receivers"), [([3], 0, ()), ([3, 3], 0, ()), ([3, 4, None, 4], 1, (0, 2))])
def test_a_plan(points, source, receivers):
    plan = plan_copy(points)
    assert (plan.point, plan.source, plan.receivers) == (max(filter(None, points)), source, receivers)


def test_ranks_that_are_two_points_apart_are_a_bug():
    with pytest.raises(InternalError, match=r"are at the points \[3, 5\]"):
        plan_copy([3, 5])


@pytest.mark.parametrize(("samples", "batch_size", "size"), [*itertools.product((1, 7, 12), (1, 5, 12), (1, 2, 3, 5))])
def test_shares_are_the_epoch(samples, batch_size, size):
    order = [(5 * index) % samples for index in range(samples)] if samples % 5 else list(range(samples))
    used = []
    for number in range(-(-samples // batch_size)):
        shares = [share_of_batch(order, number, batch_size, rank, size) for rank in range(size)]
        counts = [count for _, count in shares]
        assert max(counts) - min(counts) <= 1
        assert all(len(indices) == max(count, 1) for indices, count in shares)
        used += [index for indices, count in shares for index in indices[:count]]
    assert used == order
