"""The step protocol of elastic training: small jobs of it in every order, with deaths at any moment."""

import itertools
from dataclasses import dataclass, replace

import pytest

from hvdlite.elastic.steps import plan_copy, share_of_batch
from hvdlite.errors import InternalError


@dataclass(frozen=True)
class Rank:
    """One rank of a job, as the world sees it. It applies steps, and keeps in `history` in which roster each was reduced."""

    phase: str = "compute"
    roster: int = 0
    history: tuple[int, ...] = ()
    passed: bool = False  # has it passed the end of the function?
    life: str = "lives"  # or is dead, or gone: its program has ended


@dataclass(frozen=True)
class Job:
    """Ranks, the members of each roster so far, and who has come to which meeting: all of a roster have to come to it."""

    ranks: tuple[Rank, ...]
    rosters: tuple[tuple[int, ...], ...]
    met: frozenset[tuple[object, int]] = frozenset()
    deaths: int = 0


STEPS = 2


def meeting(rank):
    """Which meeting this phase is about. What a rank contributes there is there for good, also when it dies."""
    about = len(rank.history) if rank.phase == "reduce" else ""
    return (rank.roster, rank.phase, about)


def nexts(job):
    """All that may happen next."""

    def put(number, met=None, **changes):
        ranks = list(job.ranks)
        ranks[number] = replace(ranks[number], **changes)
        return replace(job, ranks=tuple(ranks), met=job.met | ({met} if met else set()))

    for number, rank in enumerate(job.ranks):
        if rank.life != "lives":
            continue
        members = job.rosters[rank.roster]
        place = meeting(rank)
        all_came = all((place, member) in job.met for member in members)
        somebody_is_lost = any(job.ranks[member].life == "dead" for member in members)
        if job.deaths:
            yield replace(put(number, life="dead"), deaths=job.deaths - 1)
        if rank.phase == "compute":
            phase = "reduce" if len(rank.history) < STEPS else "end"
            new = replace(rank, phase=phase)
            yield put(number, met=(meeting(new), number), phase=phase)
            continue
        if rank.phase == "shrink":
            continue  # below
        if somebody_is_lost:
            yield put(number, phase="shrink")
        if rank.phase == "reduce" and all_came:  # it applies the step
            yield put(number, phase="compute", history=(*rank.history, rank.roster))
        elif rank.phase == "end" and all_came:
            new = replace(rank, phase="farewell")
            yield put(number, met=(meeting(new), number), phase="farewell", passed=True)
        elif rank.phase == "farewell" and all_came:
            yield put(number, life="gone")
        elif rank.phase == "report" and all_came:
            yield put(number, **after_report(job, number))
        elif rank.phase == "copy":
            source = members[plan_copy(steps_of(job, rank)).source]
            if number == source:
                yield put(number, phase="compute")
            elif (place, source) in job.met:
                yield put(number, phase="compute", history=histories(job, rank)[source])
    # The agreement on who lives: all that live have to come.
    for epoch in {rank.roster for rank in job.ranks if rank.life == "lives" and rank.phase == "shrink"}:
        members = job.rosters[epoch]
        living = tuple(member for member in members if job.ranks[member].life == "lives")
        if all(job.ranks[member].phase == "shrink" for member in living):
            ranks = list(job.ranks)
            made = len(job.rosters)
            met = set(job.met)
            for member in living:
                ranks[member] = replace(ranks[member], phase="report", roster=made)
                met.add((meeting(ranks[member]), member))
                met.add((("said", made, ranks[member].history, ranks[member].passed), member))
            yield replace(job, ranks=tuple(ranks), rosters=(*job.rosters, living), met=frozenset(met))


def said(job, roster):
    """What each rank has reported in this roster: its history and whether it has passed the end."""
    return {number: place[2:] for place, number in job.met if place[:2] == ("said", roster)}


def histories(job, rank):
    return {number: history for number, (history, _) in said(job, rank.roster).items()}


def steps_of(job, rank):
    reported = histories(job, rank)
    return [len(reported[member]) for member in job.rosters[rank.roster]]


def after_report(job, number):
    """What a rank does that has everybody's report."""
    rank = job.ranks[number]
    reported = said(job, rank.roster)
    if rank.passed or any(passed for _, passed in reported.values()):
        new = replace(rank, phase="farewell")
        return {"met": (meeting(new), number), "phase": "farewell", "passed": True}
    if not plan_copy(steps_of(job, rank)).receivers:
        return {"phase": "compute"}
    new = replace(rank, phase="copy")
    return {"met": (meeting(new), number), "phase": "copy"}


def explore(ranks, deaths):
    first = Job(tuple(Rank() for _ in range(ranks)), (tuple(range(ranks)),), deaths=deaths)
    seen, todo, ends = {first}, [first], 0
    while todo:
        job = todo.pop()
        following = list(nexts(job))
        living = [rank for rank in job.ranks if rank.life == "lives"]
        if not [each for each in following if each.deaths == job.deaths]:
            assert not living, f"they wait for ever: {job}"
            ends += 1
            finished = [rank for rank in job.ranks if rank.life == "gone"]
            assert all(len(rank.history) == STEPS for rank in finished), job
            # Each step was reduced in one roster, and all that ended have that one's result.
            assert len({rank.history for rank in finished}) <= 1, job
        for each in following:
            for before, after in zip(job.ranks, each.ranks, strict=True):
                assert len(after.history) >= len(before.history), f"an applied step was taken back: {job} {each}"
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return len(seen), ends


@pytest.mark.parametrize(("ranks", "deaths", "least"), [(2, 2, 100), (3, 1, 1000), (3, 2, 4000)])
def test_no_step_is_lost_or_counted_twice(ranks, deaths, least):
    states, ends = explore(ranks, deaths)
    assert ends
    assert states >= least, states


@pytest.mark.slow
def test_no_step_is_lost_or_counted_twice_with_four_ranks():
    states, _ = explore(4, 2)
    assert states >= 20000, states


@pytest.mark.parametrize(("steps", "source", "receivers"), [([3], 0, ()), ([3, 3], 0, ()), ([3, 4, 3, 4], 1, (0, 2))])
def test_a_plan(steps, source, receivers):
    plan = plan_copy(steps)
    assert (plan.step, plan.source, plan.receivers) == (max(steps), source, receivers)


def test_ranks_that_are_two_steps_apart_are_a_bug():
    with pytest.raises(InternalError, match=r"have applied \[3, 5\] steps"):
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
