"""Handles and parked memory, over an engine that ends operations when the test says so."""

import gc
import math
import weakref

import pytest

from hvdlite.backends.base import ROW_MAJOR, Exported
from hvdlite.errors import AbortedError, HvdliteError, InvalidArgumentError, MismatchError, NotInitializedError, SystemFailure
from hvdlite.handles import Handle, poll, synchronize
from hvdlite.runtime import RUNTIME


class Engine:
    """Knows which operations have ended, and how."""

    def __init__(self):
        self.ended = {}
        self.waited = []
        self.limits = []
        self.ordered = []  # streams and the operations that they come after
        self.interrupt = None
        self.failure_cause = ""

    def poll(self, number):
        return number in self.ended

    def land(self, handle, limit):
        return NotImplemented  # these handles are not its own

    def wait_into(self, outcomes, number, limit=math.inf, streams=(), place=None):
        self.limits.append(limit)
        self.ordered += [(stream, number) for stream in streams]
        if self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            raise interrupt
        self.waited.append(number)
        outcomes.append(self.ended.pop(number))

    def wait_many(self, numbers, outcomes, streams=()):
        for number in numbers:
            self.wait_into(outcomes, number, streams=streams)
        return not any(isinstance(outcome, HvdliteError) for outcome in outcomes)


class Memory:
    """Stands for a tensor."""


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(RUNTIME, "engine", engine)
    monkeypatch.setattr(RUNTIME, "_kept", [])
    yield engine
    RUNTIME.parked.clear()


def make(engine, numbers=(7,), grouped=False):
    """A handle, and a weak reference to the memory it holds."""
    memory = Memory()

    def finish(result, _memory=memory):
        return result * 2

    return Handle(engine, list(numbers), [finish] * len(numbers), grouped), weakref.ref(memory)


def test_poll_and_synchronize(engine):
    handle, memory = make(engine)
    assert not poll(handle)
    engine.ended[7] = 21
    assert poll(handle)
    assert synchronize(handle) == 42
    assert poll(handle)
    assert synchronize(handle) is None
    assert memory() is None


def test_a_handle_stands_for_a_number(engine):
    handle, _ = make(engine)
    assert int(handle) == 7
    assert handle == 7
    assert {handle: "x"}[7] == "x"
    assert [0, 1, 2, 3, 4, 5, 6, "seventh"][handle] == "seventh"
    engine.ended[7] = 0
    handle.synchronize()


def test_a_group_gives_a_list_in_order(engine):
    handle, _ = make(engine, (3, 4, 5), grouped=True)
    engine.ended.update({5: 50, 3: 30})
    assert not handle.poll()
    engine.ended[4] = 40
    assert handle.poll()
    assert handle.synchronize() == [60, 80, 100]


def test_an_empty_group(engine):
    handle, _ = make(engine, (), grouped=True)
    assert handle.poll()
    assert handle.synchronize() == []


def test_all_of_a_group_is_waited_for_and_the_first_error_raised_again_and_again(engine):
    handle, memory = make(engine, (3, 4, 5), grouped=True)
    engine.ended.update({3: 30, 4: MismatchError("four"), 5: MismatchError("five")})
    for _ in range(2):
        with pytest.raises(MismatchError, match="four"):
            handle.synchronize()
    assert engine.waited == [3, 4, 5]
    del handle
    gc.collect()
    assert memory() is None


def test_memory_stays_for_good_after_a_failure_of_the_job(engine):
    handle, memory = make(engine)
    engine.ended[7] = AbortedError("rank 1 died")
    with pytest.raises(AbortedError):
        handle.synchronize()
    del handle
    gc.collect()
    assert memory() is not None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_wait_can_be_repeated(engine, interrupt):
    handle, _ = make(engine)
    engine.interrupt = interrupt()
    with pytest.raises(interrupt):
        handle.synchronize(2.5)
    assert not handle.poll()
    engine.ended[7] = 1
    assert handle.synchronize() == 2
    assert engine.limits == [2.5, math.inf]


def test_memory_of_a_dropped_handle_is_parked_until_the_operation_ended(engine):
    handle, memory = make(engine, (1, 2), grouped=True)
    del handle
    RUNTIME.require()
    assert memory() is not None
    engine.ended[2] = 0
    RUNTIME.require()
    assert memory() is not None
    engine.ended[1] = 0
    RUNTIME.require()
    assert memory() is None
    assert sorted(engine.waited) == [1, 2]


def test_memory_of_a_dropped_handle_stays_for_good_if_the_job_failed(engine):
    handle, memory = make(engine)
    del handle
    engine.ended[7] = AbortedError("rank 1 died")
    RUNTIME.require()
    assert not RUNTIME.parked
    assert memory() is not None


def test_a_handle_outlives_its_engine(engine, monkeypatch):
    handle, _ = make(engine)
    monkeypatch.setattr(RUNTIME, "engine", None)
    with pytest.raises(NotInitializedError):
        handle.poll()
    monkeypatch.setattr(RUNTIME, "engine", Engine())
    with pytest.raises(InvalidArgumentError, match=r"from before hvdlite\.shutdown"):
        handle.synchronize()


def test_a_number_is_no_handle(engine):
    with pytest.raises(InvalidArgumentError, match="7 is no handle: pass the object"):
        synchronize(7)
    with pytest.raises(InvalidArgumentError, match="None is no handle"):
        poll(None)


class Backend:
    """Tells the current streams of two GPUs."""

    def __init__(self):
        self.current = {0: 70, 1: 0}

    def stream_now(self, exported):
        return self.current[exported.device]


def on_gpu(backend, device, stream):
    return backend, Exported(0, (), 0, device, ROW_MAJOR, None, stream)


def test_the_current_stream_comes_after_an_operation_and_the_one_of_the_submission(engine):
    backend = Backend()
    handle = Handle(engine, [1], [lambda result: result], False, [on_gpu(backend, 0, 70)])
    backend.current[0] = 71
    engine.ended[1] = 0
    handle.synchronize()
    assert engine.ordered == [(71, 1), (70, 1)]


def test_members_of_a_group_are_followed_by_the_streams_of_their_own_gpus_only(engine):
    backend = Backend()
    places = [on_gpu(backend, 0, 70), None, on_gpu(backend, 1, 0)]
    handle = Handle(engine, [1, 2, 3], [lambda result: result] * 3, True, places)
    engine.ended.update({1: 0, 2: 0, 3: 0})
    handle.synchronize()
    assert engine.ordered == [(70, 1), (0, 3)]


def test_the_stream_of_the_submission_comes_after_a_dropped_operation(engine):
    backend = Backend()
    handle = Handle(engine, [1, 2], [lambda result: result] * 2, True, [on_gpu(backend, 0, 70), on_gpu(backend, 1, 0)])
    backend.current[0] = 71
    del handle
    engine.ended.update({1: 0, 2: 0})
    RUNTIME.require()
    assert engine.ordered == [(70, 1), (0, 2)]


def test_a_lost_gpu_keeps_the_memory_of_a_dropped_operation_and_disturbs_nobody(engine, monkeypatch):
    def lost(numbers, outcomes, streams=()):
        raise SystemFailure("cuStreamWaitEvent failed")

    monkeypatch.setattr(engine, "wait_many", lost)
    tensor = Memory()
    handle = Handle(engine, [1], [lambda result, tensor=tensor: tensor], False, [on_gpu(Backend(), 0, 70)])
    memory = weakref.ref(tensor)
    del handle, tensor
    engine.ended[1] = 0
    RUNTIME.require()
    assert not RUNTIME.parked
    assert memory() is not None


@pytest.mark.parametrize("cause", ["", "rank 1 is gone"])
def test_memory_of_a_dropped_handle_outlives_an_engine_that_failed(engine, monkeypatch, cause):
    """The transport may still write to it, whatever engine there is now."""
    handle, memory = make(engine)
    engine.failure_cause = cause
    monkeypatch.setattr(RUNTIME, "engine", Engine())
    del handle
    RUNTIME.require()
    assert not RUNTIME.parked
    assert (memory() is not None) == bool(cause)


def test_two_threads_may_look_for_parked_memory_at_once(engine, monkeypatch):
    handle, _ = make(engine)
    del handle

    def poll(number):
        raise InvalidArgumentError(f"handle {number} is unknown")  # the other thread has released it

    monkeypatch.setattr(engine, "poll", poll)
    RUNTIME.require()


def test_ctrl_c_in_a_dropped_handle_frees_nothing_and_is_not_lost(engine, monkeypatch):
    def park(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RUNTIME, "park", park)
    handles, memories = zip(*(make(engine) for _ in range(2)), strict=True)
    held = list(handles)
    del handles
    with pytest.raises(KeyboardInterrupt):
        held.clear()
    assert all(memory() is not None for memory in memories)
