"""The order of streams: inputs are read when they are ready, results when they are there, and nobody waits on the host."""

import os
import random
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import gpu_engines, run_gpu_ranks
from support.limits import eventually
from support.seeds import seeds
from support.thread_ranks import ALLGATHER, ALLREDUCE, AVERAGE, BROADCAST, REDUCESCATTER, SUM, in_threads, outcomes_of

from hvdlite.errors import HvdliteError
from hvdlite.requests import Request

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

ROUTES = ["nccl", "staged"]
SEEDS = seeds(range(25))


@pytest.mark.parametrize("route", ROUTES)
def test_inputs_that_are_written_late_and_results_that_are_read_elsewhere(fake_gpus, route):  # noqa: F811
    """The streams' scheduler delays and reorders as its seed says; each result has to be right for all seeds."""

    def body(rank):
        reader = rank.gpus.stream(rank.device)
        for seed in SEEDS:
            rank.host.barrier(f"seed{seed}")
            if rank.rank == 0:
                fake_gpus.set(seed=seed, delay=300, delay_percent=60)
            rng = random.Random(seed)
            arrays = [rank.array(np.zeros(count, np.float32)) for count in (5, 300, 70)]
            for array in arrays:
                if rng.random() < 0.5:
                    rank.stream.busy(0.002)
                rank.gpus.add(array, rank.rank + 1.0, rank.stream)
            scale = rng.choice([1.0, 2.0])
            handles = [
                rank.start(
                    ALLREDUCE, f"x{i}", array, array, prescale=scale, group="g" if seed % 2 else "", group_size=3, group_index=i
                )
                for i, array in enumerate(arrays)
            ]
            outcomes_of(rank.engine, handles, streams=(reader.handle, rank.stream.handle))
            for array in arrays:
                rank.gpus.add(array, 0.5, reader)
                np.testing.assert_array_equal(array.numpy(reader), 3 * scale + 0.5)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


@pytest.mark.parametrize("route", ROUTES)
def test_results_of_the_engines_making(fake_gpus, route):  # noqa: F811
    def body(rank):
        for seed in SEEDS:
            rank.host.barrier(f"seed{seed}")
            if rank.rank == 0:
                fake_gpus.set(seed=seed, delay=300, delay_percent=60)
            array = rank.array(np.zeros((2, 5), np.float32))
            rank.stream.busy(0.001)
            rank.gpus.add(array, rank.rank + 1.0, rank.stream)
            gathered = rank.start(ALLGATHER, "g", array)
            scattered = rank.start(REDUCESCATTER, "r", array, op=AVERAGE)
            np.testing.assert_array_equal(rank.take(rank.wait(gathered), array), np.repeat([1, 2], 2)[:, None] * np.ones(5))
            np.testing.assert_array_equal(rank.take(rank.wait(scattered), array), np.full((1, 5), 1.5))

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


@pytest.mark.parametrize("route", ROUTES)
def test_outputs_are_not_written_before_the_stream_is_done_with_them(fake_gpus, route):  # noqa: F811
    """Until the request the stream may still read what was in the output."""

    def body(rank):
        for step in range(10):
            array = rank.array(np.full(50, rank.rank, np.float32))
            output = rank.array(np.full(50, 7.0, np.float32))
            copy = rank.empty_like(output)
            rank.stream.busy(0.03)  # so long a write that does not wait has to go wrong
            copy.copy(output, rank.stream)
            if step % 2:
                rank.wait(rank.start(ALLREDUCE, "x", array, output))
            else:
                rank.wait(rank.start(BROADCAST, "b", array, output, root=1))
            np.testing.assert_array_equal(output.numpy(), 1)
            np.testing.assert_array_equal(copy.numpy(), 7)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


def test_the_host_does_not_wait_for_the_gpu(fake_gpus):  # noqa: F811
    """Through NCCL an operation has ended when it is handed over, long before its input is ready."""
    with gpu_engines(fake_gpus, 2, {"gpu_route": "nccl"}) as ranks:
        in_threads(ranks, lambda rank: rank.allreduce("first", np.ones(3, np.float32)), 30)
        arrays = [rank.array(np.ones(3, np.float32)) for rank in ranks]

        def body(rank):
            array = arrays[rank.rank]
            with fake_gpus.held(rank.stream):
                for step in range(20):
                    rank.wait(rank.start(ALLREDUCE, f"x{step}", array, array))
            rank.stream.synchronize()

        in_threads(ranks, body, 30)
        for array in arrays:
            np.testing.assert_array_equal(array.numpy(), 2.0**20)


def test_nothing_is_enqueued_before_the_work_of_earlier_calls_of_nccl(fake_gpus):  # noqa: F811
    """NCCL enqueues its work after its calls have returned. int16 goes through host memory, in the same stream."""

    def body(rank):
        for _ in range(10):
            arrays = [rank.array(np.full(50, rank.rank + 1, dtype)) for dtype in ("float32", "int16")]
            works = [rank.start(ALLREDUCE, array.dtype.name, array, array) for array in arrays]
            outcomes_of(rank.engine, works, streams=(rank.stream.handle,))
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), 3)
        counters = rank.counters()
        assert (counters["nccl_ops"], counters["staged_ops"]) == (10, 10)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": "nccl"})
    assert fake_gpus.calls("enqueued_too_early") == 0


def test_nobody_waits_while_memory_is_freed(fake_gpus):  # noqa: F811
    """The driver frees when all streams are empty, in which the rank's own operations may wait for others."""

    def body(rank):
        rank.allreduce("first", np.ones(3, np.float32))
        array = rank.array(np.ones(1000, np.float32))
        other = rank.gpus.stream(rank.device)
        rank.host.barrier()
        with fake_gpus.held(other):
            other.busy(0)
            for step in range(5):
                rank.wait(rank.start(ALLREDUCE, f"x{step}", array, array, prescale=0.5))
                rank.stream.synchronize()
                memory = rank.engine.new_gpu_output(rank.device, rank.stream.handle, 5 << 20)
                assert memory.address
                del memory  # with the GIL held
        np.testing.assert_array_equal(array.numpy(), 1)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": "nccl", "gpu_cache_bytes": 0})
    assert fake_gpus.calls("cuMemFree") >= 5


def test_a_forked_child_that_drops_lent_memory_leaves_cuda_alone(fake_gpus):  # noqa: F811
    def body(rank):
        memory = rank.engine.new_gpu_output(rank.device, rank.stream.handle, 100)
        child = os.fork()
        if child == 0:
            before = fake_gpus.called()
            del memory
            os._exit(fake_gpus.called() != before)
        assert os.waitpid(child, 0)[1] == 0

    run_gpu_ranks(fake_gpus, 1, body)


@pytest.mark.parametrize("use", ["output", "input", "both"])
@pytest.mark.parametrize("route", ROUTES)
def test_lent_memory_is_free_after_the_operations_on_it(fake_gpus, route, use):  # noqa: F811
    """A block is dropped while its operation is at work; the next one to have it uses it after that."""

    def body(rank):
        rank.allreduce("first", np.ones(1000, np.float32))
        array = rank.array(np.full(1000, 1.0, np.float32))
        block = rank.engine.new_gpu_output(rank.device, rank.stream.handle, array.nbytes)
        address = block.address
        lent = SimpleNamespace(ptr=address, shape=array.shape, dtype=array.dtype, device=array.device, stream=rank.stream)
        target = rank.empty_like(array)
        if use != "output":
            rank.wait(rank.start(BROADCAST, "fill", array, lent, root=0))
        rank.stream.busy(0.3)
        operands = {"output": (array, lent), "input": (lent, target), "both": (lent, lent)}[use]
        handle = rank.start(ALLREDUCE, "x", *operands)
        rank.wait(handle, rank.gpus.stream(rank.device))
        del block
        # In another stream, which is ordered after nothing that this program knows of.
        elsewhere = rank.gpus.stream(rank.device)
        again = rank.engine.new_gpu_output(rank.device, elsewhere.handle, array.nbytes)
        assert again.address == address
        with rank.gpus.on(rank.device):
            rank.gpus.call("cuMemsetD8Async", address, 0, array.nbytes, elsewhere.handle)
        rank.stream.synchronize()
        rank.wait(rank.start(ALLREDUCE, "last", array, array))  # comes after the first in the engine's streams
        rank.stream.synchronize()
        elsewhere.synchronize()
        view = rank.gpus.empty(array.shape, array.dtype, rank.device, elsewhere)
        with rank.gpus.on(rank.device):
            rank.gpus.call("cuMemcpyAsync", view.ptr, address, array.nbytes, elsewhere.handle)
        np.testing.assert_array_equal(view.numpy(), 0)
        if use == "input":
            np.testing.assert_array_equal(target.numpy(), 2)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


class Memory:
    """Stands for what keeps tensors."""


def test_memory_stays_when_the_streams_cannot_be_ordered(fake_gpus):  # noqa: F811
    """Whichever call of the driver fails: what was submitted is kept when the work is let go."""
    raised = []
    for nth in range(1, 30):
        with gpu_engines(fake_gpus, 1, {"gpu_route": "nccl"}) as (rank,):
            rank.allreduce("first", np.ones(3, np.float32))
            array = rank.array(np.ones(3, np.float32))
            request = Request(**rank.request(ALLREDUCE, "x", array, array))
            memory = Memory()
            kept = weakref.ref(memory)
            before = fake_gpus.calls("cuStreamWaitEvent")
            fake_gpus.fail("cuStreamWaitEvent", nth, 999)
            try:
                rank.engine.submit((request,), memory, False).result(streams=(rank.stream.handle,))
            except HvdliteError as error:
                raised.append(str(error))
            else:
                del memory
                assert kept() is None
            called = fake_gpus.calls("cuStreamWaitEvent") - before
            fake_gpus.fail("cuStreamWaitEvent", 0, 0)
            memory = None
            assert (kept() is not None) == (called >= nth), raised
        if called < nth:
            break
    assert raised
    assert not raised[-1].startswith("allreduce"), "the last call is that of the caller's stream"


def test_a_lost_gpu_keeps_the_memory_of_a_dropped_work_and_disturbs_nobody(fake_gpus):  # noqa: F811
    with gpu_engines(fake_gpus, 1, {"gpu_route": "nccl"}) as (rank,):
        array = rank.array(np.ones(3, np.float32))
        memories = [Memory(), Memory()]
        kept = [weakref.ref(memory) for memory in memories]
        for index, memory in enumerate(memories):
            request = Request(**rank.request(ALLREDUCE, f"x{index}", array, array))
            work = rank.engine.submit((request,), memory)
            assert eventually(work.poll)
            memories[index] = memory = None
            del work
            if index == 1:
                fake_gpus.fail("cuStreamWaitEvent", 1, 999)
            rank.host.allreduce("other", np.ones(2))
            fake_gpus.fail("cuStreamWaitEvent", 0, 0)
        assert rank.engine.dropped_in_flight == 0
        assert [memory() is not None for memory in kept] == [False, True]


@pytest.mark.parametrize("route", ROUTES)
def test_host_memory_goes_on_while_gpu_memory_waits(fake_gpus, route):  # noqa: F811
    """Operations of one set on both kinds of memory, of which those on the GPU are not ready for long."""

    def body(rank):
        rank.allreduce("first", np.ones(3, np.float32))
        array = rank.array(np.full(1000, rank.rank + 1.0, np.float32))
        with fake_gpus.held(rank.stream):
            rank.stream.busy(0)
            handle = rank.start(ALLREDUCE, "gpu", array, array, prescale=2.0)
            for step in range(20):
                np.testing.assert_array_equal(rank.host.allreduce(f"host{step}", np.full(2000, rank.rank + step)), 1 + 2 * step)
        rank.wait(handle)
        np.testing.assert_array_equal(array.numpy(), 6)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


@pytest.mark.parametrize("route", ROUTES)
def test_results_that_are_not_finite_are_named(fake_gpus, route, capfd):  # noqa: F811
    def body(rank):
        for name, value in (("good", 1.0), ("bad", np.inf)):
            arrays = [rank.array(np.full(40, value if i == 1 and rank.rank else 1.0, np.float32)) for i in range(3)]
            handles = [
                rank.start(ALLREDUCE, f"{name}{i}", array, array, group=name, group_size=3, group_index=i)
                for i, array in enumerate(arrays)
            ]
            outcomes_of(rank.engine, handles, streams=(rank.stream.handle,))
            rank.stream.synchronize()
        rank.allreduce("single", np.full(3, np.nan, np.float32))

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route, "check_finite": True, "log_level": 3})
    lines = [line for line in capfd.readouterr().err.splitlines() if "NaN" in line]
    assert sorted(line.split("tensors ")[1].split(" in ")[0] for line in lines) == ["'bad1'"] * 2 + ["'single'"] * 2


def test_nothing_is_looked_at_without_the_knob(fake_gpus, capfd):  # noqa: F811
    run_gpu_ranks(
        fake_gpus, 2, lambda rank: rank.allreduce("x", np.full(3, np.nan, np.float32)), {"log_level": 3, "gpu_route": "nccl"}
    )
    assert "NaN" not in capfd.readouterr().err


@pytest.mark.parametrize("route", ROUTES)
def test_tensors_on_another_gpu_for_many_seeds(fake_gpus, route):  # noqa: F811
    """They are copied to the set's GPU and back, each copy in an order of its own with the streams of two GPUs."""

    def body(rank):
        rank.allreduce("first", np.ones(3, np.float32))
        other = rank.gpus.stream(rank.device + 2)
        for seed in SEEDS:
            rank.host.barrier(f"seed{seed}")
            if rank.rank == 0:
                fake_gpus.set(seed=seed, delay=300, delay_percent=60)
            array = rank.gpus.array(np.full(50, rank.rank + 1.0, np.float32), rank.device + 2, other)
            rank.wait(rank.start(BROADCAST, "b", array, array, root=0), other)
            np.testing.assert_array_equal(array.numpy(), 1)
            rank.gpus.add(array, rank.rank, other)
            rank.wait(rank.start(ALLREDUCE, "a", array, array), other)
            np.testing.assert_array_equal(array.numpy(), 3)

    fake_gpus.set(gpus=4)
    with gpu_engines(fake_gpus, 2, {"gpu_route": route}) as ranks:
        fake_gpus.set(gpus=4)
        in_threads(ranks, body, 60)


def test_nothing_else_waits_for_a_communicator_that_comes_up(fake_gpus):  # noqa: F811
    """Not the caller, nor operations on host memory or of a process set whose communicator is there."""

    def body(rank):
        some = rank.host.add_process_set([0, 1])
        first = np.full(9, rank.rank + 1, np.float32)
        if rank.rank < 2:
            rank.allreduce("first", first, op=SUM, process_set=some)
        rank.host.barrier("the next is slow")
        if rank.rank == 0:
            fake_gpus.set(nccl_start_ms=1000 * 3600)
        rank.host.barrier("as set")
        array = rank.array(first)
        slow = rank.start(ALLREDUCE, "slow", array, array, op=SUM)
        for step in range(20):
            values = np.full(1000, rank.rank + step, np.float32)
            np.testing.assert_array_equal(rank.host.allreduce(f"host.{step}", values, op=SUM), 3 * step + 3)
            if rank.rank < 2:
                result = rank.allreduce(f"some.{step}", values, op=SUM, process_set=some)
                np.testing.assert_array_equal(result, 2 * step + 1)
        assert not slow.poll()
        rank.host.barrier("seen")
        if rank.rank == 0:
            fake_gpus.set(nccl_start_ms=0)
        rank.wait(slow)
        np.testing.assert_array_equal(array.numpy(), np.full(9, 6))

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": "nccl"})
