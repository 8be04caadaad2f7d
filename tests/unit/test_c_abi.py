"""The C ABI as the kernels of frameworks use it: no Python around, a callback at the end.

(Over 400 lines, because all tests share the structs of the ABI.)
"""

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.fake_gpu import DeviceArray, fake_gpus  # noqa: F401
from support.gpu_ranks import GpuRank, run_gpu_ranks
from support.limits import DEADLINE
from support.rest import outlasts
from support.thread_ranks import ALLGATHER, ALLREDUCE, SUM, Rank, engines, in_threads

import hvdlite
from hvdlite import _engine

CORE = ctypes.CDLL(str(Path(_engine.__file__).with_name("libhvdlite_core.so")))
CORE.hvdlite_current_engine.restype = ctypes.c_void_p
CORE.hvdlite_last_error.restype = ctypes.c_char_p
THEN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FLOAT32 = 10
INVALID_ARGUMENT, MISMATCH, TIMEOUT, NOT_INITIALIZED = 1, 2, 4, 6


class Request(ctypes.Structure):
    """The struct hvdlite_request."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "dtype", "op", "root", "process_set", "device", "layout", "flags")),
        ("name", ctypes.c_char_p),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("group", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("group_size", "group_index", "num_splits")),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("stream", ctypes.c_void_p),
        ("arena", ctypes.c_int64),
        ("tag", ctypes.c_int32),
        ("weight", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("codec", "codec_between", "codec_block")),
    )


class Submission(ctypes.Structure):
    """The struct hvdlite_submission."""

    _fields_ = (
        ("requests", ctypes.POINTER(Request)),
        ("count", ctypes.c_size_t),
        ("group", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("absent", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("weight", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("notice", "wake", "pool_thread")),
        ("then", THEN),
        ("then_data", ctypes.c_void_p),
    )


class Result(ctypes.Structure):
    """The struct hvdlite_result."""

    _fields_ = (
        ("code", ctypes.c_int32),
        ("error", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("contributors", "last_joined_rank", "process_set", "source", "tag", "ndim")),
        ("shape", ctypes.c_void_p),
        ("num_received_splits", ctypes.c_int32),
        ("received_splits", ctypes.c_void_p),
        ("num_bytes", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
    )


class Call:
    """One submission of float32 vectors, by a rank made current for it: with a callback, or by a thread of a pool."""

    current = threading.Lock()

    def __init__(
        self,
        rank: Rank,
        kind: int,
        arrays: list[np.ndarray] | list[DeviceArray],
        names: list[str | None],
        grouped: bool = False,
        pool_thread: bool = False,
    ) -> None:
        self.arrays = arrays
        self.told = threading.Event()
        self.times = self.number_when_told = 0
        self._then = THEN() if pool_thread else THEN(self._tell)
        count = len(arrays)
        self.work = ctypes.c_int64()
        requests = (Request * count)()
        shapes = [(ctypes.c_int64 * 1)(array.shape[0]) for array in arrays]
        for i, (array, name) in enumerate(zip(arrays, names, strict=True)):
            on_gpu = isinstance(array, DeviceArray)
            address = array.ptr if on_gpu else array.ctypes.data
            requests[i] = Request(kind=kind, dtype=FLOAT32, op=SUM, device=-1, ndim=1, shape=shapes[i], prescale=1, postscale=1)
            if on_gpu:
                requests[i].device, requests[i].stream = array.device, array.stream.handle
            requests[i].input, requests[i].output = address, address if kind == ALLREDUCE else None
            requests[i].name = None if name is None else name.encode()
            requests[i].group_size, requests[i].group_index = (count, i) if grouped else (0, 0)
        with self.current:
            rank.engine.make_current()
            self.engine = ctypes.c_void_p(CORE.hvdlite_current_engine())
        what = Submission(requests=requests, count=count, pool_thread=pool_thread, then=self._then)
        self.code = CORE.hvdlite_submit(self.engine, ctypes.byref(what), ctypes.byref(self.work))

    def _tell(self, _data: object) -> None:
        self.times += 1
        self.number_when_told = self.work.value
        self.told.set()

    def outcome(self) -> list[int]:
        """Waits to be told, then the code of each operation."""
        assert self.told.wait(60)
        assert self.number_when_told == self.work.value > 0
        return self.wait(0)

    def wait(self, seconds: float = 60) -> list[int]:
        """Waits in the engine; the code of each operation."""
        done = ctypes.c_int()
        first = CORE.hvdlite_wait(self.engine, ctypes.byref(self.work), 1, ctypes.c_double(seconds), ctypes.byref(done))
        assert done.value == 1
        results, count = (Result * len(self.arrays))(), ctypes.c_size_t()
        assert CORE.hvdlite_results(self.engine, self.work, results, len(results), ctypes.byref(count)) == 0
        assert count.value == len(results)
        codes = [result.code for result in results]
        assert first == next(filter(None, codes), 0)
        assert [result.error is None for result in results] == [code == 0 for code in codes]
        assert all((result.contributors == -1) == bool(result.code) for result in results)
        return codes

    def close(self) -> None:
        CORE.hvdlite_release(self.engine, self.work)
        CORE.hvdlite_engine_destroy(self.engine)


def values(rank: Rank, size: int) -> np.ndarray:
    return np.full(size, rank.rank + 1, np.float32)


def test_a_callback_comes_once_when_all_have_ended():
    def body(rank: Rank) -> None:
        call = Call(rank, ALLREDUCE, [values(rank, 3), values(rank, 70_000)], ["a", "b"])
        assert call.outcome() == [0, 0]
        assert call.times == 1
        assert all((array == 6).all() for array in call.arrays)
        call.close()

    with engines(3) as ranks:
        in_threads(ranks, body)


def test_a_callback_that_comes_at_once_finds_the_number_of_the_work():
    """The thread that submits may be the last to learn that all is over."""
    with engines(1, {"cycle_time": 0.0}) as (rank,):
        for step in range(300):
            call = Call(rank, ALLREDUCE, [values(rank, 1)], [f"x{step}"])
            assert call.outcome() == [0]
            call.close()


@pytest.mark.parametrize("route", ["nccl", "staged"])
def test_a_callback_comes_when_work_is_handed_to_a_gpu(fake_gpus, route):  # noqa: F811
    """Whoever is told orders its stream after the operations, as the doors do, and needs no wait."""

    def body(rank: GpuRank) -> None:
        arrays = [rank.array(np.full(size, rank.rank + 1, np.float32)) for size in (3, 70_000)]
        call = Call(rank.host, ALLREDUCE, arrays, ["a", "b"])
        assert call.outcome() == [0, 0]
        assert call.times == 1
        assert CORE.hvdlite_order(call.engine, call.work, ctypes.c_void_p(rank.stream.handle)) == 0
        for array in arrays:
            np.testing.assert_array_equal(array.numpy(), 3)
        call.close()

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


def test_a_callback_comes_while_another_thread_waits_for_something_else():
    """Whoever waits drives, and tells."""

    def body(rank: Rank) -> None:
        call = Call(rank, ALLREDUCE, [values(rank, 5)], ["first"])
        if rank.rank == 1:
            call.outcome()  # the others cannot be past the barrier before this
        rank.barrier()
        assert call.outcome() == [0]
        call.close()

    with engines(2) as ranks:
        in_threads(ranks, body)


def test_a_callback_tells_of_failures_too():
    def body(rank: Rank) -> None:
        call = Call(rank, ALLREDUCE, [values(rank, 5 + rank.rank)], ["odd"])
        assert call.outcome() == [MISMATCH]
        assert b"odd" in CORE.hvdlite_last_error()
        call.close()
        assert rank.allreduce("next", values(rank, 1))[0] == 3

    with engines(2) as ranks:
        in_threads(ranks, body)


def test_a_deadlock_of_callbacks_is_found():
    """Nobody is seen to wait, but nothing happens any more."""

    def body(rank: Rank) -> None:
        good = Call(rank, ALLREDUCE, [values(rank, 2)], ["good"])
        assert good.outcome() == [0]
        call = Call(rank, ALLREDUCE, [values(rank, 2), values(rank, 3)], [f"only{rank.rank}", f"also{rank.rank}"])
        assert call.outcome() == [TIMEOUT, TIMEOUT]
        for each in (good, call):
            each.close()
        assert rank.allreduce("next", values(rank, 1))[0] == 3

    with engines(2, {"deadlock_timeout": 0.004}) as ranks:
        in_threads(ranks, body)


@pytest.mark.parametrize("pool_thread", [False, True], ids=["told", "pool"])
def test_threads_of_frameworks_do_not_hide_a_deadlock(pool_thread):
    """They may live as long as the program and never wait for anything again."""
    done = threading.Event()

    def body(rank: Rank) -> None:
        def idle() -> None:
            call = Call(rank, ALLREDUCE, [values(rank, 2)], ["first"], pool_thread=pool_thread)
            assert (call.wait() if pool_thread else call.outcome()) == [0]
            idles.set()
            done.wait(60)
            call.close()

        idles = threading.Event()
        thread = threading.Thread(target=idle)
        thread.start()
        assert idles.wait(60)
        with pytest.raises(hvdlite.OperationTimeoutError, match="deadlock"):
            rank.allreduce(f"only{rank.rank}", values(rank, 2))
        assert thread.is_alive(), "the deadlock was found when the other thread had ended"
        rank.barrier()
        done.set()
        thread.join()

    with engines(2, {"deadlock_timeout": 0.05}) as ranks:
        in_threads(ranks, body)


def test_a_deadlock_of_a_pools_threads_is_found():
    """They count while they wait."""

    def body(rank: Rank) -> None:
        call = Call(rank, ALLREDUCE, [values(rank, 2)], [f"only{rank.rank}"], pool_thread=True)
        assert call.wait() == [TIMEOUT]
        call.close()

    with engines(2, {"deadlock_timeout": 0.05}) as ranks:
        in_threads(ranks, body)


def test_a_thread_that_calls_as_one_of_a_pool_once_still_counts():
    """A framework may run its program in the thread of the caller, which also calls for itself."""

    def body(rank: Rank) -> None:
        rank.barrier()
        call = Call(rank, ALLREDUCE, [values(rank, 2)], ["first"], pool_thread=True)
        assert call.wait() == [0]
        call.close()
        thread = threading.Thread(target=rank.allreduce, args=(f"first{rank.rank}", values(rank, 2)))
        thread.start()
        assert outlasts(rank.engine, 0.5)
        rank.allreduce(f"first{1 - rank.rank}", values(rank, 2))
        thread.join()

    with engines(2, {"deadlock_timeout": 0.05}) as ranks:
        in_threads(ranks, body)


def test_what_shutdown_ends_is_told():
    with engines(2) as ranks:
        call = Call(ranks[0], ALLREDUCE, [values(ranks[0], 5)], ["alone"])
        in_threads(ranks, lambda rank: rank.engine.shutdown())
        assert call.outcome() != [0]
        call.close()


def test_refused_operations_are_not_told():
    with engines(1) as (rank,):
        call = Call(rank, ALLREDUCE, [values(rank, 5)] * 2, ["same", "same"])
        assert call.code != 0
        assert call.times == 0


def test_unnamed_operations_pair_by_their_order_and_a_refused_one_uses_no_number():
    """Under one number a group is agreed on as a whole; names show in the flight record."""

    def body(rank: Rank) -> str:
        assert rank.allreduce(None, values(rank, 2))[0] == 3
        if rank.rank == 0:
            with pytest.raises(hvdlite.InvalidArgumentError):
                rank.allreduce(None, values(rank, 2), root=0, process_set=9)
        group = Call(rank, ALLREDUCE, [values(rank, 2), values(rank, 3)], [None, None], grouped=True)
        assert group.outcome() == [0, 0]
        group.close()
        apart = Call(rank, ALLREDUCE, [values(rank, 2), values(rank, 3)], [None, None])
        assert apart.outcome() == [0, 0]
        apart.close()
        assert rank.allgather(None, values(rank, rank.rank + 1)).tolist() == [1, 2, 2]
        return rank.engine.flight_record()

    with engines(2) as ranks:
        for record in in_threads(ranks, body):
            for name in ("noname.0", "noname.1_1of2", "noname.1_2of2", "noname.2", "noname.3"):
                assert f"allreduce of '{name}'" in record
            assert "allgather of 'noname.0'" in record


def test_unnamed_operations_count_anew_after_a_join():
    def body(rank: Rank) -> None:
        for _ in range(1 + rank.rank):
            handle = rank.start(ALLREDUCE, None, array := values(rank, 2), array)
            if rank.rank == 0:
                handle.result()
        if rank.rank == 1:
            handle.result()
        rank.join()
        assert rank.allreduce(None, values(rank, 2))[0] == 3

    with engines(2) as ranks:
        in_threads(ranks, body)


def test_unnamed_operations_of_one_call_are_alike():
    with engines(1) as (rank,):
        requests = [
            (ALLREDUCE, None, FLOAT32, (1,), *[values(rank, 1)] * 2),
            (ALLGATHER, None, FLOAT32, (1,), values(rank, 1), 0),
        ]
        with pytest.raises(hvdlite.InvalidArgumentError, match="of one kind on one process set"):
            rank.engine.submit(requests)


def test_a_request_of_a_prepared_group_needs_a_name():
    with engines(1) as (rank,), pytest.raises(hvdlite.InvalidArgumentError, match="request of a prepared group needs a name"):
        rank.engine.prepare([(ALLREDUCE, None, FLOAT32, (1,), 0, 0)])


def test_the_current_engine_ends_with_its_shutdown_but_stays_for_those_who_have_it():
    with engines(1) as (rank,):
        rank.engine.make_current()
        held = ctypes.c_void_p(CORE.hvdlite_current_engine())
        rank.engine.shutdown()
        assert CORE.hvdlite_current_engine() is None
        assert b"use hvd.init()" in CORE.hvdlite_last_error()
        work = ctypes.c_int64()
        request = Request(kind=ALLREDUCE, dtype=FLOAT32, op=SUM, device=-1, name=b"late", prescale=1, postscale=1)
        array = values(rank, 1)
        request.input = request.output = array.ctypes.data
        what = Submission(requests=ctypes.pointer(request), count=1, wake=1)
        assert CORE.hvdlite_submit(held, ctypes.byref(what), ctypes.byref(work)) == NOT_INITIALIZED
        CORE.hvdlite_engine_destroy(held)


def test_a_submission_of_nothing_is_refused():
    with engines(1) as (rank,):
        rank.engine.make_current()
        engine, work = ctypes.c_void_p(CORE.hvdlite_current_engine()), ctypes.c_int64()
        assert CORE.hvdlite_submit(engine, ctypes.byref(Submission()), ctypes.byref(work)) == INVALID_ARGUMENT
        assert b"nothing to submit" in CORE.hvdlite_last_error()
        CORE.hvdlite_engine_destroy(engine)


def test_results_are_aligned_for_frameworks():
    with engines(1) as (rank,):
        for size in (1, 63, 64, 1000, 1 << 20, (1 << 20) + 1):
            assert np.frombuffer(rank.engine.new_output(size), np.uint8).ctypes.data % 64 == 0


_FORKS = """
import ctypes, os, signal, sys, threading

core = ctypes.CDLL(sys.argv[1])
ended = False


def ask():
    while not ended:
        core.hvdlite_current_engine()


threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()
statuses = set()
for _ in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # only turns a hang into a failure
        core.hvdlite_current_engine()
        os._exit(0)
    statuses.add(os.waitpid(child, 0)[1])
    if statuses != {0}:
        break
ended = True
sys.exit(statuses != {0})
"""


def test_a_forked_child_may_ask_for_the_engine_while_other_threads_of_its_parent_ask():
    subprocess.run([sys.executable, "-c", _FORKS, CORE._name], timeout=2 * DEADLINE, check=True)
