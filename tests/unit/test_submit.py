"""The callers' side of the engine: requests seen before, prepared groups, waiting for many, submit and wait in one."""

import random
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from support.limits import interrupted
from support.thread_ranks import (
    ABSENT,
    ALLGATHER,
    ALLREDUCE,
    AVERAGE,
    BROADCAST,
    MAX,
    SUM,
    Rank,
    engines,
    in_threads,
    outcomes_of,
    run_ranks,
)

from hvdlite.errors import (
    AbortedError,
    ErrorCode,
    HvdliteError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
)

F32, F64, I64 = 10, 11, 7


def address(array):
    return array.__array_interface__["data"][0]


def allreduce(name, array, op=SUM, **more):
    """A request to reduce an array in place, as a tuple."""
    defaults = {"root": 0, "process_set": 0, "prescale": 1.0, "postscale": 1.0, "group": "", "group_size": 0, "group_index": 0}
    defaults |= {"splits": (), "device": -1, "layout": 0, "flags": 0}
    dtype = {"float32": F32, "float64": F64, "int64": I64}[array.dtype.name]
    place = address(array)
    return (ALLREDUCE, name, dtype, array.shape, place, place, op, *(defaults | more).values())


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
            handles = rank.engine.submit_many([request for request, _, _ in chosen], False)
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
            outcomes_of(engine, engine.submit_many(requests, False))
        assert (values == np.arange(count) * (np.arange(count) % 3 + 1.0) ** 2).all()


def test_a_remembered_request_is_checked_against_the_memory_and_the_set_of_today():
    def body(rank):
        array = np.ones(3, np.float32)
        members = [0, 1]
        for _ in range(2):  # the set's id is reused
            number = rank.add_process_set(members)
            if rank.rank in members:
                rank.engine.run(allreduce("x", array, process_set=number))
                with pytest.raises(InvalidArgumentError, match="no input memory was given"):
                    rank.engine.run((*allreduce("x", array, process_set=number)[:4], 0, 0, SUM, 0, number))
            rank.remove_process_set(number)
            with pytest.raises(InvalidArgumentError, match="does not exist"):
                rank.engine.run(allreduce("x", array, process_set=number))
            members = [1, 2]
        return int(array[0])

    assert run_ranks(3, body) == [2, 3, 3]


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
                rank.engine.run(allreduce("go", go))
            for name in order:
                handles[name] = rank.engine.submit_many([allreduce(name, arrays[name])], False)[0]
            for name in [] if rank.rank else rng.sample(order, 100):
                with pytest.raises(InvalidArgumentError, match=f"'{name}' .*still in flight"):
                    rank.engine.submit_many([allreduce("new", np.ones(1)), allreduce(name, arrays[name])], False)
            if not rank.rank:
                rank.engine.run(allreduce("go", go))
            outcomes_of(rank.engine, list(handles.values()))
            assert all(array[0] == 2 ** (step + 1) for array in arrays.values())

    run_ranks(2, body)


def test_old_handles_name_nothing():
    with engines(1) as ranks:
        engine = ranks[0].engine
        array = np.ones(1, np.float32)
        seen = set()
        for _ in range(50):
            handles = engine.submit_many([allreduce(f"x{index}", array) for index in range(5)], False)
            assert min(handles) > 0
            assert not seen & set(handles)
            seen |= set(handles)
            outcomes_of(engine, handles)
        for handle in [*seen, 0, -1, 1 << 40, 1 << 62]:
            with pytest.raises(InvalidArgumentError, match="is unknown: it was already synchronized or never existed"):
                engine.poll(handle)
            engine.release(handle)  # harmless


def test_the_flight_record_holds_the_last_operations_of_a_large_batch():
    with engines(1, {"flight_recorder_size": 8}) as ranks:
        engine = ranks[0].engine
        values = np.ones(20, np.float32)
        outcomes_of(
            engine, engine.submit_many([allreduce(f"n{index}", values[index : index + 1]) for index in range(20)], False)
        )
        lines = engine.flight_record().splitlines()
        assert [line.split()[0] for line in lines] == [f"#{number}" for number in range(13, 21)]
        assert all(f"'n{number - 1}'" in line and "done" in line for number, line in enumerate(lines, 13))


# --- prepared groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_prepared_group_is_reduced_in_place_again_and_again(size):
    def body(rank):
        shapes = [(), (3,), (2, 5), (0,), (1000,)]
        arrays = [np.zeros(shape, np.float64) for shape in shapes]
        requests = [
            allreduce(f"p{index}", array, group="g", group_size=len(shapes), group_index=index)
            for index, array in enumerate(arrays)
        ]
        group = rank.engine.prepare(requests)
        for step in range(4):
            # Other memory each time: what was given to prepare does not count.
            arrays = [np.full(shape, (rank.rank + 1) * (index + step), np.float64) for index, shape in enumerate(shapes)]
            handle = rank.engine.submit_prepared(group, [address(array) for array in arrays], (), False)
            assert outcomes_of(rank.engine, [handle]) == [size] * len(shapes)
            for index, array in enumerate(arrays):
                assert (array == size * (size + 1) / 2 * (index + step)).all()
        assert rank.engine.counters()["submitted"] == 4 * len(shapes)
        rank.engine.release_prepared(group)

    run_ranks(size, body)


def test_members_of_a_prepared_group_may_be_absent():
    def body(rank):
        arrays = [np.full(4, 10.0 * rank.rank + index) for index in range(3)]
        group = rank.engine.prepare([allreduce(f"a{index}", array) for index, array in enumerate(arrays)])
        absent = [[0, 2], [1, 2], [2]][rank.rank]
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays], absent)
        assert outcomes_of(rank.engine, [handle]) == [2, 2, 0]
        assert (arrays[0] == 10 + 20).all()
        assert (arrays[1] == 1 + 21).all()
        assert (arrays[2] == 10 * rank.rank + 2).all()  # nobody had a value: nothing is written
        # The same names with a value on all ranks.
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        assert outcomes_of(rank.engine, [handle]) == [3, 3, 3]
        assert (arrays[2] == 30 + 6).all()

    run_ranks(3, body)


def test_a_prepared_group_meets_plain_requests():
    """The ranks need not submit alike: what is asked is the same."""

    def body(rank):
        arrays = [np.full(2, rank.rank + index, np.float32) for index in range(2)]
        requests = [
            allreduce(f"m{index}", array, group="g", group_size=2, group_index=index) for index, array in enumerate(arrays)
        ]
        if rank.rank:
            handles = rank.engine.submit_many(requests)
        else:
            handles = [rank.engine.submit_prepared(rank.engine.prepare(requests), [address(array) for array in arrays])]
        assert outcomes_of(rank.engine, handles) == [2, 2]
        assert [array[0] for array in arrays] == [1, 3]

    run_ranks(2, body)


BAD_GROUPS = {
    "empty": ([], InvalidArgumentError, "at least one request"),
    "twice": ([("a", {}), ("b", {}), ("a", {})], InvalidArgumentError, "'a' .*occurs twice in this prepared group"),
    "root": ([("a", {"group": "g", "group_size": 2, "group_index": 2})], InvalidArgumentError, "group member 2 of 2"),
    "set": ([("a", {"process_set": 5})], InvalidArgumentError, "'a' in process set 5: Process set provided does not exist"),
    "device": ([("a", {"device": 4000})], HvdliteError, "'a' .*: (the CUDA driver|there is no GPU 4000)"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_a_group_that_cannot_be_is_refused_when_it_is_prepared(case):
    members, error, text = BAD_GROUPS[case]
    array = np.ones(2, np.float32)
    with engines(1) as ranks:
        with pytest.raises(error, match=text):
            ranks[0].engine.prepare([allreduce(name, array, **options) for name, options in members])
        assert ranks[0].engine.counters()["submitted"] == 0


def test_only_allreduces_of_one_set_are_prepared():
    def body(rank):
        array = np.ones(2, np.float32)
        number = rank.add_process_set([0, 1])
        with pytest.raises(InvalidArgumentError, match="broadcast of 'b' in process set 0: only allreduces can be prepared"):
            rank.engine.prepare([(BROADCAST, "b", F32, (2,), 0, 0)])
        if rank.rank < 2:
            mixed = [allreduce("a", array), allreduce("b", array, process_set=number)]
            with pytest.raises(InvalidArgumentError, match=r"'b' .*the first of this prepared group is in process set 0"):
                rank.engine.prepare(mixed)

    run_ranks(3, body)


def test_a_prepared_group_submitted_wrongly_leaves_nothing_behind():
    with engines(1) as ranks:
        engine = ranks[0].engine
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        places = [address(array) for array in arrays]
        group = engine.prepare([allreduce(f"w{index}", array) for index, array in enumerate(arrays)])
        with pytest.raises(InvalidArgumentError, match=f"prepared group {group} has 3 requests, but 2 addresses were given"):
            engine.submit_prepared(group, places[:2])
        with pytest.raises(InvalidArgumentError, match="'w1' in process set 0: no input memory was given"):
            engine.submit_prepared(group, [places[0], 0, places[2]])
        with pytest.raises(InvalidArgumentError, match="'w1' in process set 0: no output memory was given"):
            engine.submit_prepared(group, [places[0], 0, places[2]], [1])
        with pytest.raises(IndexError, match="no request of that number"):
            engine.submit_prepared(group, places, [3])
        with pytest.raises(InvalidArgumentError, match="prepared group 999999 is unknown"):
            engine.submit_prepared(999999, places)
        handle = engine.submit_prepared(group, places)
        assert outcomes_of(engine, [handle]) == [1, 1, 1]
        engine.release_prepared(group)
        with pytest.raises(InvalidArgumentError, match="is unknown: it was released, or prepared before the last shutdown"):
            engine.submit_prepared(group, places)
        engine.release_prepared(group)  # harmless
        assert engine.counters()["submitted"] == 3


def test_a_prepared_group_in_flight_cannot_be_submitted_again():
    def body(rank):
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        places = [address(array) for array in arrays]
        group = rank.engine.prepare([allreduce(f"f{index}", array) for index, array in enumerate(arrays)])
        if rank.rank:  # waits until the other has tried
            rank.engine.run(allreduce("go.0", arrays[0][:0]))
        handle = rank.engine.submit_prepared(group, places)
        if not rank.rank:
            with pytest.raises(InvalidArgumentError, match=r"'f0' .*still in flight"):
                rank.engine.submit_prepared(group, places)
            rank.engine.run(allreduce("go.0", arrays[0][:0]))
        assert outcomes_of(rank.engine, [handle]) == [2, 2, 2]

    run_ranks(2, body)


def test_a_removed_set_ends_its_prepared_groups_also_if_its_id_is_used_again():
    def body(rank):
        array = np.ones(2, np.float32)
        number = rank.add_process_set([0, 1])
        group = rank.engine.prepare([allreduce("r", array, process_set=number)]) if rank.rank < 2 else 0
        if group:
            outcomes_of(rank.engine, [rank.engine.submit_prepared(group, [address(array)])])
        rank.remove_process_set(number)
        text = "'r' in process set .*the process set of this prepared group was removed"
        if group:
            with pytest.raises(InvalidArgumentError, match=text):
                rank.engine.submit_prepared(group, [address(array)])
        assert rank.add_process_set([0, 1]) == number
        if group:
            with pytest.raises(InvalidArgumentError, match=text):
                rank.engine.submit_prepared(group, [address(array)])

    run_ranks(3, body)


def test_a_group_of_an_earlier_engine_is_unknown_to_the_next():
    array = np.ones(2, np.float32)
    with engines(1) as ranks:
        old = ranks[0].engine.prepare([allreduce("o", array)])
    with pytest.raises(NotInitializedError):
        ranks[0].engine.submit_prepared(old, [address(array)])
    with engines(1) as ranks:
        ranks[0].engine.prepare([allreduce("o", array)])
        with pytest.raises(InvalidArgumentError, match="prepared before the last shutdown"):
            ranks[0].engine.submit_prepared(old, [address(array)])


def test_a_mismatch_of_prepared_groups_is_an_error_of_the_members_concerned():
    def body(rank):
        arrays = [np.ones(2 + (index == 1) * rank.rank, np.float32) for index in range(3)]
        group = rank.engine.prepare([allreduce(f"x{index}", array) for index, array in enumerate(arrays)])
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        first, error, third = outcomes_of(rank.engine, [handle])
        assert first == third == 2
        assert isinstance(error, MismatchError)
        assert "shape differs: [2] on rank 0, [3] on rank 1" in str(error)
        assert [array[0] for array in arrays] == [2, 1, 2]
        return str(error)

    assert len(set(run_ranks(2, body))) == 1


def test_a_group_that_never_completes_is_found_and_ends():
    def body(rank):
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        names = ["d0", f"d1.{rank.rank}", "d2"]
        group = rank.engine.prepare([allreduce(name, array) for name, array in zip(names, arrays, strict=True)])
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        first, error, third = outcomes_of(rank.engine, [handle])
        assert first == third == 2
        assert error.code == ErrorCode.TIMEOUT

    run_ranks(2, body, {"deadlock_timeout": 0.2})


# --- waiting for many -------------------------------------------------------------------------------------------------


def test_waiting_for_many_tells_them_apart():
    def body(rank):
        arrays = [np.full(3 + (index == 2) * rank.rank, rank.rank, np.float32) for index in range(5)]
        handles = rank.engine.submit_many([allreduce(f"w{index}", array) for index, array in enumerate(arrays)])
        order = [3, 2, 0, 4, 1]
        outcomes = outcomes_of(rank.engine, [handles[index] for index in order])
        assert "'w2'" in str(outcomes.pop(1))
        assert outcomes == [2, 2, 2, 2]
        for handle in handles:
            with pytest.raises(InvalidArgumentError, match="is unknown"):
                rank.engine.wait(handle)

    run_ranks(2, body)


def test_nothing_to_wait_for():
    with engines(1) as ranks:
        assert outcomes_of(ranks[0].engine, []) == []
        with pytest.raises(InvalidArgumentError, match="handle 5 is unknown"):
            outcomes_of(ranks[0].engine, [5])


def test_a_prepared_handle_is_polled_as_a_whole_and_not_waited_for_as_one():
    polled = threading.Event()

    def body(rank):
        arrays = [np.ones(1, np.float32) for _ in range(2)]
        group = rank.engine.prepare([allreduce(f"q{index}", array) for index, array in enumerate(arrays)])
        if rank.rank:
            rank.engine.run(allreduce("q0", arrays[0]))
            rank.engine.run(allreduce("between", np.ones(1)))
            polled.wait()
            rank.engine.run(allreduce("q1", arrays[1]))
            return
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        rank.engine.run(allreduce("between", np.ones(1)))
        half_done = rank.engine.poll(handle)
        polled.set()
        assert not half_done
        while not rank.engine.poll(handle):
            pass
        with pytest.raises(InvalidArgumentError, match="prepared group: wait for it with wait_many"):
            rank.engine.wait(handle)

    run_ranks(2, body)


def test_ctrl_c_interrupts_waiting_for_many_and_leaves_all_handles():
    arrays = [[np.full(2, rank + index + 1.0) for index in range(4)] for rank in range(2)]
    requests = [[allreduce(f"k{index}", array) for index, array in enumerate(mine)] for mine in arrays]
    with engines(2) as ranks:
        first, second = (rank.engine for rank in ranks)
        handles = first.submit_many(requests[0][:2])
        handles.append(first.submit_prepared(first.prepare(requests[0][2:]), [request[4] for request in requests[0][2:]]))
        done = second.submit_many(requests[1][:1])  # the first of them ends, the others do not
        interrupted(lambda: outcomes_of(first, handles))
        done += second.submit_many(requests[1][1:])
        in_threads(ranks, lambda rank: outcomes_of(rank.engine, done if rank.rank else handles))
    for index in range(4):
        assert (arrays[0][index] == 2 * index + 3).all()


def test_ctrl_c_that_comes_while_the_last_operation_ends_loses_no_outcome():
    """Python would run the handler as soon as the call returns, between the wait and whatever the caller does with it."""

    def handler(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    try:
        with engines(2) as ranks:
            first, second = (rank.engine for rank in ranks)
            arrays = [np.ones(2), np.ones(2)]
            for step in range(6):
                handle = first.submit_many([allreduce(f"e{step}", arrays[0])])[0]

                def other(step=step):
                    time.sleep(0.02)  # the signal comes within the slice in which the operation ends
                    signal.pthread_kill(main, signal.SIGUSR1)
                    second.run(allreduce(f"e{step}", arrays[1]))

                thread = threading.Thread(target=other)

                ways = (first.wait, partial(first.wait_into, []), lambda handle: outcomes_of(first, [handle]))

                def waits(thread=thread, handle=handle, wait=ways[step % 3]):
                    thread.start()
                    wait(handle)

                with pytest.raises(KeyboardInterrupt):  # on a slow machine perhaps before the wait
                    waits()
                thread.join()
                assert outcomes_of(first, [handle]) == [2]
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- submit and wait in one -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_run_submits_and_waits(size):
    def body(rank):
        for step in range(5):
            array = np.full(3, rank.rank + step, np.int64)
            result = rank.engine.run(allreduce("r", array))
            assert result.contributors == size
            assert (array == size * (size - 1) // 2 + size * step).all()
        rows = np.full((rank.rank + 1, 2), rank.rank, np.float32)
        result = rank.engine.run((ALLGATHER, "g", F32, rows.shape, address(rows), 0))
        gathered = Rank.take(result, np.float32)
        assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]

    run_ranks(size, body)


def test_run_hands_over_what_a_signal_leaves_in_flight():
    arrays = [np.full(4, rank + 1.0) for rank in range(2)]
    kept = []
    with engines(2) as ranks:
        memory = object()
        first = ranks[0].engine
        interrupted(
            lambda: first.run(allreduce("late", arrays[0]), memory, lambda *what: kept.append(what)),
            begun=lambda: first.counters()["submitted"] == 1,
        )
        ((held, handle, code),) = kept
        assert held is memory
        assert code == 0
        assert not ranks[0].engine.poll(handle)
        other = ranks[1].engine.submit_many([allreduce("late", arrays[1])])[0]
        in_threads(ranks, lambda rank: rank.engine.wait(other if rank.rank else handle))
    assert (arrays[0] == 3).all()


def test_run_hands_over_the_memory_of_what_failed_under_way_but_not_of_what_was_refused():
    def body(rank):
        kept = []
        array = np.ones(2 + rank.rank, np.float32)
        with pytest.raises(MismatchError):
            rank.engine.run(allreduce("m", array), array, lambda *what: kept.append(what))
        assert kept == [(array, 0, ErrorCode.MISMATCH)] or (kept[0][0] is array and kept[0][1:] == (0, ErrorCode.MISMATCH))
        with pytest.raises(InvalidArgumentError, match="no input memory"):
            rank.engine.run((ALLREDUCE, "m", F32, (2,), 0, 0), array, lambda *what: kept.append(what))
        assert len(kept) == 1
        return True

    assert run_ranks(2, body) == [True, True]


def test_run_after_a_failure_of_the_job():
    def body(rank):
        array = np.ones(2, np.float32)
        kept = []
        if rank.rank:
            while ranks[0].engine.counters()["submitted"] == 0:
                time.sleep(0.001)
            rank.engine.publish_failure("raised: for the test")
            return
        for _ in range(2):  # under way, and refused
            with pytest.raises(PeerLostError):
                rank.engine.run(allreduce("never", array), array, lambda *what: kept.append(what[1:]))
        assert kept == [(0, ErrorCode.PEER_LOST)]

    with engines(2) as ranks:
        in_threads(ranks, body)


def test_run_is_for_many_threads_at_once():
    def body(rank):
        def work(thread):
            for step in range(30):
                array = np.full(2, rank.rank + step, np.float32)
                rank.engine.run(allreduce(f"t{thread}", array))
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
        engine.run((ALLREDUCE, "b", F64, (4,), array, out, SUM, 0, 0, 2.0))
        assert (out == 2 * np.arange(4)).all()
        engine.run((ALLREDUCE, "b", F64, (2,), memoryview(array)[2:], out, SUM))
        assert out.tolist() == [2, 3, 4, 6]
        fixed = np.ones(4)
        fixed.flags.writeable = False
        engine.run((ALLREDUCE, "b", F64, (4,), fixed, out, SUM))
        assert (out == 1).all()
        with pytest.raises(TypeError, match="bad 'output_ptr'"):
            engine.run((ALLREDUCE, "b", F64, (4,), array, fixed, SUM))
        with pytest.raises(TypeError, match="bad 'input_ptr'"):
            engine.run((ALLREDUCE, "b", F64, (2,), array[::2], out, SUM))


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
        ranks[0].engine.run(request_)


def test_shutdown_ends_waiting_for_many():
    with engines(2) as ranks:
        array = np.ones(2, np.float32)
        handles = ranks[0].engine.submit_many([allreduce("never", array)])

        def body(rank):
            if rank.rank:
                time.sleep(0.2)
                rank.engine.shutdown()
                return None
            return outcomes_of(rank.engine, handles)

        (error,) = in_threads(ranks, body)[0]
        assert isinstance(error, AbortedError)
    assert ABSENT == 1
