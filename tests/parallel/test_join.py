"""Ranks that run out of data early: join, and what the others' operations give meanwhile."""

import itertools
from functools import partial

import numpy as np
import pytest
from support.world import REPEATS, WORLD

from hvdlite.arenas import make_arena
from hvdlite.dtypes import code_of_name, numpy_dtype
from hvdlite.objects import exchange_object

RANK, SIZE = WORLD.rank, WORLD.size


def test_all_join_at_once(hvd):
    for _ in REPEATS:
        last = hvd.join()
        assert 0 <= last < SIZE
        assert len(set(WORLD.allgather(last))) == 1


def test_the_last_rank_to_join_is_named_everywhere(hvd):
    for last in range(SIZE):
        if last == RANK:  # an allreduce ends when all others have joined
            assert hvd.allreduce(np.full(2, RANK + 1.0), name="alone", op=hvd.Sum).tolist() == [RANK + 1.0] * 2
        assert hvd.join() == last


OPS = {"Sum": sum, "Min": min, "Max": max, "Product": np.prod, "Average": lambda values: sum(values) / SIZE}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_uneven_numbers_of_steps(hvd, op, named):
    """Rank r makes r + 1 steps: step s reduces over the ranks from s on; Average divides by the size, as in Horovod."""
    for repeat in REPEATS:
        for step in range(RANK + 1):
            mine = np.full(5, 2.0 + RANK + repeat)
            name = f"{op}.{step}" if named else None
            out = hvd.allreduce(mine, name=name, op=getattr(hvd, op))
            np.testing.assert_allclose(out, OPS[op]([2.0 + rank + repeat for rank in range(step, SIZE)]), rtol=1e-15)
        assert hvd.join() == SIZE - 1 or SIZE == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128"])
def test_a_sum_of_negative_zeros_stays_negative_alone_and_fused(ended, monkeypatch, dtype):
    monkeypatch.setenv("HVDLITE_ALLREDUCE_ALGORITHM", "ring")
    ended.init()
    if RANK == 0 and SIZE > 1:
        ended.join()
        return
    mine = np.negative(np.zeros(3, dtype))
    outs = [ended.allreduce(mine, op=ended.Sum), *ended.grouped_allreduce([mine, mine], op=ended.Sum)]
    for out in outs:
        assert np.signbit(out.real).all()
        assert np.signbit(out.imag).all() or dtype != "complex128"
    ended.join()


def test_other_operations_go_on_without_the_joined(hvd):
    for _ in REPEATS:
        if RANK == 0 and SIZE > 1:
            hvd.join()
            continue
        present = list(range(1 if SIZE > 1 else 0, SIZE))
        assert hvd.allgather(np.full(2, RANK), name="g").tolist() == [rank for rank in present for _ in range(2)]
        assert hvd.broadcast(np.full(2, RANK), SIZE - 1, name="b").tolist() == [SIZE - 1] * 2
        out = hvd.reducescatter(np.full(SIZE * 2, 1.0), name="r", op=hvd.Sum)
        assert out.tolist() == [float(len(present))] * 2
        hvd.barrier()
        hvd.join()


def test_by_horovods_rules_allreduce_alone_goes_on_without_the_joined(ended, monkeypatch):
    if SIZE == 1:
        pytest.skip("nobody could have joined")
    monkeypatch.setenv("HVDLITE_HOROVOD_RULES", "1")
    ended.init()
    mine = np.full(3, RANK + 1.0)
    calls = {
        "Allgather": lambda: ended.allgather(np.full(2, RANK)),
        "Broadcast": lambda: ended.broadcast(np.full(2, RANK), SIZE - 1),
        "Alltoall": lambda: ended.alltoall(np.full(SIZE, RANK)),
        "Reducescatter": lambda: ended.reducescatter(np.full(SIZE, 1.0 * RANK)),
    }
    for repeat in REPEATS:
        assert ended.allgather(np.full(1, RANK + repeat)).tolist() == [rank + repeat for rank in range(SIZE)]
        if RANK > 0:
            for name, call in calls.items():
                with pytest.raises(
                    ended.MismatchError, match=f"{name} is not supported with Join at this time.*rank 0 has joined"
                ):
                    call()
            wanted = sum(rank + 1.0 for rank in range(1, SIZE))
            assert ended.allreduce(mine, op=ended.Sum).tolist() == [wanted] * 3
            # What hvdlite itself has to know, at the first step of an optimizer say.
            assert exchange_object(RANK, f"known{repeat}", ended.global_process_set) == list(range(1, SIZE))
        ended.join()


def test_a_broadcast_from_a_joined_root_is_the_users_error(hvd):
    if SIZE == 1:
        pytest.skip("the root is the only rank")
    if RANK == 0:
        hvd.join()
    else:
        with pytest.raises(hvd.MismatchError, match="the root, rank 0, has joined and has nothing to send"):
            hvd.broadcast(np.ones(2), 0, name="lost")
        hvd.join()
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="after").tolist() == [SIZE] * 2


def test_alltoall_and_groups_go_on_without_the_joined(hvd):
    for repeat in REPEATS:
        if RANK == SIZE - 1 and SIZE > 1:
            hvd.join()
            continue
        present = list(range(max(SIZE - 1, 1)))
        rows = np.full((SIZE, 2), 10 * RANK + repeat)
        out, received = hvd.alltoall(rows, [1] * SIZE, name="a")
        assert out.tolist() == [[10 * rank + repeat] * 2 for rank in present]
        assert received.tolist() == [int(rank in present) for rank in range(SIZE)]
        gathered = hvd.grouped_allgather([np.full(1, RANK), np.full((2, 1), RANK)], name="gg")
        assert [array.ravel().tolist() for array in gathered] == [present, [rank for rank in present for _ in range(2)]]
        scattered = hvd.grouped_reducescatter([np.full(SIZE, 1.0 + repeat), np.ones((SIZE, 2))], name="gr", op=hvd.Sum)
        assert [array.tolist() for array in scattered] == [[len(present) * (1.0 + repeat)], [[len(present)] * 2]]
        total = hvd.grouped_allreduce([np.full(3, RANK), np.ones((), "float16")], name="ga", op=hvd.Sum)
        assert [array.tolist() for array in total] == [[sum(present)] * 3, len(present)]
        hvd.join()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int64", "float16", "bfloat16", "float32", "bool"])
def test_identities_of_every_op(hvd, dtype):
    """What a joined rank contributes changes no minimum, maximum or product, whatever the sign of the values."""
    kind = numpy_dtype(code_of_name(dtype))
    signs = [1] if dtype in ("uint8", "bool") else [1, -1]
    if RANK == 0 and SIZE > 1:
        hvd.join()
    else:
        present = range(1 if SIZE > 1 else 0, SIZE)
        for sign, (name, op) in itertools.product(signs, {"Min": min, "Max": max, "Product": np.prod}.items()):
            values = [np.array([sign * (rank + 1), sign * 2], kind) for rank in present]
            out = hvd.allreduce(values[RANK - present[0]], name=f"{name}{sign}", op=getattr(hvd, name))
            wanted = [op([value[place].astype(object) for value in values]) for place in range(2)]
            assert out.tolist() == np.array(wanted).astype(kind).tolist(), name
        hvd.join()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_average_of_the_contributing(hvd, dtype):
    """Each rank decides for itself whether it counts: here the even ones do not; rank r makes r + 1 steps."""
    for repeat in REPEATS:
        for step in range(RANK + 1):
            out = hvd.allreduce(np.full(3, 12 * (RANK + repeat), dtype), name=f"{dtype}{step}")
            divisor = SIZE - len([rank for rank in range(step) if rank % 2 == 0])
            total = sum(12 * (rank + repeat) for rank in range(step, SIZE))
            assert out.tolist() == np.full(3, total / divisor).astype(dtype).tolist()
            part = hvd.reducescatter(np.full(SIZE, 12.0), name=f"r{step}")
            assert part.tolist() == [12.0 * (SIZE - step) / divisor]
        assert hvd.join(average="contributing" if RANK % 2 == 0 else "all") == SIZE - 1
    assert hvd.allreduce(np.full(2, float(RANK))).tolist() == [(SIZE - 1) / 2] * 2, "everybody counts again"


def test_operations_of_before_and_after_a_join_are_not_mixed(hvd):
    """What a rank asked for before it joined it contributes to and is counted in, in one batch with what it does not."""
    for repeat in REPEATS:
        mine = np.full(4, 1.0 + RANK)
        early = [hvd.allreduce_async(mine, name=f"early{place}") for place in range(3)]
        late = []
        if RANK > 0 or SIZE == 1:
            late = [hvd.allreduce_async(mine * (repeat + 1), name=f"late{place}") for place in range(3)]
        hvd.join(average="contributing")
        everyone = range(SIZE)
        for handle in early:
            assert handle.synchronize().tolist() == [sum(1.0 + rank for rank in everyone) / SIZE] * 4
        for handle in late:
            others = everyone[1:] if SIZE > 1 else everyone
            mean = sum((1.0 + rank) * (repeat + 1) for rank in others) / len(others)
            np.testing.assert_allclose(handle.synchronize(), [mean] * 4, rtol=1e-15)


def test_join_on_a_process_set(ended):
    """Joining one set leaves the others alone; unnamed operations of the set count anew afterwards."""
    sets = [ended.ProcessSet(list(range(first, SIZE))) for first in range(1, SIZE)]
    ended.init(process_sets=sets)
    for each in sets:
        if RANK not in each.ranks:
            with pytest.raises(ValueError, match=rf"Join: Rank {RANK} is not a member of the provided process set"):
                ended.join(process_set=each)
            continue
        place = each.rank()
        for repeat in REPEATS:
            for step in range(place + 1):
                out = ended.allreduce(np.full(2, RANK + repeat), op=ended.Sum, process_set=each)
                assert out.tolist() == [sum(rank + repeat for rank in each.ranks[step:])] * 2
                if step == 0:  # the global set is not concerned
                    handle = ended.allreduce_async(np.ones(1), op=ended.Sum, process_set=each, name="named")
                    assert handle.synchronize().tolist() == [each.size()]
            average = "contributing" if repeat else "all"
            assert ended.join(process_set=each, average=average) == SIZE - 1
        assert ended.allreduce(np.ones(2), op=ended.Sum, process_set=each).tolist() == [each.size()] * 2
    assert ended.allreduce(np.ones(2), op=ended.Sum).tolist() == [SIZE] * 2


def test_a_rank_that_waits_in_join_answers_for_other_sets_when_it_returns(ended):
    """No rank is lost: a member of two sets joins one after the other, in an order that all its members have."""
    if SIZE < 3:
        pytest.skip("two sets that overlap in part need three ranks")
    sets = [ended.ProcessSet([0, 1]), ended.ProcessSet([1, 2])]
    ended.init(process_sets=sets)
    for _ in REPEATS:
        for each in sets:
            if RANK in each.ranks:
                for step in range(each.rank() + 1):
                    out = ended.allreduce(np.full(1, float(RANK)), process_set=each, name=f"s{step}")
                    assert out.tolist() == [sum(each.ranks[step:]) / (2 - step)]
                assert ended.join(process_set=each, average="contributing") == each.ranks[-1]


def test_waiting_in_join_while_another_set_needs_this_rank_is_a_deadlock(ended):
    if SIZE < 3:
        pytest.skip("a set of two of several ranks")
    pair = ended.ProcessSet([0, 1])
    ended.init(process_sets=[pair])
    wait = partial(ended.join, process_set=pair) if RANK == 0 else partial(ended.allreduce, np.ones(1), name="all")
    with pytest.raises(ended.OperationTimeoutError, match=r"rank 0 waits for join .*process set 1, missing on rank 1;.*'all'"):
        wait()
    assert ended.allreduce(np.ones(1), op=ended.Sum, name="after").tolist() == [SIZE]
    if RANK < 2:  # nobody counts as joined any more
        assert ended.allreduce(np.ones(1), op=ended.Sum, name="pair", process_set=pair).tolist() == [2]
        assert ended.join(process_set=pair) in (0, 1)


def test_what_ranks_compare_and_share_leaves_out_the_joined(hvd):
    if RANK == 1:
        hvd.join()
        return
    if SIZE > 2:
        with pytest.raises(hvd.MismatchError, match=r"every is 2 on rank 0, but every is 3 on ranks? 2"):
            hvd.check_consistency(np.ones(2), every=2 + (RANK > 0))
    if SIZE > 1:
        assert make_arena(1 << 16, "arena", hvd.global_process_set) == (None, "rank 1 joined before")
    hvd.join()


def test_horovods_device_is_taken_and_not_used(hvd):
    assert hvd.join(RANK) in range(SIZE)


@pytest.mark.parametrize("arguments", [{"average": "some"}, {"average": True}], ids=str)
def test_wrong_arguments(hvd, arguments):
    with pytest.raises(ValueError, match="join"):
        hvd.join(**arguments)
    with pytest.raises(ValueError, match="is no ProcessSet"):
        hvd.join(process_set=[0])
