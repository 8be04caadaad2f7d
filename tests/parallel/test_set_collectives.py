"""Every form of every collective on every process set of a job, one after the other and many at once."""

import itertools

import numpy as np
import pytest
from support.set_cases import FORMS, Members, added, check_form
from support.world import REPEATS, WORLD, shuffled

RANKS = (3,)  # two ranks have no set of several members beside the global one
MORE_RANKS = (2, 4)
RANK, SIZE = WORLD.rank, WORLD.size
SUBSETS = [list(ranks) for count in range(1, SIZE) for ranks in itertools.combinations(range(SIZE), count)]


@pytest.fixture(scope="module")
def sets(hvd):
    """A registered set for each proper subset of the ranks, by its ranks."""
    hvd.shutdown()
    hvd.init()
    with added(hvd, *SUBSETS) as registered:
        yield dict(zip(map(tuple, SUBSETS), registered, strict=True))
    hvd.shutdown()
    hvd.init()


def as_member(process_set, salt=0):
    return Members(process_set.ranks, process_set.rank(), process_set.ranks[salt % process_set.size()], salt)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_on_every_set(hvd, sets, name):
    form = FORMS[name]
    for repeat in REPEATS:
        for process_set in sets.values():
            if process_set.included():
                check_form(form, hvd, process_set, as_member(process_set, repeat))
    outside = Members([RANK], 0, RANK)
    for process_set in sets.values():
        if not process_set.included():
            with pytest.raises(ValueError, match=f": Rank {RANK} is not a member of the provided process set"):
                form.call(hvd, form.inputs(outside, RANK), process_set, outside)


def test_many_operations_of_all_kinds_are_in_flight_on_all_sets_in_another_order_on_each_rank(hvd, sets):
    names = ["allreduce_async", "grouped_allreduce_async", "allgather_async", "broadcast_async_", "reducescatter_async"]
    mine = [process_set for process_set in sets.values() if process_set.included()]
    for repeat in REPEATS:
        handles = {}
        for process_set, name in shuffled(list(itertools.product(mine, names)), repeat):
            form, members = FORMS[name], as_member(process_set, repeat)
            given = form.inputs(members, RANK)
            options = {"name": f"at once {name}", "process_set": process_set}
            if "reduce" in name:
                options["op"] = hvd.Sum
            arguments = (given,) if "grouped" in name else (given[0],)
            arguments += (members.root,) if "broadcast" in name else ()
            handles[form, members.root, process_set] = getattr(hvd, name)(*arguments, **options)
        for (form, _, process_set), handle in shuffled(list(handles.items()), repeat + 50):
            result = handle.synchronize()
            for got, wanted in zip(
                result if isinstance(result, list) else [result], form.wanted(as_member(process_set, repeat)), strict=True
            ):
                np.testing.assert_array_equal(got, wanted)


def test_barrier_on_every_set(hvd, sets):
    for process_set in sets.values():
        if process_set.included():
            hvd.barrier(process_set=process_set)
        else:
            with pytest.raises(ValueError, match=f"Barrier: Rank {RANK} is not a member"):
                hvd.barrier(process_set=process_set)


def test_objects_on_every_set(hvd, sets):
    for process_set in sets.values():
        wrong = next(rank for rank in range(SIZE) if rank not in process_set.ranks)
        if process_set.included():
            root = process_set.ranks[-1]
            got = hvd.broadcast_object({"rank": RANK}, root_rank=root, name="o", process_set=process_set)
            assert got == {"rank": root}
            assert hvd.allgather_object([RANK] * RANK, name="o", process_set=process_set) == [
                [rank] * rank for rank in process_set.ranks
            ]
            with pytest.raises(ValueError, match=f"broadcast received invalid root rank {wrong} for provided process set"):
                hvd.broadcast_object(RANK, root_rank=wrong, process_set=process_set)
        else:
            for call in (hvd.broadcast_object, hvd.allgather_object):
                with pytest.raises(ValueError, match=f"Rank {RANK} is not a member of the provided process set"):
                    call(RANK, process_set=process_set)


def test_a_root_outside_is_refused_by_every_broadcast(hvd, sets):
    for process_set in sets.values():
        if not process_set.included():
            continue
        wrong = next(rank for rank in range(SIZE) if rank not in process_set.ranks)
        for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_):
            for root in (wrong, SIZE, -1):
                with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root} for provided process set"):
                    call(np.ones(1), root, process_set=process_set)


def test_what_an_object_that_could_not_be_pickled_says_names_the_rank_in_the_job(hvd, sets):
    process_set = sets[(SIZE - 1,)]
    if process_set.included():
        for call in (lambda obj: hvd.broadcast_object(obj, RANK, process_set=process_set),
                     lambda obj: hvd.allgather_object(obj, process_set=process_set)):  # fmt: skip
            with pytest.raises(ValueError, match=f"rank {SIZE - 1} could not pickle its generator"):
                call(i for i in "x")
