"""Sets that their members register by themselves: the other ranks hear of them, but do not call."""

import itertools

import numpy as np
import pytest
from support.rest import outlasts
from support.world import WORLD

from hvdlite.process_sets import process_set_among, process_set_ids_and_ranks
from hvdlite.runtime import RUNTIME

RANKS = (3,)  # two ranks have no set of several members beside the global one
MORE_RANKS = (2, 4)
RANK, SIZE = WORLD.rank, WORLD.size
EVERYONE = list(range(SIZE))


@pytest.fixture(autouse=True)
def fresh(hvd):
    """hvdlite without sets, and without permission for dynamic ones."""
    hvd.shutdown()
    hvd.init()
    yield
    hvd.shutdown()
    hvd.init()


def total(hvd, members, process_set):
    out = hvd.allreduce(np.array([10.0**RANK, RANK]), op=hvd.Sum, process_set=process_set)
    assert out.tolist() == [sum(10.0**rank for rank in members), sum(members)]


def test_only_members_call(hvd):
    for members in itertools.chain.from_iterable(itertools.combinations(EVERYONE, n) for n in range(1, SIZE)):
        if RANK not in members:
            continue
        among = process_set_among(members)
        assert (among.ranks, among.rank(), among.size()) == (list(members), members.index(RANK), len(members))
        total(hvd, members, among)
        again = process_set_among(members)
        assert again is among
        total(hvd, members, again)
    hvd.barrier()
    assert len(set(WORLD.allgather(str(process_set_ids_and_ranks())))) == 1
    assert len(process_set_ids_and_ranks()) == 2**SIZE - 1  # all subsets that are not empty


def test_all_ranks_are_the_global_set(hvd):
    among = process_set_among(EVERYONE)
    assert among is hvd.global_process_set
    total(hvd, EVERYONE, among)


def test_others_may_wait_meanwhile(hvd):
    """The last rank is ahead and waits for the others, one of which takes its time: no deadlock."""
    members = EVERYONE[:-1]
    if RANK in members:
        if members[-1] == RANK:
            assert outlasts(RUNTIME.engine, 1.6)  # more than it takes to find a deadlock
        total(hvd, members, process_set_among(members))
    total(hvd, EVERYONE, hvd.global_process_set)


@pytest.mark.skipif(SIZE == 2, reason="ranks 0 and 1 are all")
def test_a_member_that_never_comes_is_named(hvd):
    """Rank 0 waits for rank 1, and rank 1, which has another idea of the members, for all."""
    if RANK < 2:
        wrong = [lambda: process_set_among([0, 1]), lambda: hvd.allreduce(np.ones(1), name="lonely")][RANK]
        with pytest.raises(hvd.HorovodInternalError, match="deadlock") as caught:
            wrong()
        assert "rank 0 waits for add_process_set of 'among [0, 1]' in process set 0, missing on rank 1;" in str(caught.value)
    WORLD.Barrier()


def test_ranks_are_checked(hvd):
    for wrong in ([], [SIZE], [RANK, RANK]):
        with pytest.raises(ValueError, match="a process set holds at least one rank"):
            process_set_among(wrong)
