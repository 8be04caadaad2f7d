"""The roles in an elastic job: which spares are called and become ranks, in every order of events in small jobs."""

import itertools
from dataclasses import replace

import pytest

from hvdlite.pool import Process, Role, assign_roles, topology_when_joined
from hvdlite.topology import Topology


def job_of(layout, spares):
    """Ranks on hosts a, b, ..., with so many on each; then spares on these hosts."""
    ranks = [Process(Role.RANK, host, seat) for host, count in zip("abc", layout, strict=False) for seat in range(count)]
    return [*ranks, *(Process(Role.WAITING, host, -1) for host in spares)]


def events(processes):
    """What may change before the processes regroup: one process is lost, or a called spare is ready."""
    for index, each in enumerate(processes):
        yield [*processes[:index], *processes[index + 1 :]]
        if each.role is Role.CALLED:
            yield [*processes[:index], replace(each, role=Role.READY), *processes[index + 1 :]]


@pytest.mark.parametrize(("layout", "spares"), [((2,), "a"), ((3,), "aa"), ((2, 1), "ab"), ((1, 1), "bba")])
def test_the_job_gets_as_many_ranks_as_there_are_processes(layout, spares):
    wanted = sum(layout)
    seen, fresh = set(), [tuple(assign_roles(job_of(layout, spares), wanted))]
    while fresh:
        processes = fresh.pop()
        if processes in seen:
            continue
        seen.add(processes)
        roles = [each.role for each in processes]
        at_work = roles.count(Role.RANK) + roles.count(Role.CALLED)
        assert at_work == min(wanted, len(processes))
        assert Role.READY not in roles
        seats = [(each.host, each.seat) for each in processes if each.role is not Role.WAITING]
        assert len(set(seats)) == len(seats)  # no two use the same devices
        for after in events(processes):
            given = assign_roles(after, wanted)
            for before, now in zip(after, given, strict=True):
                assert now.host == before.host
                if before.role is not Role.WAITING:  # nobody changes seats, and no rank becomes a spare
                    assert now.seat == before.seat
                    assert now.role <= before.role
            fresh.append(tuple(given))
    assert any(all(each.role is Role.RANK for each in processes) and len(processes) == 1 for processes in seen)


def test_a_called_spare_gets_the_seat_of_the_lost_rank():
    processes = job_of((3, 2), "ba")
    del processes[3]  # rank 0 of host b
    called = assign_roles(processes, 5)
    assert called[-2:] == [Process(Role.CALLED, "b", 0), Process(Role.WAITING, "a", -1)]
    # It will be the last rank. Its local rank is the lost one's, so that it takes that one's GPU.
    assert topology_when_joined(called, 4) == Topology(4, 5, 0, 2, 1, 2, False)


def test_numbers_of_called_spares_among_each_other():
    called = assign_roles(job_of((2, 2), "ab")[1:], 4)  # rank 0 of host a is lost
    assert topology_when_joined(called, 3) == Topology(3, 4, 0, 2, 0, 2, True)
    both = assign_roles([called[0], called[2], *called[3:]], 4)  # and rank 0 of host b
    places = [topology_when_joined(both, index) for index, each in enumerate(both) if each.role is Role.CALLED]
    assert [(place.rank, place.local_rank, place.cross_rank) for place in places] == [(2, 0, 0), (3, 0, 1)]
    assert all(place.size == 4 and place.is_homogeneous for place in places)


def test_spares_are_called_in_their_order():
    processes = assign_roles(job_of((2,), "aaa")[1:], 2)
    assert [each.role for each in processes] == [Role.RANK, Role.CALLED, Role.WAITING, Role.WAITING]
    orders = itertools.permutations(range(1, 4), 2)
    for lost in orders:  # a called one is lost: the next is called
        left = [each for index, each in enumerate(processes) if index not in lost]
        assert [each.role for each in assign_roles(left, 2)] == [Role.RANK, Role.CALLED]
