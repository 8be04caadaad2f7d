"""Both commands of the benchmark, for some seconds: every peer that is installed shows up, with right sums and times."""

import ctypes
import json
import os
import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.world import WORLD

from hvdlite.bench import cuda_collectives, messages, oneccl, submission, tables, team, training
from hvdlite.bench.__main__ import main
from hvdlite.bench.peers import CUDA_PEERS, PEERS
from hvdlite.bench.training import WAYS
from hvdlite.bench.world import World

RANKS = (2,)
RUN = {"record": "run", "hosts": 1, "bind": "core", "cpus": 2, "cpu": "a CPU", "knobs": {}, "versions": {}}


def records_of(*words):
    """What a command wrote, on all ranks."""
    folder = tempfile.TemporaryDirectory() if WORLD.rank == 0 else None
    path = WORLD.bcast(f"{folder.name}/out.jsonl" if folder else None)
    assert main([*words, "--output", path]) == 0
    WORLD.Barrier()
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    WORLD.Barrier()
    if folder:
        folder.cleanup()
    return records


def measured(records, **wanted):
    found = [record for record in records if record["record"] == "measurement"]
    return {record["peer"]: record for record in found if wanted.items() <= record.items()}


def present(records):
    return {record["peer"] for record in records if record["record"] == "peer" and record["absent"] is None}


def check_times(records):
    for record in records:
        if record["record"] == "measurement" and record["case"] != "idle":
            assert 0 < record["min"] <= record["median"] <= record["max"], record
            assert record["samples"] >= len(record["rounds"]) >= 1, record


def test_collectives():
    words = ["--seconds", "0.1", "--cases", "idle,allreduce,small", "--sizes", "4,64K", "--tensors", "50"]
    records = records_of("collectives", *words)
    assert records[0]["record"] == "run"
    assert records[0]["arguments"] == " ".join(["collectives", *words])
    assert records[-1]["record"] == "others"
    assert 0 <= records[-1]["processes"] < 1
    assert 0 <= records[-1]["guests"] < 1
    everybody = {name for name, kind in PEERS.items() if kind.by_default and kind.missing() is None}
    assert {"hvdlite", "hvdlite-out", "mpi4py"} <= everybody <= present(records)
    check_times(records)
    ceilings = {"memcpy", "rewrite"}
    for nbytes in (4, 64 << 10):
        for cache in ("warm", "cold"):
            found = measured(records, case="allreduce", bytes=nbytes, cache=cache)
            assert found.keys() == everybody - {"hvdlite-grouped", "hvdlite-prepared", "mpi4py-blocking"} | ceilings
            assert all(record["busbw"] == pytest.approx(nbytes / record["median"], rel=1e-4) for record in found.values())
            ours = found["hvdlite"]
            assert ours["percent_of_memcpy"] == pytest.approx(100 * found["memcpy"]["median"] / ours["median"], rel=1e-4)
    for case in ("small", "small_submit"):
        assert measured(records, case=case).keys() == everybody - {"hvdlite-out"}
    check_submitting(records, "small", 1)


def check_submitting(records, case, parts):
    """Submitting is a part of the whole."""
    for peer, record in measured(records, case=f"{case}_submit").items():
        assert record["min"] <= measured(records, case=case)[peer]["max"] / parts


class HostInPlaceOfGpu(cuda_collectives.RankGpu):
    """Tensors in host memory: all but the GPU's own part of the measurement."""

    name, shared = "no GPU at all", False

    def __init__(self):
        torch = pytest.importorskip("torch")
        self.device = torch.device("cpu")
        self.waits = 0

    def wait(self):
        self.waits += 1


def test_cuda_tensors_without_a_gpu():
    """The measurement of CUDA tensors, with tensors in host memory; NCCL, which has no GPU here, is absent with its reason."""
    gpu, world, records = HostInPlaceOfGpu(), World(), []
    options = Namespace(cases=cuda_collectives.CASES, peers=list(CUDA_PEERS), sizes=[4, 64 << 10], tensors=20, seconds=0.2)
    try:
        cuda_collectives.run(world, options, records.extend, gpu)
    finally:
        world.close()
    assert records[0] == {"record": "gpu", "name": "no GPU at all", "shared": False}
    assert present(records) == {"hvdlite", "hvdlite-out"}
    assert next(record["absent"] for record in records if record["record"] == "peer" and record["peer"] == "nccl")
    check_times(records)
    for nbytes in (4, 64 << 10):
        for manner in ("waited", "queued"):
            group = measured(records, case="allreduce", bytes=nbytes, cache=manner)
            assert set(group) == {"hvdlite", "hvdlite-out", "memcpy"}
            assert group["hvdlite"]["percent_of_memcpy"] > 0
            assert len({len(record["rounds"]) for record in group.values()}) == 1
    assert set(measured(records, case="gradients", tensors=161)) == set(measured(records, case="small_submit")) == {"hvdlite"}
    waited = measured(records, case="allreduce", cache="waited", bytes=4).values()
    assert gpu.waits >= sum(record["samples"] * record["calls"] for record in waited)
    text = tables.tables([{**RUN, "ranks": 2}, *records])
    assert "in the memory of GPUs (no GPU at all)" in text
    assert "64 KiB queued" in text


def test_gradients():
    records = records_of(
        "collectives", "--seconds", "0.05", "--cases", "gradients", "--peers", "hvdlite,hvdlite-grouped,hvdlite-prepared,mpi4py"
    )
    check_times(records)
    whole = measured(records, case="gradients", tensors=161, bytes=4 * 25_557_032)
    assert whole.keys() == {"hvdlite", "hvdlite-grouped", "hvdlite-prepared", "mpi4py", "memcpy", "rewrite"}
    assert measured(records, case="gradients_submit").keys() == whole.keys() - {"memcpy", "rewrite"}
    check_submitting(records, "gradients", 161)


def test_submission():
    pytest.importorskip("torch")
    records = records_of("submission", "--seconds", "0.1", "--tensors", "30")
    assert present(records) == {*submission.PEERS, "hooks"}
    check_times(records)
    assert measured(records, case="submission", tensors=30).keys() == set(submission.PEERS)
    check_submitting(records, "submission", 1)
    backwards = measured(records, case="backward", tensors=30)
    assert backwards.keys() == set(submission.BACKWARDS)
    assert len({len(record["rounds"]) for record in backwards.values()}) == 1


def test_messages():
    records = records_of("messages", "--seconds", "0.2", "--sizes", "8,64K")
    check_times(records)
    for nbytes in (8, 64 << 10):
        group = measured(records, case="message", bytes=nbytes)
        assert set(group) == present(records) | {"memcpy"}
        assert {"hvdlite", "hvdlite-numpy", "mpi4py"} <= set(group)
        assert group["hvdlite"]["percent_of_memcpy"] > 0
    assert "64 KiB" in tables.tables(records).split("One message, one way")[1]


def test_messages_of_something_else_are_noticed(monkeypatch):
    nothing = (lambda: None, lambda: None)
    monkeypatch.setattr(PEERS["hvdlite-numpy"], "message", lambda *_: nothing)
    with pytest.raises(team.WrongSum, match=r"hvdlite-numpy: rank 1: the received tensor differs from the sent one"):
        run_messages()


def run_messages():
    world = World()
    try:
        messages.run(world, Namespace(sizes=[8], seconds=0.1), lambda _: None)
    finally:
        world.close()


def test_a_chosen_peer_through_the_door_for_numpy():
    records = records_of("collectives", "--seconds", "0.1", "--sizes", "1K", "--cases", "allreduce", "--peers", "hvdlite-numpy")
    assert present(records) == {"hvdlite-numpy"}
    assert measured(records, cache="warm").keys() == {"hvdlite-numpy", "memcpy", "rewrite"}


@pytest.fixture
def short_samples(monkeypatch):
    monkeypatch.setattr(training, "_EFFORT", replace(training._EFFORT, sample_seconds=0.01))


@pytest.mark.slow
@pytest.mark.usefixtures("short_samples")
def test_training():
    pytest.importorskip("torch")
    records = records_of("training", "--seconds", "0.1", "--models", "linear200", "--peers", ",".join(WAYS))
    ways = {name for name, way in WAYS.items() if way.missing() is None}
    assert {"none", "hvdlite", "hvdlite-view", "ddp"} <= ways <= present(records)
    check_times(records)
    for zero_grad in ("none", "zero"):
        found = measured(records, case="training", model="linear200", zero_grad=zero_grad)
        assert found.keys() == ways
        for way, record in found.items():
            assert record["gradient_bytes"] == 200 * (32 * 32 + 32) * 4
            assert ("overhead_percent" in record) == (way != "none")


@pytest.mark.slow
@pytest.mark.usefixtures("short_samples")
def test_what_is_only_measured_if_asked_for():
    pytest.importorskip("torch")
    records = records_of("training", "--seconds", "0.1", "--models", "linear200", "--zero-grad", "none")
    assert measured(records, case="training").keys() == {
        name for name, way in WAYS.items() if way.missing() is None and name != "hvdlite-view"
    }


class Forgetful(PEERS["mpi4py"]):
    """Leaves the last rank's array as it was."""

    name = "forgetful"

    def blocking(self, array):
        reduce = super().blocking(array)

        def call():
            mine = array.copy()
            reduce()
            if WORLD.rank == WORLD.size - 1:
                array[:] = mine

        return call


class Broken(PEERS["mpi4py"]):
    """Starts on no rank but the first."""

    name = "broken"

    def __init__(self, world):
        if world.rank > 0:
            raise OSError("no such device")


def test_a_wrong_sum_ends_the_run_on_all_ranks(monkeypatch):
    monkeypatch.setattr(team.HostMemory, "peers", {"mpi4py": PEERS["mpi4py"], "forgetful": Forgetful})
    world = World()
    with pytest.raises(team.WrongSum, match=r"forgetful: rank 1: the sum of 16 KiB is wrong"):
        team.Team(world, None)
    world.close()


def test_a_peer_that_does_not_start_is_absent_on_all_ranks(monkeypatch):
    monkeypatch.setattr(team.HostMemory, "peers", {"broken": Broken, "mpi4py": PEERS["mpi4py"]})
    world = World()
    found = team.Team(world, None)
    assert [peer.name for peer in found.peers] == ["mpi4py"]
    assert found.records[0]["absent"] == "rank 1: it cannot be started: no such device"
    found.close()
    world.close()


def test_horovod_takes_part_where_it_is_installed(monkeypatch):
    pytest.importorskip("torch")
    import hvdlite.torch

    monkeypatch.setitem(sys.modules, "horovod.torch", hvdlite.torch)  # which has the same names
    monkeypatch.setattr(team.HostMemory, "peers", {"horovod": PEERS["horovod"]})
    world = World()
    found = team.Team(world, ["horovod"])  # whose sums are checked there
    assert [(record["peer"], record["absent"]) for record in found.records] == [("horovod", None)]
    found.close()
    assert not hvdlite.is_initialized()
    world.close()


def test_the_ranks_start_together():
    """When all have come, they agree on a time to start, and wait for it. The time is after the latest earlier start."""
    world = World()
    started, agreed = np.array(world.everyone([(world.gate.wait(), world.gate._last) for _ in range(200)])).transpose(2, 0, 1)
    assert (agreed == agreed[0]).all()
    assert (started >= agreed).all()
    assert (agreed[0, 1:] > started[:, :-1].max(axis=0)).all()
    world.close()


class FakeOneCcl:
    """libccl.so.2 as the benchmark calls it, on MPI."""

    def __init__(self):
        self.destroyed = 0
        # Functions, not methods: their users set argtypes.
        self.onecclGetUniqueId = lambda unique: setattr(unique._obj, "data", b"id of rank %d" % WORLD.rank) or 0
        self.onecclCommInitRank = lambda made, size, unique, rank: self.join(made._obj, size, unique.data, rank)
        self.onecclAllReduce = self.reduce_in_place()
        self.onecclGetVersion = lambda version: setattr(version._obj, "value", 2022 * 10000 + 2 * 100) or 0
        self.onecclCommDestroy = lambda handle: setattr(self, "destroyed", handle.value) or 0
        self.onecclGetErrorString = lambda code: b"error %d" % code

    def join(self, made, size, unique, rank):
        assert (size, unique, rank) == (WORLD.size, b"id of rank 0", WORLD.rank)
        made.value = 4711
        return 0

    @staticmethod
    def reduce_in_place():
        def reduce(source, target, count, dtype, op, handle, stream):
            assert source == target
            assert (dtype, op, handle.value, stream) == (7, 0, 4711, None)
            array = np.ctypeslib.as_array(ctypes.cast(source, ctypes.POINTER(ctypes.c_float)), (count,))
            array[:] = WORLD.allreduce(array.copy())
            return 0

        return reduce


def install_oneccl(monkeypatch, folder, library):
    """Puts empty files in oneCCL's places, and the library behind them."""
    place = folder / "ccl" / "cpu" / "lib"
    place.mkdir(parents=True)
    for path in (folder / "libccl.so.2", place / "libccl.so.1"):
        path.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setattr(oneccl.ctypes, "CDLL", lambda path: library if path == str(folder / "libccl.so.2") else None)
    for name in oneccl.settings(0, 1, True):  # so that what the peer sets goes away
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_oneccl_takes_part_where_it_is_installed(monkeypatch, tmp_path):
    library = FakeOneCcl()
    install_oneccl(monkeypatch, tmp_path, library)
    monkeypatch.setattr(team.HostMemory, "peers", {"oneccl": PEERS["oneccl"]})
    monkeypatch.setenv("CCL_WORKER_OFFLOAD", "1")
    world = World()
    found = team.Team(world, None)  # whose sums are checked there
    assert [(record["peer"], record["absent"], record["version"]) for record in found.records] == [
        ("oneccl", None, "oneCCL 2022.2")
    ]
    assert (os.environ["CCL_LOCAL_RANK"], os.environ["CCL_LOCAL_SIZE"]) == (str(WORLD.rank), str(WORLD.size))
    assert os.environ["CCL_WORKER_OFFLOAD"] == "1"  # the user's
    found.close()
    assert library.destroyed == 4711
    world.close()


def test_the_log_of_oneccl_is_not_among_the_tables(capfd):
    with oneccl._log_on_stderr():
        os.write(1, b"value of CCL_LOG_LEVEL changed to be error\nsomething else\n")
        ctypes.CDLL(None).puts(b"buffered")
    print("a table")
    assert capfd.readouterr() == ("a table\n", "something else\nbuffered\n")


def test_oneccl_that_does_not_start_is_absent_on_all_ranks(monkeypatch, tmp_path):
    library = FakeOneCcl()
    install_oneccl(monkeypatch, tmp_path, library)
    monkeypatch.setattr(team.HostMemory, "peers", {"oneccl": PEERS["oneccl"]})
    library.onecclGetUniqueId = lambda unique: 3  # on rank 0: the others wait for its id
    world = World()
    found = team.Team(world, None)
    why = "it cannot be started: onecclGetUniqueId: error 3 (CCL_LOG_LEVEL=info shows details)"
    assert found.records[0]["absent"] == why
    found.close()
    world.close()


def test_what_oneccl_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(oneccl.sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.delenv("CCL_ROOT", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:")
    assert "libccl.so.2 of oneCCL is in no folder of LD_LIBRARY_PATH" in PEERS["oneccl"].missing()
    (tmp_path / "libccl.so.2").touch()
    assert f"oneCCL in {tmp_path} has no ccl/cpu/lib/libccl.so.1" in PEERS["oneccl"].missing()
