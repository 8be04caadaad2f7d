"""What goes wrong on GPUs: failures at every call, lost ranks, errors that come late; on fake GPUs, with ranks as threads."""

import itertools
import re
from contextlib import contextmanager

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import DriverError, fake_gpus  # noqa: F401
from support.gpu_ranks import GpuRank, gpu_engines, run_gpu_ranks
from support.limits import eventually
from support.thread_ranks import ALLGATHER, ALLREDUCE, SUM, Rank, in_threads, outcomes_of

from hvdlite import _engine
from hvdlite.errors import HvdliteError, PeerLostError, UnsupportedError

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

# As an unwell GPU returns them.
OPERATING_SYSTEM, NCCL_SYSTEM_ERROR, NCCL_REMOTE_ERROR = 304, 2, 6


def sums(rank, name="x", **options):
    np.testing.assert_array_equal(
        rank.allreduce(name, np.full(9, rank.rank + 1.0, np.float32), **options), rank.size * (rank.size + 1) / 2
    )


# --- which way ---------------------------------------------------------------------------------------------------------


def test_ranks_that_share_a_gpu_go_through_host_memory_and_say_so(fake_gpus, capfd):  # noqa: F811
    def body(rank):
        sums(rank)
        assert rank.counters()["staged_ops"] == 1

    run_gpu_ranks(fake_gpus, 3, body, {"log_level": 3}, devices=[0, 1, 1])
    lines = [line for line in capfd.readouterr().err.splitlines() if "host memory" in line]
    assert len(lines) == 1
    assert re.search(r"WARN .*process set 0: GPU operations go through host memory .*ranks 1, 2 share one GPU", lines[0])


def test_the_way_that_was_asked_for_is_an_info(fake_gpus, capfd):  # noqa: F811
    for route, text in (("nccl", "NCCL 2.27.3"), ("staged", "HVDLITE_GPU_ROUTE=staged on ranks 0, 1"), ("auto", "NCCL 2.27.3")):
        run_gpu_ranks(fake_gpus, 2, sums, {"log_level": 2, "gpu_route": route})
        assert re.search(
            rf"INFO \[device rank 0/2\] process set 0: GPU operations go through .*{re.escape(text)}", capfd.readouterr().err
        )


@pytest.mark.parametrize(("config", "text"), [({"nccl_library": "/nowhere/libnccl.so"}, "cannot be loaded"), ({}, "too old")])
def test_without_a_usable_nccl(fake_gpus, capfd, config, text):  # noqa: F811
    if not config:
        fake_gpus.set(nccl=21304)

    run_gpu_ranks(fake_gpus, 2, sums, {"log_level": 3, **config})
    assert re.search(f"WARN .*host memory.*rank 0 has no NCCL .*{text}", capfd.readouterr().err, re.S)

    def refused(rank):
        for name in ("x", "y"):
            with pytest.raises(UnsupportedError, match=f"'{name}' .*rank 0 has no NCCL .*{text}"):
                sums(rank, name)

    run_gpu_ranks(fake_gpus, 2, refused, {"gpu_route": "nccl", **config})


# One rank alone asks for the id.
@pytest.mark.parametrize(("nth", "function"), [(1, "ncclGetUniqueId"), *((nth, "ncclCommInitRankConfig") for nth in (1, 2, 3))])
def test_a_communicator_that_does_not_come_up(fake_gpus, capfd, function, nth):  # noqa: F811
    """On one rank; the others' communicators wait for it and are aborted, and all go another way, or say why there is none."""

    def body(rank):
        sums(rank)
        sums(rank, "again")
        assert rank.counters()["staged_ops"] == 2

    fake_gpus.fail(function, nth, NCCL_SYSTEM_ERROR)
    run_gpu_ranks(fake_gpus, 3, body, {"log_level": 3})
    assert re.search(f"WARN .*host memory.*NCCL failed to start on rank [012].*{function} failed", capfd.readouterr().err)

    def refused(rank):
        with pytest.raises(UnsupportedError, match=rf"'x' .*NCCL failed to start on rank [012].*{function} failed"):
            sums(rank)
        # Nothing else is hurt.
        np.testing.assert_array_equal(rank.host.allreduce("host", np.ones(3)), 3)

    fake_gpus.fail(function, nth, NCCL_SYSTEM_ERROR)
    run_gpu_ranks(fake_gpus, 3, refused, {"gpu_route": "nccl"})


def test_knobs_that_contradict_each_other(fake_gpus):  # noqa: F811
    fabric = _engine.Fabric(2)
    made = [
        _engine.Engine.create_inproc(fabric, index, fake_gpu.knobs(log_level=5, gpu_route=route))
        for index, route in enumerate(("nccl", "staged"))
    ]
    ranks = [GpuRank(Rank(engine, index, 2, fabric), fake_gpus, index) for index, engine in enumerate(made)]

    def body(rank):
        with pytest.raises(UnsupportedError, match="HVDLITE_GPU_ROUTE is nccl on rank 0 but staged on rank 1; set it alike"):
            sums(rank)

    in_threads(ranks, body)
    in_threads(ranks, lambda rank: rank.engine.shutdown())


# --- failures ----------------------------------------------------------------------------------------------------------

CALLS = {
    "nccl": ["ncclAllReduce", "ncclAllGather", "ncclGroupEnd", "cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"],
    "staged": ["cuMemcpyAsync", "cuEventRecord", "cuEventQuery", "cuLaunchKernel", "cuStreamWaitEvent"],
}


def several(rank):
    """Direct, fused, with an output of the engine's, of even and of uneven rows."""
    sums(rank, "direct")
    arrays = [rank.array(np.ones(5, np.float32)) for _ in range(3)]
    handles = [
        rank.start(ALLREDUCE, f"g{i}", array, array, group="g", group_size=3, group_index=i, prescale=2.0)
        for i, array in enumerate(arrays)
    ]
    outcomes_of(rank.engine, handles, streams=(rank.stream.handle,))
    rank.allgather("even", np.ones(3, np.int32))
    rank.allgather("uneven", np.ones(3 + rank.rank, np.int32))


@pytest.mark.parametrize(
    ("route", "function"), [(route, function) for route, functions in CALLS.items() for function in functions]
)
def test_a_call_that_fails_ends_in_a_text_on_every_rank(fake_gpus, route, function):  # noqa: F811
    """Whichever call it is: nobody hangs, nothing is left on the GPUs, and all learn who failed and in which operation."""
    seen = 0
    for nth in (1, 2, 4):
        texts = []

        def body(rank, texts=texts, nth=nth):
            sums(rank, "first")  # the link is up
            rank.host.barrier("before")
            if rank.rank == 0:
                rank.gpus.fail(function, nth, NCCL_SYSTEM_ERROR if function.startswith("nccl") else OPERATING_SYSTEM)
            try:
                rank.host.barrier()  # the other rank may have failed by then
                several(rank)
            except HvdliteError as error:
                texts.append(str(error))
                rank.engine.publish_failure(str(error))  # as what an exception does that nobody catches
            except DriverError:  # it hit a call of the test's own
                rank.engine.publish_failure(f"{function} failed in the test")
            except AssertionError:  # garbage: the other rank's failure came after the operation had been handed over
                assert eventually(lambda: rank.engine.failure_cause)

        with gpu_engines(fake_gpus, 2, {"gpu_route": route, "failure_linger": 0.5}) as ranks:
            in_threads(ranks, body)
        fake_gpus.fail(function, 0, 0)
        seen += bool(texts)
        for text in texts:
            assert re.search(f"{function} failed|no .* memory", text), text
    assert seen, f"{function} was never called"


def test_memory_that_runs_out(fake_gpus):  # noqa: F811
    def body(rank):
        sums(rank, "first")
        arrays = [rank.array(np.ones(500_000, np.float32)) for _ in range(3)]
        rank.host.barrier()
        rank.gpus.set(memory_mb=1)
        handles = [
            rank.start(ALLREDUCE, f"g{i}", array, array, group="g", group_size=3, group_index=i, prescale=2.0)
            for i, array in enumerate(arrays)
        ]
        with pytest.raises(
            HvdliteError, match=r"'g0' in process set 0: no \d+ KiB of memory on GPU [01] .*CUDA_ERROR_OUT_OF_MEMORY"
        ):
            rank.wait(handles[0])

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": "nccl", "failure_linger": 0.5})


@contextmanager
def busy_operation(ranks, late=2):
    """An allreduce that all ranks have handed to their GPUs, and that one rank's does not get to within the block."""
    arrays = [rank.array(np.ones(9, np.float32)) if rank.rank != late else None for rank in ranks]
    arrays[late] = ranks[late].gpus.empty(9, np.float32, ranks[late].device, ranks[late].stream)

    def body(rank):
        array = arrays[rank.rank]
        rank.wait(rank.start(ALLREDUCE, "busy", array, array))

    with ranks[late].gpus.held(ranks[late].stream):
        in_threads(ranks, body)
        yield


def test_a_lost_rank_lets_the_others_kernels_end(fake_gpus):  # noqa: F811
    """They wait on the GPU for one that will never come: the communicator is aborted, and the user's stream goes on."""
    with gpu_engines(fake_gpus, 3, {"gpu_route": "nccl", "failure_linger": 0.5}) as ranks:
        in_threads(ranks, lambda rank: sums(rank, "first"))
        with busy_operation(ranks):
            ranks[0].host.fabric.kill(2)
            in_threads(ranks[:2], lambda rank: rank.stream.synchronize())
        for rank in ranks[:2]:
            with pytest.raises(PeerLostError, match="rank 2"):
                sums(rank, "later")


def test_an_error_that_nccl_tells_later(fake_gpus):  # noqa: F811
    """Of an operation that was handed over long ago: the engine fails with its name, though nobody waits."""
    with gpu_engines(fake_gpus, 3, {"gpu_route": "nccl", "failure_linger": 0.5}) as ranks:
        in_threads(ranks, lambda rank: sums(rank, "first"))
        with busy_operation(ranks):
            fake_gpus.nccl_error(NCCL_REMOTE_ERROR, "connection closed by remote peer", rank=1)
            assert eventually(lambda: all(rank.engine.failure_cause for rank in ranks))
        for rank in ranks:
            assert re.search(
                "rank 1.* failed: allreduce of 'busy' in process set 0: NCCL failed.*remote peer", rank.engine.failure_cause
            )


def use_for_ever(rank, array):
    rank.host.barrier("broken")  # one rank may have left it, and failed, before another has seen its end
    for step in itertools.count():
        rank.wait(rank.start(ALLREDUCE, f"x{step}", array, array))


@pytest.mark.parametrize("route", ["nccl", "staged"])
def test_a_gpu_that_breaks_down(fake_gpus, route):  # noqa: F811
    with gpu_engines(fake_gpus, 2, {"gpu_route": route, "failure_linger": 0.5}) as ranks:
        in_threads(ranks, lambda rank: sums(rank, "first"))

        def body(rank):
            array = rank.array(np.ones(9, np.float32))
            rank.host.barrier()
            if rank.rank == 1:
                fake_gpus.break_down(1)
            with pytest.raises(HvdliteError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
                use_for_ever(rank, array)
            rank.engine.publish_failure(str(caught.value))

        in_threads(ranks, body)


# --- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["nccl", "staged"])
def test_shutdown_waits_for_the_gpu(fake_gpus, route):  # noqa: F811
    """What is in flight is done when shutdown returns, if that takes no longer than the time for it."""
    with gpu_engines(fake_gpus, 2, {"gpu_route": route, "failure_linger": 60.0}) as ranks:
        arrays = [rank.array(np.full(9, rank.rank + 1.0, np.float32)) for rank in ranks]

        def body(rank):
            array = arrays[rank.rank]
            sums(rank, "first")
            rank.stream.busy(0.3)
            handle = rank.start(ALLREDUCE, "last", array, array)
            if route == "nccl":
                handle.result()
            else:
                rank.host.barrier()  # agreed everywhere
            rank.engine.shutdown()

        in_threads(ranks, body)
        for array in arrays:
            np.testing.assert_array_equal(array.numpy(), 3)


def test_handles_that_nobody_waits_for(fake_gpus):  # noqa: F811
    """Outputs of the engine's that nobody takes give their memory back, too."""

    def body(rank):
        array = rank.array(np.ones(1000, np.float32))
        for step in range(20):
            rank.start(ALLGATHER, f"g{step}", array, op=SUM)
        result = rank.wait(rank.start(ALLGATHER, "taken", array))
        del result

    run_gpu_ranks(fake_gpus, 2, body)


def test_a_removed_set_gives_its_link_back(fake_gpus):  # noqa: F811
    def body(rank):
        for step in range(3):
            number = rank.host.add_process_set([0, 1])
            if rank.rank < 2:
                np.testing.assert_array_equal(rank.allreduce(f"x{step}", np.ones(3, np.float32), process_set=number), 2)
            rank.host.barrier()
            rank.host.remove_process_set(number)

    with gpu_engines(fake_gpus, 3, {"gpu_route": "nccl"}) as ranks:
        in_threads(ranks, body)
        assert fake_gpus.calls("ncclCommInitRankConfig") == 6
        assert eventually(lambda: fake_gpus.calls("ncclCommDestroy") >= 6)
        assert fake_gpus.calls("ncclCommAbort") == 0
