"""Process sets that go while operations are in flight on them, while ranks have joined, or while ranks wait for each other."""

import threading

import numpy as np
import pytest
from support import thread_ranks
from support.thread_ranks import ALLGATHER, ALLREDUCE, JOIN, REMOVE_SET, Rank, engines, in_threads, run_ranks

from hvdlite.errors import AbortedError, InvalidArgumentError, MismatchError, OperationTimeoutError, PeerLostError


@pytest.fixture(params=["auto", "off"], ids=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, or in messages through a coordinator."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", request.param)


def start_removal(rank: Rank, process_set: int) -> int:
    return rank.start(REMOVE_SET, "remove_process_set", root=process_set)


@pytest.mark.parametrize("kind", [ALLREDUCE, ALLGATHER], ids=["allreduce", "allgather"])
def test_what_was_submitted_before_a_removal_ends_well(kind):
    """A rank that followed the removal first dropped what another had begun, which then waited for ever."""

    def body(rank: Rank):
        for step in range(60):
            process_set = rank.add_process_set([1, 2])
            handles, outputs = [], []
            for number in range(3 if rank.rank else 0):
                value = np.full(2000, float(rank.rank + step + number))
                outputs.append(np.empty_like(value))
                given = outputs[-1] if kind == ALLREDUCE else None
                handles.append(rank.start(kind, f"x{number}", value, given, process_set=process_set))
            rank.remove_process_set(process_set)
            for number, handle in enumerate(handles):
                result = handle.result()
                if kind == ALLREDUCE:
                    assert (outputs[number] == 3 + 2 * (step + number)).all()
                else:
                    parts = rank.take(result, np.float64).reshape(2, -1)
                    assert (parts == [[1 + step + number], [2 + step + number]]).all()
            assert rank.engine.process_set_ids() == [0]

    run_ranks(3, body)


def test_a_removal_waits_for_the_operations_of_its_set_and_admits_no_more():
    submitted = threading.Event()

    def body(rank: Rank):
        process_set = rank.add_process_set([0, 1])
        value, output = np.full(4, rank.rank + 1.0), np.empty(4)
        if rank.rank == 0:
            early = rank.start(ALLREDUCE, "early", value, output, process_set=process_set)
            removal = start_removal(rank, process_set)
            with pytest.raises(InvalidArgumentError, match=r"'late' in process set 1.*this rank is removing the process set"):
                rank.allreduce("late", value, process_set=process_set)
            rank.allreduce("global", value[:0], process_set=0)  # other sets are not held up
            assert not removal.poll()  # rank 1 submits 'early' after this
            submitted.set()
            removal.result()
            assert early.poll()
            early.result()
        else:
            rank.allreduce("global", value[:0], process_set=0)
            submitted.wait()
            if rank.rank == 1:
                rank.start(ALLREDUCE, "early", value, output, process_set=process_set).result()
            rank.remove_process_set(process_set)
        if rank.rank < 2:
            assert (output == 3).all()
        assert rank.engine.process_set_ids() == [0]

    run_ranks(3, body)


def test_a_removal_that_waits_for_ever_fails_on_all_ranks_and_the_set_stays():
    def body(rank: Rank):
        process_set = rank.add_process_set([0, 1])
        value = np.full(2, rank.rank + 1.0)
        missing = None
        if rank.rank == 0:  # rank 1 never submits it
            missing = rank.start(ALLREDUCE, "missing", value, np.empty(2), process_set=process_set)
        with pytest.raises(OperationTimeoutError) as caught:
            start_removal(rank, process_set).result()
        if missing is not None:
            with pytest.raises(OperationTimeoutError):
                missing.result()
        rank.barrier("everybody has failed")
        if rank.rank < 2:
            assert (rank.allreduce("after", value, process_set=process_set) == 3).all()
        rank.remove_process_set(process_set)
        return str(caught.value)

    texts = run_ranks(3, body)
    assert len(set(texts)) == 1
    assert "rank 0 waits for allreduce of 'missing' in process set 1, missing on rank 1" in texts[0]
    assert "rank 1 waits for remove_process_set of 'remove_process_set' in process set 0, missing on rank 0" in texts[0]


@pytest.mark.parametrize("ending", ["fails", "leaves"])
def test_a_removal_that_waits_ends_with_the_rank_that_it_waits_for(ending):
    with engines(3) as ranks:
        number = in_threads(ranks, lambda rank: rank.add_process_set([0, 1]))[0]
        value = np.ones(2)
        handles = [ranks[0].start(ALLREDUCE, "x", value, value, process_set=number), start_removal(ranks[0], number)]
        if ending == "fails":
            ranks[1].engine.publish_failure("raised ValueError: bad batch")
        else:
            ranks[1].engine.shutdown()
        for handle in handles:
            with pytest.raises(PeerLostError if ending == "fails" else AbortedError, match="rank 1"):
                handle.result()


def test_removals_that_name_different_sets_fail_and_the_sets_stay():
    def body(rank: Rank):
        sets = [rank.add_process_set([0, 1]), rank.add_process_set([1])]
        with pytest.raises(MismatchError, match="process set differs: id 1 on ranks 0, 2, id 2 on rank 1") as caught:
            rank.remove_process_set(sets[rank.rank % 2])
        if rank.rank < 2:
            assert (rank.allreduce("x", np.full(2, rank.rank + 1.0), process_set=sets[0]) == 3).all()
        for process_set in sets:
            rank.remove_process_set(process_set)
        return str(caught.value)

    assert len(set(run_ranks(3, body))) == 1


def test_sets_do_not_change_behind_the_back_of_a_joined_rank():
    with engines(3) as ranks:
        number = in_threads(ranks, lambda rank: rank.add_process_set([0, 1]))[0]
        joins = [ranks[1].start(JOIN, "join")]

        def others(rank: Rank):
            for change in (lambda: rank.add_process_set([1, 2]), lambda: rank.remove_process_set(number)):
                with pytest.raises(MismatchError, match=r"rank 1 did not ask for it but waits in join\(\)"):
                    change()
            return rank.join()

        in_threads([ranks[0], ranks[2]], others)
        joins[0].result()
        assert all(rank.engine.process_set_ids() == [0, number] for rank in ranks)
        in_threads(ranks, lambda rank: rank.remove_process_set(number))


def test_freed_ids_are_used_again_the_one_that_was_freed_first_first():
    def body(rank: Rank):
        members = [[0], [1], [2], [0, 1], [0, 2], [1, 2]]
        numbers = [rank.add_process_set(each) for each in members[:4]]
        for place in (2, 0, 3):
            rank.remove_process_set(numbers[place])
        return numbers, [rank.add_process_set(each) for each in (*members[4:], members[0], members[2])]

    assert run_ranks(3, body) == [([1, 2, 3, 4], [3, 1, 4, 5])] * 3
