"""The traces that the engine writes: valid at any time, bounded, complete; ranks as threads."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from support.limits import eventually, waits_in_engine
from support.requests import F64, address
from support.thread_ranks import ALLREDUCE, SUM, engines, in_threads, outcomes_of

from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.requests import Kind, Request
from hvdlite.timeline import files

ROOM = 1 << 20


def paths(tmp_path, size):
    return [tmp_path / ("t.json" if rank == 0 else f"t.rank{rank}.json") for rank in range(size)]


def traced(tmp_path, size, body, room=ROOM, config=None, hosts=None):
    """Runs body(rank) on each rank with its timeline on; the traces."""
    where = paths(tmp_path, size)

    def work(rank):
        rank.engine.start_timeline(str(where[rank.rank]), room, True)
        body(rank)
        rank.engine.stop_timeline()

    with engines(size, config, hosts) as ranks:
        in_threads(ranks, work)
    return [files.read(path) for path in files.files_of_job(where[0])]


def spans(trace, name):
    return [event for event in trace.events if event["name"] == name and event["ph"] == "X"]


@pytest.mark.parametrize("shared_memory", ["auto", "off"])
def test_every_operation_has_its_spans(tmp_path, shared_memory):
    def body(rank):
        for step in range(3):
            for index in range(4):
                rank.allreduce(f"tensor{index}", np.full(5000, rank.rank + step, np.float32))
        rank.allgather("rows", np.full((rank.rank + 1, 3), 1.0))
        rank.broadcast("weights", np.full(7, rank.rank, np.int64), 1)
        rank.barrier()

    traces = traced(
        tmp_path, 3, body, config={"shared_memory": shared_memory}, hosts=None if shared_memory == "auto" else [0, 1, 2]
    )
    for rank, trace in enumerate(traces):
        assert (trace.rank, trace.size, trace.dropped) == (rank, 3, 0)
        assert len(spans(trace, "ALLREDUCE")) == 12
        assert len(spans(trace, "ALLGATHER")) == len(spans(trace, "BROADCAST")) == len(spans(trace, "BARRIER")) == 1
        assert any(event["name"] == "CYCLE_START" for event in trace.events)
        names = {operation.name for operation in trace.operations.values()}
        assert names >= {"tensor0", "tensor3", "rows", "weights"}
        for operation in trace.operations.values():
            assert operation.submitted <= operation.data[0] <= operation.data[1]
        (rows,) = spans(trace, "ALLGATHER")
        assert (rows["args"]["dtype"], rows["args"]["shape"], rows["args"]["bytes"]) == (
            "float64",
            f"[{rank + 1}, 3]",
            24 * (rank + 1),
        )
        # A call whose operation ends before the call waits has no such span.
        assert len(trace.waits) >= 6


def test_tensors_of_one_fused_op_share_its_number(tmp_path):
    def body(rank):
        arrays = [np.full(20_000, rank.rank + index, np.float32) for index in range(3)]
        requests = [
            (
                ALLREDUCE,
                f"member{index}",
                10,
                array.shape,
                array.ctypes.data,
                array.ctypes.data,
                SUM,
                0,
                0,
                1.0,
                1.0,
                "g",
                3,
                index,
            )
            for index, array in enumerate(arrays)
        ]
        rank.engine.submit(requests).wait()
        rank.allreduce("alone", np.full(20_000, 1.0, np.float32))

    for trace in traced(tmp_path, 2, body):
        numbers = {operation.name: operation.fused_op for operation in trace.operations.values()}
        assert numbers["member0"] == numbers["member1"] == numbers["member2"] != numbers["alone"]


def test_a_failed_operation_is_marked(tmp_path):
    def body(rank):
        with pytest.raises(MismatchError):
            rank.allreduce("differs", np.zeros(3 + rank.rank, np.float32))
        rank.allreduce("agrees", np.zeros(3, np.float32))

    for trace in traced(tmp_path, 2, body):
        assert any(event.get("args", {}).get("failed") for event in trace.events)
        assert [operation.name for operation in trace.operations.values()] == ["agrees"]


def test_any_name_is_valid_json(tmp_path):
    name = 'quote " backslash \\ newline \n tab \t bell \x07 umlaut ä'

    def body(rank):
        rank.allreduce(name, np.ones(2, np.float32))

    (trace,) = traced(tmp_path, 1, body)
    assert [operation.name for operation in trace.operations.values()] == [name]


def test_a_file_can_be_read_while_it_grows(tmp_path):
    (where,) = paths(tmp_path, 1)
    seen = []
    with engines(1) as (rank,):
        rank.engine.start_timeline(str(where), 64 * ROOM, False)
        over = threading.Event()

        def look():
            while not over.is_set():
                seen.append(len(files.read(where).events))

        reader = threading.Thread(target=look)
        reader.start()

        def grown():
            rank.allreduce("tensor", np.ones(10, np.float32))
            return len(set(seen)) >= 4

        assert eventually(grown)
        over.set()
        reader.join()
        rank.allreduce("last", np.ones(10, np.float32))
        # Nobody stops it: what was done can be read after a moment.
        assert eventually(lambda: any(operation.name == "last" for operation in files.read(where).operations.values()))
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_the_files_stay_within_their_bound(tmp_path):
    room = 64 << 10

    def body(rank):
        for step in range(1500):
            rank.allreduce(f"tensor{step % 5}", np.ones(10, np.float32))

    (trace,) = traced(tmp_path, 1, body, room)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2, sizes
    assert sum(sizes) <= room * 1.05, sizes
    # The newest are there, in the newer file and the older half.
    numbers = sorted(trace.operations)
    assert numbers[-1] == 1500
    (older,) = tmp_path.glob("*.old")
    older.unlink()
    (newer,) = map(files.read, tmp_path.iterdir())  # without an operation, if it has just begun
    assert len(newer.operations) < len(numbers)
    assert set(newer.operations) == set(numbers[len(numbers) - len(newer.operations) :])


def test_many_names_leave_room_for_events(tmp_path):
    """Their names alone, of one step, are longer than a file."""
    room, names = 64 << 10, 500

    def body(rank):
        for step in range(3 * names):
            rank.allreduce(f"{'layer.' * 20}{step % names}", np.ones(10, np.float32))

    (trace,) = traced(tmp_path, 1, body, room)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2, sizes
    assert sum(sizes) <= room * 1.05, sizes
    # In a full trace there are more than 50. The newer file may have just begun.
    assert len(trace.operations) * room > 50 * sum(sizes)
    assert {operation.name for operation in trace.operations.values()} <= {f"{'layer.' * 20}{i}" for i in range(names)}


def test_the_last_file_stays_if_the_next_one_cannot_be_written(tmp_path):
    (where,) = paths(tmp_path, 1)
    (tmp_path / "t.json.new").symlink_to("/dev/full")  # it can be opened, but each write fails
    with engines(1) as (rank,):
        rank.engine.start_timeline(str(where), 64 << 10)
        for _ in range(1500):
            rank.allreduce("x", np.ones(3, np.float32))
        rank.engine.stop_timeline()
    assert not where.is_symlink()
    json.loads(where.read_text())
    assert files.read(where).operations


def test_a_second_start_begins_another_file(tmp_path):
    with engines(1) as (rank,):
        for name in ("one", "two"):
            rank.engine.start_timeline(str(tmp_path / f"{name}.json"), ROOM)
            rank.allreduce(name, np.ones(3, np.float32))
        rank.engine.stop_timeline()
        rank.engine.stop_timeline()  # harmless
        rank.allreduce("three", np.ones(3, np.float32))
    for name in ("one", "two"):
        assert [operation.name for operation in files.read(tmp_path / f"{name}.json").operations.values()] == [name]


@pytest.mark.parametrize(("recoveries", "first"), [(0, "t.json"), (1, "t.job2.json")])
def test_the_files_of_all_ranks_are_found_by_that_of_rank_0(tmp_path, recoveries, first):
    written = [files.file_of_rank(str(tmp_path / "t.json"), rank, recoveries) for rank in (0, 3)]
    for path in written:
        path.touch()
    assert files.files_of_job(tmp_path / first) == written


def test_a_second_start_at_the_same_path_begins_anew(tmp_path):
    (where,) = paths(tmp_path, 1)
    with engines(1) as (rank,):
        for name, times in (("earlier", 1500), ("later", 3)):
            rank.engine.start_timeline(str(where), 64 << 10)
            for _ in range(times):
                rank.allreduce(name, np.ones(3, np.float32))
        rank.engine.stop_timeline()
    json.loads(where.read_text())
    assert [operation.name for operation in files.read(where).operations.values()] == ["later"] * 3


def test_messages_leave_no_events_for_a_later_timeline(tmp_path):
    (where,) = paths(tmp_path, 1)
    sent, received = np.ones(1), np.zeros(1)
    pair = [
        Request(Kind.SEND, None, F64, (1,), address(sent), root=0),
        Request(Kind.RECV, None, F64, (1,), output_ptr=address(received), root=0),
    ]
    with engines(1) as (rank,):
        for _ in range(70):  # more events than a timeline keeps for its writer
            outcomes_of(rank.engine, rank.engine.submit(pair * 1000, wake=False))
        rank.engine.start_timeline(str(where), ROOM)
        rank.allreduce("first", np.ones(3, np.float32))
        rank.engine.stop_timeline()
    trace = files.read(where)
    assert trace.dropped == 0
    assert [operation.name for operation in trace.operations.values()] == ["first"]


def test_a_wait_that_outlasts_a_timeline_is_not_in_the_next_one(tmp_path):
    (where,) = paths(tmp_path, 1)
    arrays = [np.ones(1, np.float32) for _ in range(2)]
    with engines(2) as ranks:
        engine = ranks[0].engine
        engine.start_timeline(str(tmp_path / "earlier.json"), ROOM)
        waiting = threading.Thread(target=lambda: ranks[0].allreduce("x", arrays[0]))
        waiting.start()
        assert eventually(lambda: waits_in_engine(waiting.native_id))
        engine.stop_timeline()
        ranks[1].allreduce("x", arrays[1])
        waiting.join()
        engine.start_timeline(str(where), ROOM)
        engine.stop_timeline()
    assert "WAIT" not in [event["name"] for event in json.loads(where.read_text())]


def test_a_file_that_cannot_be_made_is_named_and_nothing_changes(tmp_path):
    with engines(1) as (rank,):
        rank.engine.start_timeline(str(tmp_path / "t.json"), ROOM)
        with pytest.raises(InvalidArgumentError, match=r"cannot be written to '.*/nowhere/t.json': No such file or directory"):
            rank.engine.start_timeline(str(tmp_path / "nowhere" / "t.json"), ROOM)
        rank.allreduce("still traced", np.ones(3, np.float32))
    assert [operation.name for operation in files.read(tmp_path / "t.json").operations.values()] == ["still traced"]


def test_a_file_without_room_is_named(tmp_path):
    with engines(1) as (rank,), pytest.raises(InvalidArgumentError, match="cannot be written to '/dev/full': No space left"):
        rank.engine.start_timeline("/dev/full", ROOM)


def test_a_write_that_was_cut_off_costs_its_last_events_only(tmp_path):
    def body(rank):
        for step in range(20):
            rank.allreduce(f"tensor{step}", np.ones(10, np.float32))

    (whole,) = traced(tmp_path, 1, body)
    (where,) = paths(tmp_path, 1)
    text = where.read_text()
    json.loads(text)
    where.write_text(text[: text.index("tensor15") + 3])
    assert 5 < len(files.read(where).operations) < len(whole.operations)


def test_a_killed_process_leaves_a_valid_file(tmp_path):
    program = textwrap.dedent(
        f"""
        import sys, numpy as np
        sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
        from support.thread_ranks import engines
        with engines(1) as (rank,):
            rank.engine.start_timeline({str(tmp_path / "t.json")!r}, 1 << 20)
            step = 0
            while True:
                rank.allreduce("tensor", np.ones(3, np.float32))
                step += 1
                if step == 2000:
                    print("ready", flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        assert eventually(lambda: (tmp_path / "t.json").stat().st_size > 100_000)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(files.read(tmp_path / "t.json").operations) > 100


def test_a_thread_that_cannot_be_started_leaves_no_trace_behind(tmp_path):
    """There is no room for its stack. Later the same engine traces again, and ends well."""
    path = str(tmp_path / "t.json")
    program = textwrap.dedent(
        f"""
        import ctypes, sys, numpy as np
        sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
        from support.thread_ranks import engines

        def stacks_of(bytes):
            libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
            libc.pthread_attr_init(attributes)
            assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(bytes)) == 0
            assert libc.pthread_setattr_default_np(attributes) == 0

        with engines(1) as (rank,):
            stacks_of(1 << 50)
            try:
                rank.engine.start_timeline({path!r}, 1 << 20)
            except Exception:
                print("refused")
            stacks_of(1 << 23)
            rank.engine.stop_timeline()
            rank.engine.start_timeline({path!r}, 1 << 20)
            rank.allreduce("later", np.ones(3, np.float32))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "refused\n"
    assert [operation.name for operation in files.read(tmp_path / "t.json").operations.values()] == ["later"]
