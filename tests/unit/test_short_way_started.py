"""Operations and groups that the short way starts: their handles, landed once, in time or later, and let go in flight."""

import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.short_way import WORLD_OF_TWO, Started, kept_nothing, misaligned, read_only, start, started, started_group
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, run_ranks

from hvdlite._engine import HandleState
from hvdlite.backends import plain_of
from hvdlite.dtypes import DType
from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.requests import member_names

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_exchange)])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["x", None])
def test_an_operation_is_started_and_not_waited_for(kind, in_place, name):
    def make():
        arrays = [np.arange(5.0) + rank for rank in range(2)]
        return arrays if kind == "numpy" else [torch.from_numpy(array) for array in arrays]

    sources, before = make(), make()
    with engines(2) as ranks:
        started = [start(ranks[0].engine, name, sources[0], in_place, op=None)]
        assert not ranks[0].engine.poll(started[0][0])
        started.append(start(ranks[1].engine, name, sources[1], in_place, op=None))
        in_threads(ranks, lambda rank: rank.engine.wait(started[rank.rank][0]))
    for (_, output), source, old in zip(started, sources, before, strict=True):
        assert (output is source) == in_place
        assert type(output) is type(source)
        assert output.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert in_place or (source == old).all()


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_exchange)])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_started_operation_is_landed_once(kind, in_place):
    """The output comes when the operation has ended, and then the handle and the engine have let go of everything."""

    def body(rank):
        tensor = np.full(5, rank.rank + 1.0) if kind == "numpy" else torch.full((5,), rank.rank + 1.0)
        handle = started(rank.engine, "x", tensor, in_place)
        (number,) = handle._numbers
        assert handle._engine is rank.engine
        output = rank.engine.land(handle, math.inf)
        assert output.tolist() == [3.0] * 5
        assert (output is tensor) == in_place
        assert type(output) is type(tensor)
        with pytest.raises(InvalidArgumentError, match=str(number)):
            rank.engine.poll(number)
        assert rank.engine.land(handle, math.inf) is NotImplemented
        assert [finish(outcome) is output for finish, outcome in zip(handle._finish, handle._outcomes, strict=True)] == [True]
        handle._finish = None
        memory = weakref.ref(output)
        del tensor, output
        assert memory() is None

    Started.left.clear()
    run_ranks(2, body)
    assert not Started.left


@needs_exchange
@pytest.mark.parametrize("in_place", [True, False])
def test_autograd_is_told_of_the_write_when_it_is_landed(in_place):
    with engines(1) as (rank,):
        tensor = torch.ones(3)
        handle = started(rank.engine, "x", tensor, in_place)
        assert tensor._version == 0
        rank.engine.land(handle, math.inf)
        assert tensor._version == int(in_place)


def test_an_operation_that_does_not_end_in_time_may_be_landed_later():
    arrays = [np.full(2, rank + 1.0) for rank in range(2)]
    with engines(2) as ranks:
        handles = [started(ranks[0].engine, "x", arrays[0])]
        with pytest.raises(TimeoutError):
            ranks[0].engine.land(handles[0], 0.01)
        handles.append(started(ranks[1].engine, "x", arrays[1]))
        outputs = in_threads(ranks, lambda rank: rank.engine.land(handles[rank.rank], math.inf))
        assert [output.tolist() for output in outputs] == [[3.0, 3.0]] * 2


def test_a_failed_operation_and_handles_of_another_kind_are_not_landed():
    def body(rank):
        failed = started(rank.engine, "m", np.ones(2 + rank.rank, np.float32))
        assert rank.engine.land(failed, math.inf) is NotImplemented
        outcomes = []
        rank.engine.wait_into(outcomes, *failed._numbers)
        assert isinstance(outcomes[0], MismatchError)
        failed._finish = None
        for numbers, finish in [((1,), (lambda result: result,)), ([], ()), (None, None)]:
            other = Started()
            other._engine, other._numbers, other._outcomes, other._finish = rank.engine, numbers, (), finish
            assert rank.engine.land(other, math.inf) is NotImplemented
            other._finish = None
        assert rank.engine.land(None, math.inf) is NotImplemented

    run_ranks(2, body)


def test_a_handle_that_is_let_go_in_flight_says_so():
    array = np.ones(2)
    with engines(2) as ranks:
        handle = started(ranks[0].engine, "x", array)
        (number,) = handle._numbers
        Started.left.clear()
        kept = handle._finish
        del handle
        assert Started.left == [number]
        handle = started(ranks[1].engine, "x", np.ones(2))
        in_threads(ranks, lambda rank, last=handle: rank.engine.land(last, math.inf) if rank.rank else rank.engine.wait(number))
        del handle
        assert Started.left == [number]
        assert kept[0](None) is array
        assert array.tolist() == [2, 2]


def test_only_handles_are_made():
    with engines(1) as (rank,):
        for kind in (object, HandleState()):
            with pytest.raises(TypeError, match="HandleState"):
                rank.engine.connect(plain_of, kept_nothing, kind)
        rank.engine.connect(plain_of, kept_nothing)
        assert rank.engine.start_allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True) is None
        assert rank.engine.start_allreduces([np.ones(3)], "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, True) is None
        assert rank.engine.counters()["submitted"] == 0


@needs_exchange
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["g", None])
def test_a_group_is_started_and_landed_in_one_go(kind, in_place, name):
    """Of arrays and tensors, beside a rank that goes the general way: names and members are the same."""
    sizes = (5, 0, 300_000)

    def body(rank):
        members = [np.full(size, rank.rank + index + 1.0) for index, size in enumerate(sizes)]
        if rank.rank == 1:
            names = [None] * 3 if name is None else member_names(f"allreduce.{name}", 3)
            group = "" if name is None else f"allreduce.{name}"
            numbers = []
            parts = zip(names, members, strict=True)
            common = (AVERAGE, 0, 0, 1.0, 1.0, group, 3)
            requests = [
                (0, member, int(DType.FLOAT64), array.shape, array, array, *common, index)
                for index, (member, array) in enumerate(parts)
            ]
            rank.engine.submit_many(requests, True, numbers)
            outcomes = []
            assert rank.engine.wait_many(numbers, outcomes)
            return members
        members[2] = torch.from_numpy(members[2])
        handle = started_group(rank.engine, name, kind(members), in_place, AVERAGE)
        assert len(handle._numbers) == 3
        assert handle._grouped
        outputs = rank.engine.land(handle, math.inf)
        assert [output is member for output, member in zip(outputs, members, strict=True)] == [in_place] * 3
        assert [type(output) for output in outputs] == [np.ndarray, np.ndarray, torch.Tensor]
        for number in handle._numbers:
            with pytest.raises(InvalidArgumentError, match=str(number)):
                rank.engine.poll(number)
        again = [finish(outcome) for finish, outcome in zip(handle._finish, handle._outcomes, strict=True)]
        assert all(first is second for first, second in zip(again, outputs, strict=True))
        handle._finish = None
        return outputs

    for outputs in run_ranks(2, body):
        for index, output in enumerate(outputs):
            assert output.tolist() == [index + 1.5] * sizes[index]


@needs_exchange
@pytest.mark.parametrize("mixed", [False, True])
def test_autograd_is_told_of_the_writes_to_a_group(mixed):
    with engines(1) as (rank,):
        tensors = [torch.ones(2), torch.ones(3)]
        handle = started_group(rank.engine, "g", [*tensors, np.ones(2)] if mixed else tensors)
        assert [tensor._version for tensor in tensors] == [0, 0]
        rank.engine.land(handle, math.inf)
        assert [tensor._version for tensor in tensors] == [1, 1]


def test_what_is_unusual_about_a_group_leaves_all_of_it_to_the_general_way():
    good = np.ones(3, np.float32)
    with engines(1) as (rank,):
        for tensors in ([], [good, None], [good, read_only()], [misaligned(), good], iter([good]), good, None):
            assert started_group(rank.engine, "g", tensors) is None
        assert started_group(rank.engine, 5, [good]) is None
        assert started_group(rank.engine, "g", [good], op=1.5) is None
        assert rank.engine.counters()["submitted"] == 0


def test_a_group_of_which_one_fails_is_not_landed():
    def body(rank):
        members = [np.ones(2), np.ones(2 + rank.rank), np.ones(2)]
        handle = started_group(rank.engine, None, members)
        assert rank.engine.land(handle, math.inf) is NotImplemented
        outcomes = []
        for number in handle._numbers:
            rank.engine.wait_into(outcomes, number)
        assert any(isinstance(outcome, MismatchError) for outcome in outcomes)
        handle._finish = None

    run_ranks(2, body)


def test_a_limit_of_a_group_is_for_each_member():
    with engines(1) as (rank,):
        handle = started_group(rank.engine, "g", [np.ones(1), np.ones(1)])
        assert rank.engine.land(handle, 60.0) is NotImplemented
        assert rank.engine.land(handle, math.inf) == [1, 1]
        handle._finish = None


def test_errors_of_what_was_started_name_the_operation():
    def body(rank):
        number, _ = start(rank.engine, "m", np.ones(2 + rank.rank, np.float32))
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            rank.engine.wait(number)
        with pytest.raises(InvalidArgumentError, match="process set 7"):
            start(rank.engine, "m", np.ones(2), process_set=SimpleNamespace(member_id=7))

    run_ranks(2, body)
