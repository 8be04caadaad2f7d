"""Beginning, end, ranks, and what happens to calls outside."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from support.limits import when_waiting
from support.world import WORLD, on_all_ranks

from hvdlite.runtime import RUNTIME

FRESH = True
RANK, SIZE = WORLD.rank, WORLD.size


def works(hvd):
    assert hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum).tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 3


def test_places(hvd):
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
    host = WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    assert (hvd.local_rank(), hvd.local_size()) == (host.rank, host.size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1) or host.size < SIZE
    assert hvd.is_homogeneous() is True or host.size < SIZE
    host.Free()


def test_what_is_built(hvd):
    assert hvd.mpi_threads_supported() is (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert hvd.mpi_enabled()
    assert hvd.mpi_built()
    absent = (hvd.gloo_built, hvd.gloo_enabled, hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built)
    assert not any(built() for built in (*absent, hvd.rocm_built))


def test_init_again_does_nothing(hvd):
    before = WORLD.allgather(hvd.rank())
    hvd.init()
    assert WORLD.allgather(hvd.rank()) == before
    works(hvd)


OUTSIDE = {
    "rank": lambda hvd: hvd.rank(),
    "size": lambda hvd: hvd.size(),
    "local_size": lambda hvd: hvd.local_size(),
    "mpi_threads_supported": lambda hvd: hvd.mpi_threads_supported(),
    "allreduce": lambda hvd: hvd.allreduce(np.ones(1)),
    "broadcast_object": lambda hvd: hvd.broadcast_object(1),
    "join": lambda hvd: hvd.join(),
    "barrier": lambda hvd: hvd.barrier(),
    "add_process_set": lambda hvd: hvd.add_process_set([0]),
}


@pytest.mark.parametrize("call", OUTSIDE)
def test_calls_after_shutdown_say_what_to_do(ended, call):
    assert not ended.is_initialized()
    with pytest.raises(
        ValueError, match=r"was shut down .* call hvdlite\.init\(\) first.*Horovod has not been initialized; use hvd\.init"
    ):
        OUTSIDE[call](ended)


def test_shutdown_and_init_many_times(ended):
    for _ in range(5):
        ended.init()
        works(ended)
        assert ended.is_initialized()
        ended.shutdown()
        ended.shutdown()


def test_init_with_a_communicator_in_another_order(ended):
    comm = WORLD.Split(0, key=SIZE - RANK)
    ended.init(comm=comm)
    assert ended.rank() == SIZE - 1 - RANK
    assert ended.global_process_set.mpi_comm is comm
    works(ended)
    ended.shutdown()
    comm.Free()


def test_init_with_the_halves_of_a_split(ended):
    half = WORLD.Split(RANK % 2, key=RANK)
    ended.init(comm=half)
    assert (ended.rank(), ended.size()) == (half.rank, half.size)
    works(ended)
    ended.shutdown()
    half.Free()


def test_init_with_a_list_of_ranks(ended):
    listed = list(reversed(range(max(1, SIZE - 1))))
    if RANK in listed:
        ended.init(comm=listed)
        assert ended.rank() == listed.index(RANK)
        assert ended.size() == len(listed)
        works(ended)
    else:
        with pytest.raises(ValueError, match=f"rank {RANK} of MPI_COMM_WORLD is not in the list"):
            ended.init(comm=listed)
        assert not ended.is_initialized()
    WORLD.Barrier()


def test_a_bad_knob_on_one_rank_stops_all_with_one_text(ended, monkeypatch):
    if RANK == SIZE - 1:
        monkeypatch.setenv("HVDLITE_FUSION_THRESHOLD", "lots")
    with pytest.raises(ValueError, match=f"on rank {SIZE - 1}: HVDLITE_FUSION_THRESHOLD='lots' cannot be used") as caught:
        ended.init()
    on_all_ranks(str(caught.value))
    monkeypatch.undo()
    ended.init()
    works(ended)


def test_knobs_that_differ_stop_all_with_one_text(ended, monkeypatch):
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    if RANK == 0:
        monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "7")
    with pytest.raises(ValueError, match=r"cache_capacity .* is 7 on rank 0, but 1024 on rank") as caught:
        ended.init()
    on_all_ranks(str(caught.value))


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [("TIMELINE", "/nowhere/x.json", "the timeline cannot be written to '/nowhere"), ("METRICS_FILE", ".", "names no file")],
)
def test_a_file_that_cannot_be_made_leaves_no_engine(ended, monkeypatch, variable, value, error):
    monkeypatch.setenv(f"HVDLITE_{variable}", value)
    with pytest.raises(ValueError, match=error):
        ended.init()
    assert not ended.is_initialized()
    monkeypatch.delenv(f"HVDLITE_{variable}")
    ended.init()
    assert ended.global_process_set.process_set_id == 0
    works(ended)


def test_horovods_variables_are_read(ended, monkeypatch, caplog):
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "0")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "info")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth0")
    ended.init()
    for _ in range(3):
        works(ended)
    assert ended.runtime.RUNTIME.engine.counters()["cache_hits"] == 0
    assert ("HOROVOD_GLOO_IFACE (" in caplog.text) == (RANK == 0)


def test_handles_of_an_earlier_life_are_refused(ended):
    ended.init()
    handle = ended.allreduce_async(np.ones(1), op=ended.Sum)
    ended.synchronize(ended.allreduce_async(np.ones(1), op=ended.Sum))
    ended.barrier()
    ended.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        handle.synchronize()
    ended.init()
    with pytest.raises(ValueError, match="from before"):
        handle.synchronize()


def test_barrier_holds_until_the_last_rank(hvd, tmp_path):
    folder = Path(WORLD.bcast(str(tmp_path)))
    for last in range(SIZE):
        if last != RANK:
            when_waiting(lambda last=last: WORLD.send(None, last))
        else:
            for _ in range(SIZE - 1):
                WORLD.recv()
            (folder / f"{last} has come").touch()
        hvd.barrier()
        assert (folder / f"{last} has come").exists()


def test_a_forked_child_may_ask_for_its_place_and_nothing_else(hvd):
    hvd.barrier()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = [str(hvd.rank()), str(hvd.size()), str(hvd.is_initialized())]
        for call in (lambda: hvd.allreduce(np.ones(1)), hvd.init, hvd.barrier):
            try:
                call()
                said.append("nothing")
            except ValueError as error:
                said.append(str(error))
        hvd.shutdown()
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().split("\n")
    assert os.waitpid(child, 0)[1] == 0
    assert lines[:3] == [str(RANK), str(SIZE), "True"]
    assert len(lines) == 6
    for line in lines[3:]:
        assert f"process {child} was forked from process {os.getpid()}" in line
    works(hvd)


def test_a_subprocess_is_not_disturbed(hvd):
    result = subprocess.run([sys.executable, "-c", "import hvdlite; print(hvdlite.is_initialized())"], capture_output=True)
    assert result.stdout.strip() == b"False", result.stderr
    works(hvd)


def test_an_interrupt_during_shutdown_leaves_nothing_half_ended(ended):
    def interrupt():
        raise KeyboardInterrupt

    ended.init()
    subset = ended.add_process_set([0])
    for functions in (RUNTIME.at_stop, RUNTIME.before_leaving):
        functions.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ended.shutdown()
    RUNTIME.before_leaving.remove(interrupt)
    assert not ended.is_initialized()
    assert not RUNTIME.at_stop
    assert subset.process_set_id is None
    ended.init()
    works(ended)
