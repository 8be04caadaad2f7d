"""Timelines of a real job: the knob, a file for each rank, the report over them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.limits import eventually, when_waiting
from support.world import WORLD

from hvdlite import sampling
from hvdlite.errors import InvalidArgumentError
from hvdlite.runtime import RUNTIME
from hvdlite.timeline import __main__ as program
from hvdlite.timeline import files
from hvdlite.timeline.analysis import analyse

RANKS = (2, 3)
MORE_RANKS = (1,)
# A rank that waits long for a slow one would tell rank 0 so in a message, and tests here count messages.
ENVIRONMENT = {"HVDLITE_DEADLOCK_TIMEOUT": "0"}


@pytest.fixture
def folder(tmp_path):
    """The same on all ranks."""
    return Path(WORLD.bcast(str(tmp_path)))


def test_a_report_of_all_ranks(hvd, folder):
    trace = folder / "t.json"
    hvd.start_timeline(str(trace), mark_cycles=True)
    for step in range(5):
        for index in range(6):
            hvd.allreduce(np.full(3000, WORLD.rank + step, np.float32), name=f"report{index}")
    hvd.stop_timeline()
    hvd.barrier()
    mine = trace if WORLD.rank == 0 else trace.with_name(f"t.rank{WORLD.rank}.json")
    read = files.read(mine)
    assert (read.rank, read.size) == (WORLD.rank, WORLD.size)
    assert sum(operation.kind == "ALLREDUCE" for operation in read.operations.values()) == 30
    # A long wait is written in pieces, between which signals are looked for. An operation that ends before the wait has none.
    assert len(read.waits) >= 15
    if WORLD.rank == 0:
        page = folder / "page.html"
        assert program.main(["report", str(trace), "-o", str(page)]) == 0
        ranks = "1 rank on" if WORLD.size == 1 else f"{WORLD.size} ranks on"
        assert f"{ranks} 1 host, 4 steps" in page.read_text()
        assert program.main(["merge", str(trace), "-o", str(folder / "m.json")]) == 0
        assert {event["pid"] for event in json.loads((folder / "m.json").read_text())} == set(range(WORLD.size))
    hvd.barrier()


def test_a_program_that_changes_its_folder_keeps_its_files_together(hvd, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(RUNTIME, "config", RUNTIME.config.replace(timeline_max_bytes=20_000))
    monkeypatch.chdir(folder)
    hvd.start_timeline("t.json")
    elsewhere = tmp_path / f"elsewhere{WORLD.rank}"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for _ in range(100):
        hvd.allreduce(np.ones(3), name="moved")
    hvd.stop_timeline()
    hvd.barrier()
    name = f"t.rank{WORLD.rank}.json" if WORLD.rank else "t.json"
    assert {f"{name}.old", name} <= {path.name for path in folder.iterdir()}
    assert not list(elsewhere.iterdir())


def read_slowly(sampler):
    """Until all others wait, and the stack has been sampled here."""
    for _ in range(WORLD.size - 1):
        WORLD.recv()
    before = sampler.samples
    assert eventually(lambda: sampler.samples > before + 1)


def test_the_place_of_a_late_rank_is_sampled(hvd, folder):
    """The last rank is late in one step."""
    last = WORLD.size - 1
    trace = folder / "t.json"
    hvd.start_timeline(str(trace))
    mine = trace if WORLD.rank == 0 else trace.with_name(f"t.rank{WORLD.rank}.json")
    for step in range(8):
        if step == 4 and WORLD.rank == last:
            read_slowly(sampling._running[0])
        elif step == 4:
            when_waiting(lambda: WORLD.send(None, last))
        hvd.allreduce(np.full(3000, WORLD.rank + step, np.float32), name="gradient")
    hvd.stop_timeline()
    hvd.barrier()
    stacks = files.read(mine).stacks
    assert all(begin < end for (begin, end), _ in stacks)
    here = [calls for _, calls in stacks if "parallel/test_timeline.py" in calls and "read_slowly" in calls]
    assert bool(here) == (WORLD.rank == last)
    if WORLD.rank == 0 and WORLD.size > 1:
        found = analyse([files.read(path) for path in files.files_of_job(trace)])
        assert found.late[last].spans  # what the report says of them is shown in unit/test_timeline_report.py
    hvd.barrier()


def test_messages_between_two_ranks(hvd, folder):
    trace = folder / "t.json"
    hvd.start_timeline(str(trace))
    right, left = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    for elements in (3, 3000):
        got = hvd.irecv(np.empty(elements), left, name="in")
        hvd.send(np.ones(elements), right, name="out")
        got.synchronize()
    hvd.stop_timeline()
    hvd.barrier()
    read = files.read(trace if WORLD.rank == 0 else trace.with_name(f"t.rank{WORLD.rank}.json"))
    found = sorted((each.kind, each.name, each.num_bytes) for each in read.operations.values())
    received = [("RECV", "in", 24), ("RECV", "in", 24000)]
    # A send has no span of its data if the data goes with what tells of it. To oneself, all data does.
    assert found == received + ([("SEND", "out", 24000)] if WORLD.size > 1 else [])
    assert not files.occurrences(read)
    hvd.barrier()


def test_a_folder_that_is_not_there(hvd, tmp_path):
    with pytest.raises(ValueError, match=r"cannot be written to '.*/nowhere/t"):
        hvd.start_timeline(str(tmp_path / "nowhere" / "t.json"))
    hvd.stop_timeline()  # harmless


def test_the_trace_adds_no_messages(hvd, folder):
    def sent():
        before = hvd.basics.RUNTIME.engine.counters()["control_messages_sent"]
        for _ in range(20):
            hvd.allreduce(np.full(3000, WORLD.rank, np.float32), name="counted")
        return hvd.basics.RUNTIME.engine.counters()["control_messages_sent"] - before

    sent()
    without = sent()
    hvd.start_timeline(str(folder / "t.json"))
    assert sent() == without
    hvd.stop_timeline()


def rows_of(trace):
    """Of each row of a trace the names of its spans."""
    events = json.loads(trace.read_text())
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    return {name: [span["name"] for span in spans if span["tid"] == row] for row, name in named.items()}


def test_rows_and_spans_have_horovods_names(hvd, folder):
    hvd.start_timeline(str(folder / "names.json"))
    for elements in (3, 300_000):
        hvd.allreduce(np.full(elements, WORLD.rank + 1.0), name=f"of {elements}")
    hvd.allgather(np.full(2, WORLD.rank), name="rows")
    hvd.stop_timeline()
    rows = rows_of(folder / (f"names.rank{WORLD.rank}.json" if WORLD.rank else "names.json"))
    wanted = {"allreduce.of 3": "ALLREDUCE", "allreduce.of 300000": "ALLREDUCE", "allgather.rows": "ALLGATHER"}
    for name, operation in wanted.items():
        assert {f"NEGOTIATE_{operation}", operation} <= set(rows[name])


@pytest.mark.parametrize("variable", ["HVDLITE_TIMELINE", "HOROVOD_TIMELINE"])
def test_each_rank_may_be_given_a_file_of_its_own(folder, ended, monkeypatch, variable):
    """Ranks with the same path put their rank into it, others take theirs as it is, and a rank without one traces nothing."""
    own = folder / f"own{WORLD.rank}.json"
    shared = folder / "shared.json"
    for given, written in ((own, own), (shared, shared.with_name(f"shared.rank{WORLD.rank}.json") if WORLD.rank else shared)):
        monkeypatch.setenv(variable, str(given))
        ended.init()
        ended.allreduce(np.full(4, WORLD.rank + 1.0), name="x")
        ended.shutdown()
        assert "allreduce.x" in rows_of(written)
    lonely = folder / "lonely.json"
    monkeypatch.setenv(variable, str(lonely) if WORLD.rank == WORLD.size - 1 else "")
    ended.init()
    ended.allreduce(np.full(4, WORLD.rank + 2.0), name="y")
    ended.shutdown()
    WORLD.Barrier()
    assert "allreduce.y" in rows_of(lonely)
    assert not lonely.with_name(f"lonely.rank{WORLD.size - 1}.json").exists()


@pytest.mark.parametrize("of_others", ["", "t.json"])
def test_a_file_that_one_rank_cannot_write_ends_init_on_all(folder, ended, monkeypatch, of_others):
    nowhere = folder / "nowhere" / "t.json"
    last = WORLD.size - 1
    theirs = str(folder / of_others) if of_others else ""
    monkeypatch.setenv("HVDLITE_TIMELINE", str(nowhere) if last == WORLD.rank else theirs)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=f"on rank {last}: the timeline cannot be written to '{nowhere}'"):
            ended.init()
        assert not ended.is_initialized()
    monkeypatch.delenv("HVDLITE_TIMELINE")
    ended.init()
    assert ended.allreduce(np.ones(2), name="z").tolist() == [1.0, 1.0]
