"""Works and groups that calls with plain tensors start: landed once, in time or later, and let go in flight."""

import gc
import math
import weakref

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.limits import eventually
from support.plain_calls import WORLD_OF_TWO, Started, misaligned, read_only, started, started_group
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, outcomes_of, run_ranks

from hvdlite._engine import Work
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
        works = [started(ranks[0].engine, name, sources[0], in_place, op=None)]
        assert not works[0].poll()
        works.append(started(ranks[1].engine, name, sources[1], in_place, op=None))
        outputs = in_threads(ranks, lambda rank: works[rank.rank]._outputs(math.inf))
        assert all(work.poll() for work in works)
    for output, source, old in zip(outputs, sources, before, strict=True):
        assert (output is source) == in_place
        assert type(output) is type(source)
        assert output.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert in_place or (source == old).all()


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_exchange)])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_work_that_landed_keeps_its_output_alone_and_gives_it_again(kind, in_place):
    """As often as Ctrl-C makes somebody ask for it."""

    def body(rank):
        tensor = np.full(5, rank.rank + 1.0) if kind == "numpy" else torch.full((5,), rank.rank + 1.0)
        work = started(rank.engine, "x", tensor, in_place)
        output = work._outputs(math.inf)
        assert output.tolist() == [3.0] * 5
        assert (output is tensor) == in_place
        assert type(output) is type(tensor)
        assert work._outputs(math.inf) is output
        assert (work.results(), work.size) == ([None], 1)
        work._finish = None
        memory = weakref.ref(output)
        del tensor, output
        assert memory() is None
        assert rank.engine.dropped_in_flight == 0

    run_ranks(2, body)


@needs_exchange
@pytest.mark.parametrize("in_place", [True, False])
def test_autograd_is_told_of_the_write_when_it_is_landed(in_place):
    with engines(1) as (rank,):
        tensor = torch.ones(3)
        work = started(rank.engine, "x", tensor, in_place)
        assert tensor._version == 0
        work._outputs(math.inf)
        assert tensor._version == int(in_place)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_does_not_end_in_time_may_be_landed_later(grouped):
    arrays = [np.full(2, rank + 1.0) for rank in range(2)]

    def start(rank):
        array = arrays[rank.rank]
        return started_group(rank.engine, "x", [array]) if grouped else started(rank.engine, "x", array)

    with engines(2) as ranks:
        works = [start(ranks[0])]
        with pytest.raises(TimeoutError):
            works[0]._outputs(0.01)
        works.append(start(ranks[1]))
        outputs = in_threads(ranks, lambda rank: works[rank.rank]._outputs(60.0))
        assert [np.ravel(output).tolist() for output in outputs] == [[3.0, 3.0]] * 2


def test_a_failed_operation_and_works_of_another_kind_are_not_landed():
    def body(rank):
        failed = started(rank.engine, "m", np.ones(2 + rank.rank, np.float32))
        for _ in range(2):
            assert failed._outputs(math.inf) is NotImplemented
            (error,) = failed.results()
            assert isinstance(error, MismatchError)
        for finish in (lambda result: result, (), [], None):
            other = Started()
            other._finish = finish
            assert other._outputs(math.inf) is NotImplemented

    run_ranks(2, body)


def test_a_work_that_is_let_go_in_flight_is_kept_until_its_operation_has_ended():
    array, other = np.ones(2), np.ones(2)
    with engines(2) as ranks:
        work = started(ranks[0].engine, "x", array)
        place = weakref.ref(work)
        del work
        gc.collect()
        assert place() is not None
        assert ranks[0].engine.dropped_in_flight == 1
        started(ranks[1].engine, "x", other)._outputs(math.inf)
        assert eventually(lambda: place().poll())
        assert ranks[0].engine.dropped_in_flight == 1
        started(ranks[0].engine, "next", np.ones(1))  # whoever submits lets go of it
        assert place() is None
        assert array.tolist() == [2, 2]


@pytest.mark.parametrize("cause", ["", "raised: for the test"])
def test_memory_of_a_work_that_outlives_its_engine_stays_for_good_only_if_that_failed(cause):
    """The transport may still write to it then. Let go before the end, and after it."""
    arrays = [np.ones(2) for _ in range(2)]
    memories = [weakref.ref(array) for array in arrays]
    with engines(2) as ranks:
        before, after = (started(ranks[0].engine, f"x{index}", array) for index, array in enumerate(arrays))
        del before, arrays
        if cause:
            ranks[0].engine.publish_failure(cause)
    del after, ranks
    gc.collect()
    assert [memory() is not None for memory in memories] == [bool(cause)] * 2


def test_only_works_are_made():
    with engines(1) as (rank,):
        for kind in (object, Work()):
            with pytest.raises(TypeError, match="derived from Work"):
                rank.engine.connect(plain_of, kind)
        rank.engine.connect(plain_of)
        assert rank.engine.allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, False) is None
        assert rank.engine.allreduce_group([np.ones(3)], "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, True) is None
        assert rank.engine.counters()["submitted"] == 0


@needs_exchange
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["g", None])
def test_a_group_is_started_and_landed_in_one_go(kind, in_place, name):
    """Of arrays and tensors, beside a rank that describes each by numbers: names and members are the same."""
    sizes = (5, 0, 300_000)

    def body(rank):
        members = [np.full(size, rank.rank + index + 1.0) for index, size in enumerate(sizes)]
        if rank.rank == 1:
            names = [None] * 3 if name is None else member_names(f"allreduce.{name}", 3)
            group = "" if name is None else f"allreduce.{name}"
            parts = zip(names, members, strict=True)
            common = (AVERAGE, 0, 0, 1.0, 1.0, group, 3)
            requests = [
                (0, member, int(DType.FLOAT64), array.shape, array, array, *common, index)
                for index, (member, array) in enumerate(parts)
            ]
            assert outcomes_of(rank.engine, rank.engine.submit(requests)) == [2, 2, 2]
            return members
        members[2] = torch.from_numpy(members[2])
        work = started_group(rank.engine, name, kind(members), in_place, AVERAGE)
        assert work.size == 3
        assert work._grouped
        outputs = work._outputs(math.inf)
        assert [output is member for output, member in zip(outputs, members, strict=True)] == [in_place] * 3
        assert [type(output) for output in outputs] == [np.ndarray, np.ndarray, torch.Tensor]
        again = [finish(result) for finish, result in zip(work._finish, work.results(), strict=True)]
        assert all(first is second for first, second in zip(again, outputs, strict=True))
        return outputs

    for outputs in run_ranks(2, body):
        for index, output in enumerate(outputs):
            assert output.tolist() == [index + 1.5] * sizes[index]


@needs_exchange
@pytest.mark.parametrize("mixed", [False, True])
def test_autograd_is_told_of_the_writes_to_a_group(mixed):
    with engines(1) as (rank,):
        tensors = [torch.ones(2), torch.ones(3)]
        work = started_group(rank.engine, "g", [*tensors, np.ones(2)] if mixed else tensors)
        assert [tensor._version for tensor in tensors] == [0, 0]
        work._outputs(math.inf)
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
        work = started_group(rank.engine, None, members)
        assert work._outputs(math.inf) is NotImplemented
        assert any(isinstance(result, MismatchError) for result in work.results())

    run_ranks(2, body)


def test_errors_of_what_was_started_name_the_operation():
    def body(rank):
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            started(rank.engine, "m", np.ones(2 + rank.rank, np.float32)).result()
        with pytest.raises(InvalidArgumentError, match="no input memory"):
            rank.engine.submit([(0, "m", int(DType.FLOAT64), (2,), 0, 0)])

    run_ranks(2, body)
