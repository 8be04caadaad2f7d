"""Process sets: registration at init and later, membership, every collective on a subset, overlapping sets.

(Over 400 lines, because each promise of these functions has a test.)
"""

import copy
import itertools
import pickle
import re

import numpy as np
import pytest
from mpi4py import MPI
from support.world import REPEATS, WORLD, on_all_ranks, shuffled

from hvdlite.process_sets import root_arguments, set_of_ranks

RANKS = (3,)  # two ranks have no set of several members beside the global one
MORE_RANKS = (1, 2, 4)
RANK, SIZE = WORLD.rank, WORLD.size


@pytest.fixture
def fresh(ended):
    """hvdlite initialised for the test, so that ids count from 1."""
    ended.init()
    return ended


@pytest.fixture
def horovods(ended, monkeypatch):
    """hvdlite shut down, with the rules that Horovod has."""
    monkeypatch.setenv("HVDLITE_HOROVOD_RULES", "1")
    return ended


def subsets():
    """Every proper subset of the ranks, the smallest first."""
    sizes = range(1, SIZE)
    return [list(members) for count in sizes for members in itertools.combinations(range(SIZE), count)]


def test_the_global_set(hvd):
    everyone = hvd.global_process_set
    assert (everyone.process_set_id, everyone.ranks) == (0, list(range(SIZE)))
    assert (everyone.size(), everyone.rank(), everyone.included()) == (SIZE, RANK, True)
    assert str(everyone) == f"ProcessSet(process_set_id=0, ranks={list(range(SIZE))}, mpi_comm=None)"
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=everyone).tolist() == [SIZE] * 2


def test_sets_given_to_init(ended):
    sets = [ended.ProcessSet(list(reversed(members))) for members in subsets()]
    assert all(each.process_set_id is None and each.size() is None for each in sets)
    assert all(each.rank() is None and each.included() is None for each in sets)
    ended.init(process_sets=sets)
    assert [each.process_set_id for each in sets] == list(range(1, len(sets) + 1))
    for each, members in zip(sets, subsets(), strict=True):
        assert each.ranks == members
        assert each.size() == len(members)
        assert each.included() == (RANK in members)
        if RANK in members:
            assert each.rank() == members.index(RANK)
            out = ended.allreduce(np.array([RANK + 1]), op=ended.Sum, process_set=each)
            assert out.tolist() == [sum(members) + len(members)]
        else:
            with pytest.raises(ValueError, match="Process is not part of provided process set"):
                each.rank()
    ended.shutdown()
    assert all(each.process_set_id is None for each in sets)
    ended.init(process_sets=sets)  # the same objects again
    assert [each.process_set_id for each in sets] == list(range(1, len(sets) + 1))


def test_overlapping_sets_work_in_any_order(ended):
    """With one blocking executor, sets {0,1}, {1,2}, {0,2} would wait for each other in some orders."""
    sets = [ended.ProcessSet(members) for members in subsets()]
    ended.init(process_sets=sets)
    for repeat in REPEATS:
        mine = [each for each in sets if each.included()]
        handles = {
            each.process_set_id: ended.allreduce_async(
                np.full(1000, RANK + 1.0 + repeat), name="same name", op=ended.Sum, process_set=each
            )
            for each in shuffled(mine, repeat)
        }
        for each in shuffled(mine, repeat + 7):
            wanted = sum(rank + 1.0 + repeat for rank in each.ranks)
            assert handles[each.process_set_id].synchronize().tolist() == [wanted] * 1000


def test_every_collective_on_a_subset(fresh):
    hvd = fresh
    for members in subsets():
        each = hvd.add_process_set(members)
        n = len(members)
        if RANK in members:
            place = members.index(RANK)
            for repeat in REPEATS:
                assert hvd.allreduce(np.full(3, RANK), op=hvd.Max, process_set=each).tolist() == [max(members)] * 3
                mean = hvd.allreduce(np.full(3, 1.0 + RANK), process_set=each)
                np.testing.assert_allclose(mean, np.mean(members) + 1, rtol=1e-15)
                grouped = hvd.grouped_allreduce([np.ones(1), np.ones(2)], op=hvd.Sum, process_set=each, name="g")
                assert [out.tolist() for out in grouped] == [[n], [n, n]]
                gathered = hvd.allgather(np.full(place + 1, RANK), process_set=each)
                assert gathered.tolist() == [rank for i, rank in enumerate(members) for _ in range(i + 1)]
                root = members[repeat % n]
                assert hvd.broadcast(np.full(2, RANK), root, process_set=each).tolist() == [root] * 2
                assert hvd.alltoall(np.full(n, RANK), process_set=each).tolist() == members
                out = hvd.reducescatter(np.arange(2.0 * n), op=hvd.Sum, process_set=each)
                assert out.tolist() == [2.0 * place * n, (2.0 * place + 1) * n]
                hvd.barrier(process_set=each)
                assert hvd.broadcast_object({"from": RANK}, root, process_set=each) == {"from": root}
                assert hvd.allgather_object(RANK, process_set=each) == members
        else:
            with pytest.raises(ValueError, match=f"Allreduce: Rank {RANK} is not a member of the provided process set"):
                hvd.allreduce(np.ones(1), process_set=each)
        assert hvd.remove_process_set(each) is True
        assert each.process_set_id is None


def test_a_root_outside_the_set_is_refused(fresh):
    if SIZE == 1:
        pytest.skip("needs a rank outside")
    each = fresh.add_process_set([0])
    if RANK == 0:
        with pytest.raises(ValueError, match="invalid root rank 1 for provided process set"):
            fresh.broadcast(np.ones(1), 1, process_set=each)
    fresh.remove_process_set(each)


def test_add_and_remove(fresh):
    hvd = fresh
    if SIZE == 1:
        pytest.skip("the only set is the global one")
    for _ in REPEATS:
        first = hvd.add_process_set([1, 0] if SIZE > 2 else [0])
        second = hvd.add_process_set(hvd.ProcessSet([SIZE - 1]))
        assert first.ranks == sorted(first.ranks)
        known = hvd.process_sets.process_set_ids_and_ranks()
        assert known == {0: list(range(SIZE)), first.process_set_id: first.ranks, second.process_set_id: [SIZE - 1]}
        on_all_ranks(str(known))
        # An id that is used again for other members counts its unnamed operations anew.
        if first.included():
            hvd.allreduce(np.ones(1), process_set=first)
        assert hvd.remove_process_set(first)
        assert not hvd.remove_process_set(first)
        assert first.included() is None
        third = hvd.add_process_set([0, SIZE - 1] if SIZE > 2 else [0])
        if third.included():
            assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=third).tolist() == [third.size()]
        with pytest.raises(ValueError, match="has not been registered"):
            hvd.allreduce(np.ones(1), process_set=first)
        assert hvd.remove_process_set(second)
        assert hvd.remove_process_set(third)
    assert not hvd.remove_process_set(hvd.global_process_set)


def test_other_operations_go_on_while_sets_come_and_go(fresh):
    hvd = fresh
    handles = [hvd.allreduce_async(np.full(100, 1.0), name=f"n{i}", op=hvd.Sum) for i in range(10)]
    added = [hvd.add_process_set(members) for members in subsets()]
    handles += [hvd.allreduce_async(np.full(100, 1.0), name=f"m{i}", op=hvd.Sum) for i in range(10)]
    for each in added:
        hvd.remove_process_set(each)
    for handle in handles:
        assert handle.synchronize().tolist() == [SIZE] * 100


def test_what_is_no_set_is_refused(fresh):
    for ranks in ([], [0, 0], [-1], [99]):
        with pytest.raises(ValueError, match="a process set holds at least one rank"):
            fresh.add_process_set(ranks)
    with pytest.raises(ValueError, match="list of process ranks or an mpi4py Comm"):
        fresh.ProcessSet(["a"])


def test_ranks_that_add_different_sets_are_told(fresh):
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(fresh.MismatchError, match=r"process set differs: ranks \[0\] on rank 0") as caught:
        fresh.add_process_set([RANK])
    on_all_ranks(str(caught.value))
    assert list(fresh.process_sets.process_set_ids_and_ranks()) == [0]
    each = fresh.add_process_set([0])
    assert fresh.remove_process_set(each)


def test_sets_of_the_same_ranks_go_on_independently(fresh):
    everyone = list(range(SIZE))
    first, second, all_again = (fresh.add_process_set(ranks) for ranks in ([0], [0], everyone))
    assert [each.process_set_id for each in (first, second, all_again)] == [1, 2, 3]
    for repeat in REPEATS:
        sets = [each for each in (fresh.global_process_set, all_again) if each.included()]
        handles = [
            fresh.allreduce_async(np.full(9, RANK + place + 1.0), name="same", op=fresh.Sum, process_set=each)
            for place, each in shuffled(list(enumerate(sets)), RANK + repeat)
        ]
        total = sum(rank + 1.0 for rank in everyone)
        assert sorted(handle.synchronize()[0] for handle in handles) == [total, total + SIZE]
        if RANK == 0:
            handles = [fresh.allreduce_async(np.ones(2), name="x", process_set=each) for each in (second, first)]
            assert [handle.synchronize().tolist() for handle in handles] == [[1.0, 1.0]] * 2
    assert fresh.remove_process_set(first)
    assert (first.included(), second.included()) == (None, RANK == 0)
    if RANK == 0:
        assert fresh.allreduce(np.ones(1), process_set=second).tolist() == [1.0]
    assert fresh.remove_process_set(second)
    assert fresh.remove_process_set(all_again)


def test_by_horovods_rules_changes_need_permission(horovods):
    each = horovods.ProcessSet([0])
    horovods.init(process_sets=[each] if SIZE > 1 else [])
    with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod init"):
        horovods.add_process_set([SIZE - 1])
    with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow removing process sets after Horovod"):
        horovods.remove_process_set(each)
    horovods.init(process_sets="dynamic")  # a second init gives it
    if SIZE > 1:
        with pytest.raises(
            ValueError, match=r"Attempted to add a duplicate process set: .*ranks=\[0\].*HVDLITE_HOROVOD_RULES=0"
        ):
            horovods.add_process_set([0])
        assert horovods.remove_process_set(each)
        assert horovods.remove_process_set(horovods.add_process_set([SIZE - 1]))


def test_horovods_variable_is_permission(horovods, monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    first = horovods.ProcessSet([0])
    horovods.init(process_sets=[first] if SIZE > 1 else [])
    if SIZE > 1:
        second = horovods.add_process_set([SIZE - 1])
        assert (first.process_set_id, second.process_set_id) == (1, 2)
        assert horovods.remove_process_set(first)
        assert horovods.remove_process_set(second)


WRONG = {
    "a set without a list": ({}, 'pass a list of ProcessSet objects or "dynamic"'),
    "another word": ({"process_sets": "static"}, "process_sets='static'"),
    "ranks without a list": ({"process_sets": [0]}, "initialized with a list of process ranks or an mpi4py Comm object"),
    "no ranks": ({"process_sets": [[]]}, "a process set holds at least one rank"),
    "ranks of no process": ({"process_sets": [[0, SIZE]]}, f"a process set holds at least one rank of 0 to {SIZE - 1}"),
    "a rank twice": ({"process_sets": [[0, 0]]}, "each once, got \\[0, 0\\]"),
    "no communicator": ({"comm": 1.5}, "comm is None, a list of ranks of MPI_COMM_WORLD or an mpi4py communicator"),
    "ranks outside": ({"comm": [0, SIZE]}, f"each rank of MPI_COMM_WORLD, 0 to {SIZE - 1}, can be named once"),
    "MPI's null": ({"comm": MPI.COMM_NULL}, "only members may call init"),
}


def test_wrong_arguments_of_init(ended):
    for case, (options, text) in WRONG.items():
        if case == "a set without a list":
            options = {"process_sets": ended.ProcessSet([0])}
        with pytest.raises(ValueError, match=text) as caught:
            ended.init(**options)
        on_all_ranks(f"{case}: {caught.value}".replace(f"rank {RANK} of", "rank R of"))
        assert not ended.is_initialized()


def test_a_set_that_was_removed_can_be_added_again(fresh):
    if SIZE == 1:
        pytest.skip("the only set is the global one")
    each = fresh.ProcessSet(np.arange(SIZE - 1))
    for _ in REPEATS:
        assert fresh.add_process_set(each) is each
        assert str(each) == f"ProcessSet(process_set_id=1, ranks={list(range(SIZE - 1))}, mpi_comm=None)"
        with pytest.raises(ValueError, match=re.escape(f"Attempted to add a duplicate process set: {each}")):
            fresh.add_process_set(each)
        if each.included():
            assert fresh.allreduce(np.ones(1), op=fresh.Sum, process_set=each).tolist() == [SIZE - 1]
        assert fresh.remove_process_set(each) is True
        assert fresh.remove_process_set(each) is False
        assert str(each) == f"ProcessSet(process_set_id=None, ranks={list(range(SIZE - 1))}, mpi_comm=None)"
        assert (each.size(), each.rank(), each.included()) == (None, None, None)


def test_ids_are_used_again_in_the_order_in_which_they_were_freed(fresh):
    if SIZE < 3:
        pytest.skip("there are too few sets")
    members = [[0], [1], [2], [0, 1], [0, 2], [1, 2]]
    sets = [fresh.add_process_set(each) for each in members[:4]]
    for place in (2, 0, 3):
        fresh.remove_process_set(sets[place])
    sets = [fresh.add_process_set(each) for each in (*members[4:], members[0], members[2])]
    assert [each.process_set_id for each in sets] == [3, 1, 4, 5]
    for each in sets:
        if each.included():
            total = fresh.allreduce(np.full(2, RANK + 1), op=fresh.Sum, process_set=each)
            assert total.tolist() == [sum(each.ranks) + each.size()] * 2


@pytest.mark.parametrize("kind", ["allreduce_async", "allgather_async", "grouped_reducescatter_async"])
def test_a_removal_lets_what_is_in_flight_end(fresh, kind):
    """Were it not so, a member that removes first would drop what another has begun."""
    if SIZE < 3:
        pytest.skip("a pair would be all ranks")
    for step in range(10):
        each = fresh.add_process_set([1, 2])
        handles = []
        for number in range(3 if each.included() else 0):
            value = np.full(2000, RANK + 1.0 + step)
            options = {} if kind == "allgather_async" else {"op": fresh.Sum}
            given = [value, value] if kind.startswith("grouped") else value
            handles.append(getattr(fresh, kind)(given, name=f"x{number}", process_set=each, **options))
        assert fresh.remove_process_set(each)
        for handle in handles:
            output = handle.synchronize()
            if kind == "allgather_async":
                assert output.tolist() == [2.0 + step] * 2000 + [3.0 + step] * 2000
            else:
                assert (np.concatenate(output) if isinstance(output, list) else output).tolist() == [5.0 + 2 * step] * 2000


def test_arguments_that_are_no_sets(fresh):
    with pytest.raises(ValueError, match=r"remove_process_set\(\[0\]\): pass the object that add_process_set returned"):
        fresh.remove_process_set([0])
    for wrong in (None, 0, [0]):
        with pytest.raises(ValueError, match=r"is no ProcessSet; hvdlite\.add_process_set returns one"):
            fresh.barrier(process_set=wrong)
    for wrong in (5, "all", [1.0], None):
        with pytest.raises(ValueError, match="initialized with a list of process ranks or an mpi4py Comm object"):
            fresh.ProcessSet(wrong)


def test_copies_of_the_global_set_are_the_global_set(hvd):
    """An optimizer that holds it may be copied, and sent to another rank."""
    everyone = hvd.global_process_set
    assert copy.deepcopy([everyone])[0] is everyone
    assert hvd.broadcast_object(everyone, SIZE - 1) is everyone
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=copy.copy(everyone)).tolist() == [SIZE]


def test_a_set_is_found_by_its_ranks_in_any_order(fresh):
    everyone = [*range(SIZE)]
    assert set_of_ranks(reversed(everyone)) is fresh.global_process_set
    added = fresh.add_process_set(everyone[::-1])
    assert added.ranks == everyone
    assert set_of_ranks(reversed(everyone)) is added
    assert pickle.loads(pickle.dumps(added)) is added
    unknown = set_of_ranks([SIZE + 1, SIZE])
    assert unknown.ranks == [SIZE, SIZE + 1]
    assert unknown.process_set_id is None


def test_error_texts_propose_the_first_rank_of_a_set(fresh):
    assert root_arguments(fresh.global_process_set) == "root_rank=0"
    last = fresh.add_process_set([SIZE - 1])
    assert root_arguments(last) == f"root_rank={SIZE - 1}, process_set=process_set"


def test_duplicates_given_to_init(horovods, monkeypatch):
    for given in ([[0], [0]], [list(range(SIZE))]):
        sets = [horovods.ProcessSet(ranks) for ranks in given]
        with pytest.raises(ValueError, match=r"process_sets entry number \d is a duplicate"):
            horovods.init(process_sets=sets)
        assert not horovods.is_initialized()
    monkeypatch.delenv("HVDLITE_HOROVOD_RULES")
    sets = [horovods.ProcessSet(ranks) for ranks in ([0], [0], range(SIZE))]
    horovods.init(process_sets=sets)
    assert [each.process_set_id for each in sets] == [1, 2, 3]


def test_sets_that_differ_between_ranks_stop_init_everywhere(ended):
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(ValueError, match="entry number 0 differs") as caught:
        ended.init(process_sets=[ended.ProcessSet([RANK])])
    on_all_ranks(str(caught.value))
    with pytest.raises(ValueError, match="number of process sets given to init differs") as caught:
        ended.init(process_sets=[ended.ProcessSet([0])] if RANK else [])
    on_all_ranks(str(caught.value))


def test_sets_from_communicators(ended):
    if SIZE == 1:
        pytest.skip("the half would be the global set")
    half = WORLD.Split(RANK % 2, key=RANK)
    each = ended.ProcessSet(half)
    ended.init(process_sets=[each])
    assert each.ranks == list(range(RANK % 2, SIZE, 2))
    assert each.process_set_id == 1 + RANK % 2
    assert ended.allreduce(np.ones(1), op=ended.Sum, process_set=each).tolist() == [half.size]
    ended.shutdown()
    ended.init(process_sets="dynamic")
    with pytest.raises(NotImplementedError, match="defined by an MPI communicator is not implemented"):
        ended.add_process_set(ended.ProcessSet(half))
    half.Free()


def test_sets_of_a_job_on_a_part_of_the_processes(ended):
    """Ranks of sets count in the job, also where the job has another order than MPI_COMM_WORLD."""
    if SIZE < 3:
        pytest.skip("the job would have one rank")
    listed = list(reversed(range(1, SIZE)))
    if RANK in listed:
        comm = WORLD.Create_group(WORLD.group.Incl([RANK])) if RANK == SIZE - 1 else None  # of rank 0 of the job
        by_ranks = ended.ProcessSet([1])
        ended.init(comm=listed, process_sets=[by_ranks])
        assert by_ranks.included() == (RANK == SIZE - 2)
        ended.shutdown()
        ended.init(comm=listed, process_sets=[ended.ProcessSet(comm or [0])])
        assert ended.process_sets.process_set_ids_and_ranks() == {0: list(range(SIZE - 1)), 1: [0]}
        ended.shutdown()
        if RANK == SIZE - 1:
            comm.Free()
    WORLD.Barrier()


def test_a_second_init_binds_known_sets(ended):
    if SIZE == 1:
        pytest.skip("the only set is the global one")
    ended.init(process_sets=[ended.ProcessSet([0])])
    again = ended.ProcessSet([0])
    ended.init(process_sets=[again])
    assert again.process_set_id == 1
    with pytest.raises(ValueError, match="is not registered; call hvdlite"):
        ended.init(process_sets=[ended.ProcessSet([SIZE - 1, 0])] if SIZE > 2 else [ended.ProcessSet([1])])
