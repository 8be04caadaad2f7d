"""Handles, over an engine whose operations end when the test has the other rank ask for them too."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.limits import eventually, interrupted
from support.requests import allreduce
from support.thread_ranks import engines, run_request

from hvdlite.backends.base import ROW_MAJOR, Exported
from hvdlite.errors import AbortedError, HorovodInternalError, InvalidArgumentError, MismatchError, NotInitializedError
from hvdlite.handles import Handle, poll, synchronize
from hvdlite.runtime import RUNTIME


class Pair:
    """Rank 0 has the handles, rank 1 ends their operations."""

    def __init__(self, ranks):
        self.engine, self._other = ranks[0].engine, ranks[1].engine
        self.ranks = ranks

    def start(self, *names, grouped=False, finish=None):
        """A handle of operations of these names, and a weak reference to the memory they are in."""
        memory = np.ones(2)
        finish = finish or (lambda result, _memory=memory: result.contributors * 10)
        handle = Handle([finish] * len(names) if grouped else finish, grouped)
        self.engine.submit([allreduce(name, memory) for name in names], None, True, handle)
        return handle, weakref.ref(memory)

    def end(self, name, size=2):
        """Of another size: badly."""
        if size == 2:
            run_request(self._other, allreduce(name, np.ones(size)))
        else:
            with pytest.raises(MismatchError):
                run_request(self._other, allreduce(name, np.ones(size)))


@pytest.fixture
def pair(monkeypatch):
    with engines(2) as ranks:
        monkeypatch.setattr(RUNTIME, "engine", ranks[0].engine)
        yield Pair(ranks)


def test_nan_is_no_timeout(pair):
    handle, _ = pair.start("x")
    with pytest.raises(InvalidArgumentError, match=r"timeout=nan"):
        handle.synchronize(float("nan"))
    pair.end("x")
    assert handle.synchronize(60) == 20


def test_poll_and_synchronize(pair):
    handle, memory = pair.start("x")
    assert not poll(handle)
    pair.end("x")
    assert eventually(lambda: poll(handle))
    assert synchronize(handle) == 20
    assert poll(handle)
    assert synchronize(handle) is None
    assert memory() is None


def test_a_handle_stands_for_a_number(pair):
    handle, _ = pair.start("x")
    number = int(handle)
    assert handle == number > 0
    assert {handle: "x"}[number] == "x"
    assert range(number + 1)[handle] == number
    assert repr(handle) == f"<hvdlite.Handle {number}, in flight>"
    pair.end("x")
    handle.synchronize()
    assert repr(handle) == f"<hvdlite.Handle {number}, ended>"
    assert handle == number


def test_a_group_gives_a_list_in_order(pair):
    steps = [lambda result, place=place: place * result.contributors for place in range(3)]
    handle = Handle(steps, True)
    arrays = [np.ones(2) for _ in steps]
    pair.engine.submit([allreduce(f"x{place}", array) for place, array in enumerate(arrays)], None, True, handle)
    pair.end("x2")
    pair.end("x0")
    assert not handle.poll()
    pair.end("x1")
    assert eventually(handle.poll)
    assert handle.synchronize() == [0, 2, 4]


def test_an_empty_group(pair):
    handle, _ = pair.start(grouped=True)
    assert handle.poll()
    assert handle.synchronize() == []
    assert pair.engine.counters()["submitted"] == 0


def test_all_of_a_group_is_waited_for_and_the_first_error_raised_again_and_again(pair):
    handle, memory = pair.start("good", "four", "five", grouped=True)
    pair.end("five", size=5)
    assert not handle.poll()
    pair.end("four", size=4)
    pair.end("good")
    for _ in range(2):
        with pytest.raises(MismatchError, match="'four'"):
            handle.synchronize()
    assert handle.poll()
    del handle
    gc.collect()  # the error's traceback refers to it
    assert memory() is None


def test_memory_stays_for_good_after_a_failure_of_the_job(pair):
    handle, memory = pair.start("x")
    pair.ranks[1].engine.publish_failure("raised: for the test")
    for _ in range(2):
        with pytest.raises(HorovodInternalError, match="for the test"):
            handle.synchronize()
    del handle
    gc.collect()
    assert memory() is not None


def test_an_interrupted_wait_can_be_repeated(pair):
    handle, _ = pair.start("x")
    interrupted(handle.synchronize)
    with pytest.raises(TimeoutError):
        handle.synchronize(0.01)
    assert not handle.poll()
    pair.end("x")
    assert handle.synchronize() == 20


def test_a_step_that_is_interrupted_is_made_again_of_the_same_result(pair):
    results = []

    def finish(result):
        results.append(result)
        if len(results) == 1:
            raise KeyboardInterrupt
        return "output"

    handle, _ = pair.start("x", finish=finish)
    pair.end("x")
    with pytest.raises(KeyboardInterrupt):
        handle.synchronize()
    assert handle.synchronize() == "output"
    assert results[0] is results[1]


def test_memory_of_a_dropped_handle_is_kept_until_all_its_operations_ended(pair):
    handle, memory = pair.start("x", "y", grouped=True)
    del handle
    assert pair.engine.dropped_in_flight == 2
    pair.end("y")
    started, _ = pair.start("first")
    assert memory() is not None
    pair.end("x")
    pair.end("first")
    started.synchronize()  # comes after them
    submitted, _ = pair.start("second")
    assert memory() is None
    assert pair.engine.dropped_in_flight == 0
    pair.end("second")
    submitted.synchronize()


def test_a_handle_that_nobody_drops_but_the_garbage_collector_is_kept_too(pair):
    handle, memory = pair.start("x")
    handle._error = [handle]
    del handle
    gc.collect()
    assert memory() is not None
    assert pair.engine.dropped_in_flight == 1
    pair.end("x")


def test_memory_of_a_dropped_handle_stays_for_good_if_the_job_failed(pair):
    handle, memory = pair.start("x")
    del handle
    pair.ranks[1].engine.publish_failure("raised: for the test")
    assert eventually(lambda: pair.engine.failure_cause)
    with pytest.raises(HorovodInternalError):
        pair.start("y")
    assert pair.engine.dropped_in_flight == 0
    assert memory() is not None


def test_a_handle_outlives_its_engine(pair, monkeypatch):
    handle, _ = pair.start("x")
    monkeypatch.setattr(RUNTIME, "engine", None)
    with pytest.raises(NotInitializedError):
        handle.poll()
    monkeypatch.setattr(RUNTIME, "engine", pair.ranks[1].engine)
    with pytest.raises(InvalidArgumentError, match=r"from before hvdlite\.shutdown"):
        handle.synchronize()
    monkeypatch.setattr(RUNTIME, "engine", pair.engine)
    pair.engine.shutdown()
    with pytest.raises(AbortedError):
        handle.synchronize()


def test_a_number_is_no_handle(pair):
    with pytest.raises(InvalidArgumentError, match="7 is no handle: pass the object"):
        synchronize(7)
    with pytest.raises(InvalidArgumentError, match="None is no handle"):
        poll(None)


def test_a_handle_is_submitted_once(pair):
    handle, _ = pair.start("x")
    with pytest.raises(ValueError, match="submitted before"):
        pair.engine.submit([allreduce("y", np.ones(2))], None, True, handle)
    pair.end("x")
    assert handle.synchronize() == 20


def test_threads_that_wait_for_one_handle_get_its_output_once(pair):
    with ThreadPoolExecutor(3) as threads:
        for step in range(20):
            handle, _ = pair.start(f"x{step}")
            waits = [threads.submit(handle.wait) for _ in range(3)]
            pair.end(f"x{step}")
            for each in waits:
                each.result()
            assert handle.results() is handle.results()
            assert handle.synchronize() == 20


class Backend:
    """Tells the current streams of two GPUs."""

    def stream_now(self, exported):
        return {0: 71, 1: 0}[exported.device]


def on_gpu(device, stream):
    return Backend(), Exported(0, (), 0, device, ROW_MAJOR, None, stream)


def test_the_current_streams_come_after_an_operation_and_those_of_the_submission():
    assert Handle(None, False, [on_gpu(0, 70)])._streams() == (71, 70)
    assert Handle(None, False, [on_gpu(0, 71)])._streams() == (71,)
    assert Handle((), True, [on_gpu(0, 70), None, on_gpu(1, 0)])._streams() == (71, 70, 0)
    assert Handle((), True)._streams() == ()
