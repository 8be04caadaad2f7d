"""The callers' side of the engine: requests seen before, names and handles, submit and wait in one, bad arguments."""

import gc
import random
import threading
import weakref

import numpy as np
import pytest
from support.limits import eventually
from support.requests import F32, F64, address, allreduce
from support.thread_ranks import (
    ALLGATHER,
    ALLREDUCE,
    AVERAGE,
    MAX,
    SUM,
    Rank,
    engines,
    in_threads,
    outcomes_of,
    run_ranks,
    run_request,
)

from hvdlite.errors import InvalidArgumentError, MismatchError, PeerLostError
from hvdlite.requests import Kind, Request

# --- requests seen before ---------------------------------------------------------------------------------------------


def test_a_name_seen_before_is_taken_at_what_it_asks_now():
    """Names, shapes, dtypes, ops and factors change from step to step; no result may be that of an earlier request."""

    def body(rank):
        rng = random.Random(5)  # the same choices on all ranks
        for _ in range(60):
            chosen = []
            for name in rng.sample(["a", "b", "ab", "c" * 40, "c" * 41], 3):
                dtype = rng.choice([np.float32, np.float64])
                array = np.full(rng.choice([(), (3,), (1, 3), (2, 2)]), rank.rank + 1, dtype)
                op, factor = rng.choice([SUM, MAX, AVERAGE]), rng.choice([1.0, 2.0])
                request = allreduce(name, array, op, prescale=factor)
                chosen.append((request, array, {SUM: 3, MAX: 2, AVERAGE: 1.5}[op] * factor))
            handles = rank.engine.submit([request for request, _, _ in chosen], wake=False)
            assert outcomes_of(rank.engine, handles) == [2, 2, 2]
            for _, array, expected in chosen:
                assert (array == expected).all()

    run_ranks(2, body)


@pytest.mark.parametrize("count", [1, 4, 100, 30_000])
def test_more_names_than_are_remembered(count):
    """30 000 names do not fit into what is remembered: some are driven out, none is mixed up."""
    with engines(1) as ranks:
        engine = ranks[0].engine
        values = np.arange(count, dtype=np.float64)
        requests = [allreduce(f"n{index}", values[index : index + 1], prescale=float(index % 3 + 1)) for index in range(count)]
        for step in range(1, 3):
            random.Random(step).shuffle(requests)
            outcomes_of(engine, engine.submit(requests, wake=False))
        assert (values == np.arange(count) * (np.arange(count) % 3 + 1.0) ** 2).all()


def test_a_remembered_request_is_checked_against_the_memory_and_the_set_of_today():
    def body(rank):
        array = np.ones(3, np.float32)
        members = [0, 1]
        for _ in range(2):  # the set's id is reused
            number = rank.add_process_set(members)
            if rank.rank in members:
                run_request(rank.engine, allreduce("x", array, process_set=number))
                with pytest.raises(InvalidArgumentError, match="no input memory was given"):
                    run_request(rank.engine, (*allreduce("x", array, process_set=number)[:4], 0, 0, SUM, 0, number))
            rank.remove_process_set(number)
            with pytest.raises(InvalidArgumentError, match="does not exist"):
                run_request(rank.engine, allreduce("x", array, process_set=number))
            members = [1, 2]
        return int(array[0])

    assert run_ranks(3, body) == [2, 3, 3]


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER, Kind.SEND])
def test_an_operation_without_input_memory_is_refused(kind):
    output = np.zeros(4, np.float32)
    target = address(output) if kind in (Kind.ALLREDUCE, Kind.BROADCAST) else 0
    with engines(1) as (rank,), pytest.raises(InvalidArgumentError, match=r"'x' .*: no input memory was given"):
        rank.engine.submit([Request(kind, "x", F32, (4,), 0, target, root=0)], output, False)


def test_names_in_flight_are_exact():
    """Thousands of names in flight at once: each is refused while it is, and may be used again after it."""

    def body(rank):
        rng = random.Random(rank.rank)
        arrays = {f"t{index}": np.ones(1, np.float32) for index in range(3000)}
        handles = {}
        go = np.zeros(1, np.float32)
        for step in range(2):
            order = list(arrays)
            rng.shuffle(order)
            if rank.rank:  # until then the other's operations cannot end
                run_request(rank.engine, allreduce("go", go))
            for name in order:
                handles[name] = rank.engine.submit([allreduce(name, arrays[name])], wake=False)
            for name in [] if rank.rank else rng.sample(order, 100):
                with pytest.raises(InvalidArgumentError, match=f"'{name}' .*still in flight"):
                    rank.engine.submit([allreduce("new", np.ones(1)), allreduce(name, arrays[name])], wake=False)
            if not rank.rank:
                run_request(rank.engine, allreduce("go", go))
            outcomes_of(rank.engine, list(handles.values()))
            assert all(array[0] == 2 ** (step + 1) for array in arrays.values())

    run_ranks(2, body)


def test_two_operations_of_one_name_in_a_submission_are_refused():
    """Waiting would not help, so the error does not advise it. The submission leaves nothing behind."""
    with engines(1) as ranks:
        array = np.ones(1, np.float32)
        with pytest.raises(InvalidArgumentError, match=r"'x' .*this submission has two operations of this name"):
            ranks[0].engine.submit([allreduce(name, array) for name in ("w", "x", "x")])
        for name in ("w", "x"):
            run_request(ranks[0].engine, allreduce(name, array))


def test_a_refused_submission_is_recorded_as_failed():
    def body(rank):
        arrays = [np.ones(1, np.float32) for _ in range(2)]
        if rank.rank == 0:
            first = rank.engine.submit([allreduce("x", arrays[0])], wake=False)
            with pytest.raises(InvalidArgumentError, match=r"'x' .*still in flight"):
                rank.engine.submit([allreduce("y", arrays[1]), allreduce("x", arrays[1])], wake=False)
            outcomes_of(rank.engine, [first])
            record = rank.engine.flight_record()
            assert "not yet announced" not in record, record
        else:
            run_request(rank.engine, allreduce("x", arrays[0]))

    run_ranks(2, body)


def test_numbers_of_works_are_used_once():
    with engines(1) as ranks:
        engine = ranks[0].engine
        array = np.ones(1, np.float32)
        seen = set()
        for _ in range(50):
            works = [engine.submit([allreduce(f"x{index}", array)], wake=False) for index in range(5)]
            numbers = {work.number for work in works}
            assert min(numbers) > 0
            assert not seen & numbers
            seen |= numbers
            outcomes_of(engine, works)
        assert len(seen) == 250


@pytest.mark.parametrize("number", [1, 2])
def test_an_unnamed_operation_has_no_label(number):
    with engines(1) as (rank,):
        request = allreduce(None, np.ones(1, np.float32), group="g", group_size=number)
        with pytest.raises(InvalidArgumentError, match="of group 'g' has no name"):
            rank.engine.submit([request] * number)


def test_a_message_and_a_join_in_one_submission():
    """The pass that a submitted message makes may end a join, after which the unnamed operations are numbered anew."""
    sent, received = np.ones(1), np.zeros(1)
    requests = [
        Request(Kind.SEND, None, F64, (1,), address(sent), root=0),
        Request(Kind.RECV, None, F64, (1,), output_ptr=address(received), root=0),
        Request(Kind.JOIN, None),
    ]

    def body(rank):
        rank.engine.submit(requests, wake=True).wait()
        assert received.tolist() == [1]

    run_ranks(1, body)


def test_the_flight_record_holds_the_last_operations_of_a_large_batch():
    with engines(1, {"flight_recorder_size": 8}) as ranks:
        engine = ranks[0].engine
        values = np.ones(20, np.float32)
        outcomes_of(
            engine, engine.submit([allreduce(f"n{index}", values[index : index + 1]) for index in range(20)], wake=False)
        )
        lines = engine.flight_record().splitlines()
        assert [line.split()[0] for line in lines] == [f"#{number}" for number in range(13, 21)]
        assert all(f"'n{number - 1}'" in line and "done" in line for number, line in enumerate(lines, 13))


def test_a_name_of_several_lines_takes_one_line_of_the_flight_record():
    with engines(1) as (rank,):
        run_request(rank.engine, allreduce("first\nsecond\r\tx", np.ones(1, np.float32)))
        (line,) = rank.engine.flight_record().splitlines()
        assert "allreduce of 'first second  x'" in line


# --- submit and wait in one -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_run_submits_and_waits(size):
    def body(rank):
        for step in range(5):
            array = np.full(3, rank.rank + step, np.int64)
            result = run_request(rank.engine, allreduce("r", array))
            assert result.contributors == size
            assert (array == size * (size - 1) // 2 + size * step).all()
        rows = np.full((rank.rank + 1, 2), rank.rank, np.float32)
        result = run_request(rank.engine, (ALLGATHER, "g", F32, rows.shape, address(rows), 0))
        gathered = Rank.take(result, np.float32)
        assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]

    run_ranks(size, body)


class Memory:
    """Stands for what keeps tensors."""


def test_a_submission_that_is_refused_or_failed_under_way_keeps_nothing():
    def body(rank):
        memory = Memory()
        array = np.ones(2 + rank.rank, np.float32)
        with pytest.raises(MismatchError):
            rank.engine.submit([allreduce("m", array)], memory, False).result()
        with pytest.raises(InvalidArgumentError, match="no input memory"):
            rank.engine.submit([(ALLREDUCE, "m", F32, (2,), 0, 0)], memory, False)
        gone = weakref.ref(memory)
        del memory
        assert gone() is None
        return True

    assert run_ranks(2, body) == [True, True]


def test_after_a_failure_of_the_job_the_memory_of_what_was_under_way_is_kept_for_good():
    def body(rank):
        array = np.ones(2, np.float32)
        if rank.rank:
            assert eventually(lambda: ranks[0].engine.counters()["submitted"])
            rank.engine.publish_failure("raised: for the test")
            return
        under_way, refused = memories = [Memory(), Memory()]
        gone = [weakref.ref(memory) for memory in memories]
        with pytest.raises(PeerLostError):
            rank.engine.submit([allreduce("never", array)], under_way, False).result()
        with pytest.raises(PeerLostError):
            rank.engine.submit([allreduce("never", array)], refused, False)
        del under_way, refused, memories
        gc.collect()
        assert [memory() is None for memory in gone] == [False, True]

    with engines(2) as ranks:
        in_threads(ranks, body)


def test_run_is_for_many_threads_at_once():
    def body(rank):
        def work(thread):
            for step in range(30):
                array = np.full(2, rank.rank + step, np.float32)
                run_request(rank.engine, allreduce(f"t{thread}", array))
                if not (array == 1 + 2 * step).all():
                    wrong.append((thread, step))

        wrong = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    run_ranks(2, body)


def test_a_pointer_may_be_a_buffer():
    with engines(1) as ranks:
        engine = ranks[0].engine
        array, out = np.arange(4.0), np.zeros(4)
        run_request(engine, (ALLREDUCE, "b", F64, (4,), array, out, SUM, 0, 0, 2.0))
        assert (out == 2 * np.arange(4)).all()
        run_request(engine, (ALLREDUCE, "b", F64, (2,), memoryview(array)[2:], out, SUM))
        assert out.tolist() == [2, 3, 4, 6]
        fixed = np.ones(4)
        fixed.flags.writeable = False
        run_request(engine, (ALLREDUCE, "b", F64, (4,), fixed, out, SUM))
        assert (out == 1).all()
        with pytest.raises(TypeError, match="bad 'output_ptr'"):
            run_request(engine, (ALLREDUCE, "b", F64, (4,), array, fixed, SUM))
        with pytest.raises(TypeError, match="bad 'input_ptr'"):
            run_request(engine, (ALLREDUCE, "b", F64, (2,), array[::2], out, SUM))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ([0, "a", F32, (), 0, 0], "each request must be a tuple"),
        ((0, "a", F32), "lacks its argument 'shape'"),
        ((0, "a", F32, (), 0), "lacks its argument 'output_ptr'"),
        ((0, 7, F32, (), 0, 0), "bad 'name': 7"),
        ((0, "a", 1 << 40, (), 0, 0), "bad 'dtype': 1099511627776"),
        ((0, "a", F32, (), "x", 0), "bad 'input_ptr': 'x'"),
        ((0, "a", F32, (), 0, -1.5), "bad 'output_ptr': -1.5"),
        ((0, "a", F32, (), 0, 0, 1, 0, 0, "one"), "bad 'prescale': 'one'"),
        ((0, "a", F32, (), *range(15)), "too many arguments|bad 'group'"),
    ],
)
def test_a_bad_argument_is_named(request_, text):
    with engines(1) as ranks, pytest.raises(TypeError, match=text):
        run_request(ranks[0].engine, request_)
