"""The fake NCCL: results, and that it is as unforgiving as NCCL about order, arguments and lost peers."""

import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.fake_gpu import LeakCheck, environment, fake_gpus, missing
from support.fake_nccl import AVG, IN_PROGRESS, INVALID_USAGE, MAX, MIN, PROD, SUM, Comm, NcclError, unique_id
from support.limits import eventually

import hvdlite

__all__ = ["fake_gpus"]

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def on_ranks(gpus, size, body, devices=None):
    """body(comm, rank) in a thread for each rank; their results."""
    gpus.set(gpus=size)
    identity = unique_id(gpus)
    results, failures = [None] * size, []

    def run(rank):
        try:
            comm = Comm(gpus, identity, size, rank, None if devices is None else devices[rank])
            results[rank] = body(comm, rank)
        except Exception:
            failures.append(f"rank {rank}: {traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    assert not failures, "\n".join(failures)
    return results


def values_of(rank, dtype, count=3000):
    return (np.random.default_rng(rank).integers(1, 4, count) * (1 if rank % 2 else 2)).astype(dtype)


NUMPY_OPS = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("op", NUMPY_OPS)
def test_reductions(fake_gpus, dtype, op):
    expected = NUMPY_OPS[op].reduce([values_of(rank, dtype) for rank in range(3)])

    def body(comm, rank):
        comm.settle()
        array = fake_gpus.array(values_of(rank, dtype), comm.device, comm.stream)
        comm.call("ncclAllReduce", array, array, array.size, dtype, op)
        result = array.numpy()
        comm.finish()
        return result

    for result in on_ranks(fake_gpus, 3, body):
        assert result.tobytes() == expected.astype(dtype).tobytes()


def test_every_partial_sum_of_16_bits_is_rounded(fake_gpus):
    inputs = [np.array([value], ml_dtypes.bfloat16) for value in (256, 1, 1, 1)]

    def body(comm, rank):
        comm.settle()
        array = fake_gpus.array(inputs[rank], comm.device, comm.stream)
        comm.call("ncclAllReduce", array, array, 1, "bfloat16", SUM)
        result = float(array.numpy()[0])
        comm.finish()
        return result

    assert on_ranks(fake_gpus, 4, body) == [256.0] * 4  # 259 rounds to 260


def test_averages(fake_gpus):
    def body(comm, rank):
        comm.settle()
        floats = fake_gpus.array(np.array([rank, 4.0 * rank], np.float32), comm.device, comm.stream)
        integers = fake_gpus.array(np.array([-rank, 5 * rank], np.int32), comm.device, comm.stream)
        comm.call("ncclAllReduce", floats, floats, 2, "float32", AVG)
        comm.call("ncclAllReduce", integers, integers, 2, "int32", AVG)
        result = floats.numpy().tolist() + integers.numpy().tolist()
        comm.finish()
        return result

    assert on_ranks(fake_gpus, 2, body) == [[0.5, 2.0, 0, 2]] * 2


def data_movement(comm, gpus, rank, size):
    """Every other collective once; what this rank has afterwards."""
    comm.settle()

    def array(values):
        return gpus.array(np.asarray(values, np.float32), comm.device, comm.stream)

    gathered, reduced, scattered = array(np.zeros(2 * size)), array(np.zeros(2)), array(np.zeros(2))
    broadcast, received = array([rank, -rank]), array(np.zeros(size))
    comm.call("ncclBroadcast", broadcast, broadcast, 2, "float32", size - 1)
    comm.call("ncclAllGather", array([rank, 10 * rank]), gathered, 2, "float32")
    comm.call("ncclReduce", array([rank, 1]), reduced, 2, "float32", SUM, 0)
    comm.call("ncclReduceScatter", array(np.arange(2 * size) * (rank + 1)), scattered, 2, "float32", SUM)
    sent = array(100 * rank + np.arange(size))
    comm.group_start()
    for peer in range(size):
        comm.begin("ncclRecv", received.ptr + 4 * peer, 1, "float32", peer)
        comm.begin("ncclSend", sent.ptr + 4 * peer, 1, "float32", peer)
    comm.group_end()
    result = [each.numpy().tolist() for each in (broadcast, gathered, reduced, scattered, received)]
    comm.finish()
    return result


def expected_movement(rank, size):
    total = size * (size + 1) // 2
    return [
        [size - 1, 1 - size],
        [value for peer in range(size) for value in (peer, 10 * peer)],
        [size * (size - 1) // 2, size] if rank == 0 else [0, 0],
        [2 * rank * total, (2 * rank + 1) * total],
        [100 * peer + rank for peer in range(size)],
    ]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_data_movement_among_threads(fake_gpus, size):
    results = on_ranks(fake_gpus, size, lambda comm, rank: data_movement(comm, fake_gpus, rank, size))
    assert results == [expected_movement(rank, size) for rank in range(size)]


def process(size, rank, program, **variables):
    tests = Path(__file__).parents[1]
    path = f"{tests}:{Path(hvdlite.__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    head = (
        "import os, signal, sys, time; sys.path.insert(0, sys.argv[1] + '/unit')\n"
        "import numpy as np\n"
        "from test_fake_nccl import data_movement\n"
        "from support.fake_nccl import SUM, Comm, unique_id\n"
        "from support.fake_gpu import FakeGpus\n"
        f"gpus, rank, size = FakeGpus(), {rank}, {size}\n"
        "if rank == 0: print(unique_id(gpus).hex(), flush=True)\n"
        "identity = bytes.fromhex(sys.stdin.readline())\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + program, str(tests)],
        env={**os.environ, **environment(gpus=size, seed=rank + 1), "PYTHONPATH": path, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start_processes(size, program, **variables):
    processes = [process(size, rank, program, **variables) for rank in range(size)]
    identity = processes[0].stdout.readline()
    for each in processes:
        each.stdin.write(identity)
        each.stdin.flush()
    return processes


def test_data_movement_among_processes():
    size = 3
    program = "print(data_movement(Comm(gpus, identity, size, rank), gpus, rank, size), flush=True)\ngpus.close()\n"
    program += "assert not gpus.leaks(), gpus.leaks()"
    processes = start_processes(size, program)
    for rank, each in enumerate(processes):
        output, _ = each.communicate(timeout=120)
        assert each.returncode == 0
        assert eval(output) == expected_movement(rank, size)


def test_a_killed_process_leaves_the_others_waiting_until_they_abort():
    program = (
        "comm = Comm(gpus, identity, size, rank)\n"
        "comm.settle()\n"
        "array = gpus.array(np.ones(4, np.float32), comm.device, comm.stream)\n"
        "comm.call('ncclAllReduce', array, array, 4, 'float32', SUM)\n"
        "assert array.numpy().tolist() == [2.0] * 4\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "comm.call('ncclAllReduce', array, array, 4, 'float32', SUM)\n"
        "elsewhere = gpus.stream(comm.device)\n"
        "for turn in range(20):  # what the GPU does meanwhile\n"
        "    assert gpus.array(np.full(4, turn), comm.device, elsewhere).numpy().tolist() == [turn] * 4\n"
        "assert gpus.cuda.cuStreamQuery(comm.stream.handle) != 0\n"
        "comm.abort()\n"
        "comm.stream.synchronize()\n"
        "gpus.close()\n"
        "assert not gpus.leaks(), gpus.leaks()\n"
        "print('survived')\n"
    )
    survivor, killed = start_processes(2, program)
    assert killed.wait(60) == -9
    output, _ = survivor.communicate(timeout=60)
    assert output == "survived\n"


@pytest.mark.parametrize("difference", ["count", "type", "op", "kind"])
def test_ranks_that_call_different_things_get_an_error(fake_gpus, capfd, difference):
    def body(comm, rank):
        comm.settle()
        array = fake_gpus.array(np.ones(8, np.int32), comm.device, comm.stream)
        odd = rank == 1
        count, dtype = 3 if odd and difference == "count" else 4, "uint32" if odd and difference == "type" else "int32"
        if odd and difference == "kind":
            comm.begin("ncclBroadcast", array, array, count, dtype, 0)
        else:
            comm.begin("ncclAllReduce", array, array, count, dtype, MAX if odd and difference == "op" else SUM)
        assert eventually(lambda: comm.state() not in (0, IN_PROGRESS))
        state = comm.state()
        comm.abort()
        comm.stream.synchronize()  # what the abort has freed
        return state

    assert on_ranks(fake_gpus, 2, body) == [INVALID_USAGE] * 2
    assert "rank 1 calls" in capfd.readouterr().err or difference


def test_two_ranks_on_one_gpu_are_refused(fake_gpus, monkeypatch):
    def body(comm, rank):
        try:
            comm.settle()
        except NcclError as error:
            comm.abort()
            return str(error)
        comm.finish()
        return "fine"

    for text in on_ranks(fake_gpus, 2, body, devices=[1, 1]):
        assert "Duplicate GPU detected" in text
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert on_ranks(fake_gpus, 2, body, devices=[1, 1]) == ["fine", "fine"]


def test_a_rank_that_never_comes_can_be_aborted(fake_gpus):
    comm = Comm(fake_gpus, unique_id(fake_gpus), 2, 0)
    assert comm.state() == IN_PROGRESS
    comm.abort()


def test_an_event_before_the_communicator_is_done_misses_its_work():
    """The work of a non-blocking call gets into the stream some time after the call."""

    def early(seed):
        with LeakCheck() as gpus:
            gpus.set(seed=seed, gpus=1)
            comm = Comm(gpus, unique_id(gpus), 1, 0)
            comm.settle()
            source = gpus.array(np.ones(4, np.float32), 0, comm.stream)
            target = gpus.array(np.zeros(4, np.float32), 0, comm.stream)
            comm.begin("ncclAllReduce", source, target, 4, "float32", SUM)
            result = bool((target.numpy() == 1).all())
            comm.settle()
            comm.finish()
            return result

    found = [early(seed) for seed in range(1, 13)]
    assert not all(found)


def test_errors_that_come_by_themselves(fake_gpus):
    all_settled = threading.Barrier(2)

    def body(comm, rank):
        comm.settle()
        all_settled.wait(60)
        if rank == 0:
            fake_gpus.nccl_error(6, "the network is gone")
        assert eventually(comm.state)
        state = comm.state()
        comm.abort()
        return state

    assert on_ranks(fake_gpus, 2, body) == [6, 6]


def test_memory_of_the_host_or_of_another_gpu_is_refused(fake_gpus):
    comm = Comm(fake_gpus, unique_id(fake_gpus), 1, 0)
    comm.settle()
    host = np.ones(4, np.float32)
    for address in (host.ctypes.data, fake_gpus.array(host, 1).ptr):
        with pytest.raises(NcclError, match="no memory of the communicator's GPU"):
            comm.begin("ncclAllReduce", address, address, 4, "float32", SUM)
    comm.finish()
