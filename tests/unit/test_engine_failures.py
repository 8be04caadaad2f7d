"""Deadlocks, and ranks that leave, fail or are killed, with ranks as threads: who is told what, and who goes on."""

import contextlib
import mmap
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.agreement import ways  # noqa: F401
from support.limits import DEADLINE, SANITIZED
from support.rest import outlasts
from support.thread_ranks import ALLGATHER, ALLREDUCE, BARRIER, Rank, engines, in_threads, run_ranks

from hvdlite.errors import AbortedError, HorovodInternalError, OperationTimeoutError, PeerLostError, SystemFailure


def wait_fails(rank: Rank, handle: int, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        handle.result()
    return str(caught.value)


def start_group(rank: Rank, members: int) -> int:
    """Submits the first members of a group of two; the handle of the first."""
    handles = [
        rank.start(ALLREDUCE, f"m{i}", np.ones(2), np.ones(2), group="g", group_size=2, group_index=i) for i in range(members)
    ]
    return handles[0]


DEADLOCKS = {
    "misspelt": lambda rank: rank.start(ALLREDUCE, "layr" if rank.rank == 1 else "layer", np.ones(2), np.ones(2)),
    "kinds": lambda rank: (
        rank.start(ALLGATHER, "allgather.x", np.ones(2))
        if rank.rank == 1
        else rank.start(ALLREDUCE, "allreduce.x", np.ones(2), np.ones(2))
    ),
    "missing": lambda rank: (
        rank.start(BARRIER, "barrier.end") if rank.rank == 1 else rank.start(ALLREDUCE, "loss", np.ones(2), np.ones(2))
    ),
    "group": lambda rank: start_group(rank, 1 if rank.rank == 1 else 2),
}


@pytest.mark.parametrize("case", DEADLOCKS)
def test_a_deadlock_ends_and_tells_who_waits_for_what(case):
    def body(rank: Rank):
        message = wait_fails(rank, DEADLOCKS[case](rank), OperationTimeoutError)
        return message

    with engines(3) as ranks:
        messages = in_threads(ranks, body)
        assert len(set(messages)) == 1
        assert all(f"rank {r} waits for" in messages[0] for r in range(3))
        assert "missing on" in messages[0]
        in_threads(ranks, lambda rank: rank.allreduce("after", np.ones(2)))


def test_a_deadlock_is_found_while_two_threads_wait_for_one_operation():
    def body(rank: Rank):
        handle = rank.start(ALLREDUCE, f"only{rank.rank}", np.ones(2), np.ones(2))
        messages: list[str] = []
        thread = threading.Thread(target=lambda: messages.append(wait_fails(rank, handle, OperationTimeoutError)))
        thread.start()
        messages.append(wait_fails(rank, handle, OperationTimeoutError))
        thread.join()
        return messages

    for messages in run_ranks(2, body):
        assert len(messages) == 2
        assert "deadlock" in messages[0]
        assert messages[0] == messages[1]


def test_waiting_for_a_slow_rank_is_no_deadlock():
    def body(rank: Rank):
        if rank.rank == 1:
            assert outlasts(rank.engine, 2.5)
        return rank.allreduce("slow", np.full(2, rank.rank, np.float32)).tolist()

    assert run_ranks(3, body) == [[3, 3]] * 3


def test_a_deadlock_across_process_sets_is_found():
    def body(rank: Rank):
        pairs = [rank.add_process_set([0, 1]), rank.add_process_set([1, 2]), rank.add_process_set([0, 2])]
        # Each waits for a neighbour that waits for another: 0 on {0,1}, 1 on {1,2}, 2 on {0,2}.
        message = wait_fails(
            rank,
            rank.start(ALLREDUCE, "x", np.ones(1), np.ones(1), process_set=pairs[rank.rank]),
            OperationTimeoutError,
        )
        for process_set in pairs:
            if rank.rank in rank.engine.process_set_ranks(process_set):
                rank.allreduce("again", np.ones(1), process_set=process_set)
        return message

    messages = run_ranks(3, body)
    assert len(set(messages)) == 1


def test_a_rank_that_leaves_fails_what_needs_it_at_once():
    with engines(3) as ranks:
        handles = [rank.start(ALLREDUCE, "epoch.loss", np.ones(1), np.ones(1)) for rank in ranks[:2]]
        ranks[2].engine.shutdown()
        for rank, handle in zip(ranks, handles, strict=False):
            message = wait_fails(rank, handle, AbortedError)
            assert "allreduce of 'epoch.loss' in process set 0: rank 2 has left" in message
            assert "Horovod has been shut down" in message
        again = [rank.start(ALLREDUCE, "epoch.loss", np.ones(1), np.ones(1)) for rank in ranks[:2]]
        for rank, handle in zip(ranks, again, strict=False):
            wait_fails(rank, handle, AbortedError)


def test_a_coordinator_that_leaves_fails_what_needs_it_at_once():
    with engines(2) as ranks:
        handle = ranks[1].start(ALLREDUCE, "x", np.ones(1), np.ones(1))
        ranks[0].engine.shutdown()
        assert "rank 0 has left" in wait_fails(ranks[1], handle, AbortedError)
        assert "rank 0 has left" in wait_fails(ranks[1], ranks[1].start(ALLREDUCE, "y", np.ones(1), np.ones(1)), AbortedError)


def test_every_survivor_gets_the_first_cause():
    with engines(4) as ranks:
        handles = [rank.start(ALLREDUCE, "w", np.ones(1), np.ones(1)) for rank in ranks if rank.rank != 2]
        ranks[2].engine.publish_failure("raised ValueError: bad batch")
        for rank, handle in zip([r for r in ranks if r.rank != 2], handles, strict=True):
            message = wait_fails(rank, handle, PeerLostError)
            assert "rank 2 raised ValueError: bad batch" in message
            assert "Horovod has been shut down" in message
            assert "bad batch" in rank.engine.failure_cause
            with pytest.raises(HorovodInternalError, match="bad batch"):
                rank.start(ALLREDUCE, "later", np.ones(1), np.ones(1))
            assert "allreduce of 'w'" in rank.engine.flight_record()


def test_memory_that_the_system_does_not_give_is_no_bug_of_hvdlite():
    """The result would be larger than the addresses of a process. (The input has addresses and no pages.)"""
    input_ = np.frombuffer(mmap.mmap(-1, 1 << 44, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ), np.uint8)

    def body(rank: Rank) -> type:
        with pytest.raises((SystemFailure, PeerLostError)) as caught:
            rank.allgather("x", input_)
        assert "allgather of 'x' in process set 0: the system gives this process no more memory; " in str(caught.value)
        return caught.type

    with engines(8, {"failure_linger": 0.2}) as ranks:
        assert SystemFailure in in_threads(ranks, body)  # some of them may learn of it from another


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_fail_at_the_same_time_do_not_wait_for_each_other(size):
    """Each has a cause of its own, and what it has in flight ends with that, or with another's that it heard before."""

    def body(rank: Rank) -> None:
        handle = rank.start(ALLREDUCE, f"x{rank.rank}", np.ones(1), np.ones(1))
        ready.wait()
        rank.engine.publish_failure(f"raised ValueError: bad batch {rank.rank}")
        cause = wait_fails(rank, handle, HorovodInternalError)
        assert re.search(r"rank (\d) .*raised ValueError: bad batch \1\. Horovod has been shut down", cause)
        assert cause == rank.engine.failure_cause

    for _ in range(20):
        ready = threading.Barrier(size)
        with engines(size, {"failure_linger": 10 * DEADLINE}) as ranks:
            in_threads(ranks, body, DEADLINE)


def test_the_rank_that_fails_ends_what_its_other_threads_wait_for():
    with engines(2) as ranks:
        handles = [ranks[1].start(ALLREDUCE, name, np.ones(1), np.ones(1)) for name in ("a", "b")]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait_fails, ranks[1], handles[0], AbortedError)
            ranks[1].engine.publish_failure("raised ValueError: bad batch")
            assert re.search("rank 1 .*raised ValueError: bad batch.*Horovod has been shut down", waiting.result())
        assert handles[1].poll()
        assert ranks[0].engine.failure_cause == ranks[1].engine.failure_cause
        with pytest.raises(AbortedError, match="bad batch"):
            ranks[1].start(ALLREDUCE, "later", np.ones(1), np.ones(1))
        ranks[1].engine.publish_failure("raised ValueError: another")
        assert "another" not in ranks[1].engine.failure_cause


def test_a_failure_right_after_a_small_allreduce():
    """The others may learn of it before they have read in the ledger that the allreduce is complete."""

    def body(rank: Rank) -> None:
        with contextlib.suppress(PeerLostError):
            for _ in range(2):
                rank.allreduce("allreduce.small", np.ones(2))
                if rank.rank == 1:
                    rank.engine.publish_failure("raised ValueError: bad batch")
                    return

    for _ in range(100):
        with engines(3) as ranks:
            in_threads(ranks, body)


def test_a_rank_that_is_killed_fails_what_waits_and_all_that_follows():
    with engines(3) as ranks:
        handles = [rank.start(ALLREDUCE, "w", np.ones(1000), np.ones(1000)) for rank in ranks if rank.rank != 1]
        ranks[0].fabric.kill(1)
        for rank, handle in zip([ranks[0], ranks[2]], handles, strict=True):
            assert "rank 1" in wait_fails(rank, handle, PeerLostError)
            with pytest.raises(PeerLostError, match="rank 1"):
                rank.start(ALLREDUCE, "later", np.ones(1), np.ones(1))


def test_shutting_down_right_after_a_rank_was_killed_harms_nobody():
    """Whoever learns of it by its goodbye, which cannot be sent any more, ends as well: all threads, all memory."""
    for _ in range(30):
        with engines(3) as ranks:
            in_threads(ranks, lambda rank: rank.allreduce("w", np.ones(10)))
            ranks[0].fabric.kill(1)


# The address space has no room for the stack of a thread, but for all else.
_THREADLESS = """
import contextlib, resource, sys
from hvdlite import _native
from hvdlite.errors import SystemFailure

engines = _native.load_native()


@contextlib.contextmanager
def no_thread():
    pages = int(open("/proc/self/statm").read().split()[0])
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), unlimited[1]))
    try:
        yield
    except SystemFailure as error:
        assert "no thread can be started" in str(error), error
    else:
        sys.exit("there was room for a thread")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)


fabric = engines.Fabric(1)
with no_thread():
    engines.Engine.create_inproc(fabric, 0, {})
engine = engines.Engine.create_inproc(fabric, 0, {})
with no_thread():
    engine.start_timeline(sys.argv[1], 1 << 20, False)
engine.stop_timeline()
engine.start_timeline(sys.argv[1], 1 << 20, False)
engine.shutdown()
"""


@pytest.mark.skipif(SANITIZED, reason="the address sanitizer needs all of the address space")
def test_an_engine_and_a_timeline_that_get_no_thread_say_so_and_can_be_made_later(tmp_path):
    # glibc gives a new thread a malloc arena: it maps 128 MiB and unmaps the half that is not aligned. A limit that is set
    # in between would leave room for a thread.
    environ = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    program = [sys.executable, "-c", _THREADLESS, str(tmp_path / "trace.json")]
    subprocess.run(program, env=environ, timeout=DEADLINE, check=True)
