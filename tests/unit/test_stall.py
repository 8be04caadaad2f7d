"""Stalls: engines that wait for one that does not come."""

import re
import threading
import time

import numpy as np
import pytest
from support.limits import eventually
from support.thread_ranks import AVERAGE, engines, in_threads, run_ranks

import hvdlite
from hvdlite import watchdog
from hvdlite.errors import HorovodInternalError, InvalidArgumentError, NotInitializedError, PeerLostError

WARNING = 3
KNOBS = {"deadlock_timeout": 0.0, "log_level": WARNING, "log_timestamps": 0, "stall_shutdown_time_seconds": 0.0}


class Heard:
    """What has been written to stderr so far."""

    def __init__(self, capfd):
        self._capfd = capfd
        self.text = ""

    def lines(self, word="stall: "):
        self.text += self._capfd.readouterr().err
        return [line for line in self.text.splitlines() if word in line]


@pytest.mark.parametrize("hosts", [None, [0, 0, 1]], ids=["one host", "two hosts"])
def test_one_line_for_many_tensors_and_then_all_goes_on(capfd, hosts):
    heard = Heard(capfd)
    arrived = threading.Event()

    def body(rank):
        arrays = [np.full(3, rank.rank + i, np.float64) for i in range(200)]
        if rank.rank == 2:
            assert eventually(heard.lines)
            time.sleep(0.8)  # in which nothing more is said
            arrived.set()
        handles = [rank.start(0, f"t{i}", array, array, op=AVERAGE) for i, array in enumerate(arrays)]
        for handle in handles:
            rank.engine.wait(handle)
        return arrays[199][0]

    with engines(3, {**KNOBS, "stall_check_time_seconds": 0.3}, hosts) as ranks:
        assert in_threads(ranks, body) == [200.0] * 3
    lines = heard.lines()
    assert len(lines) == 1, heard.text
    assert re.search(r"allreduce of 't0' in process set 0, .*and 197 more operations have waited 0\.\d s for rank 2", lines[0])
    assert "which has not submitted them" in lines[0]


def test_its_end_is_told_at_level_info(capfd):
    heard = Heard(capfd)

    def body(rank):
        if rank.rank == 0:
            assert eventually(heard.lines)
        rank.barrier("b")
        if rank.rank == 1:
            assert eventually(lambda: heard.lines("went on"))

    run_ranks(2, body, {**KNOBS, "log_level": 2, "stall_check_time_seconds": 0.2})
    (line,) = heard.lines("went on")
    assert re.search(r"INFO \[control rank 1/2\] stall: went on after \d+\.\d s: barrier of 'b'", line)


@pytest.mark.parametrize("hosts", [None, [0, 1, 2]], ids=["one host", "three hosts"])
def test_in_the_end_all_ranks_give_up_with_one_text(capfd, hosts):
    done = threading.Event()

    def body(rank):
        if rank.rank == 1:
            done.wait(60)  # it comes back to life when all is over
        try:
            rank.allreduce("x", np.ones(3))
        except PeerLostError as error:
            return str(error)
        finally:
            done.set()
        return ""

    knobs = {**KNOBS, "stall_check_time_seconds": 0.0, "stall_shutdown_time_seconds": 0.5}
    with engines(3, knobs, hosts) as ranks:
        texts = set(in_threads(ranks, body))
    assert len(texts) == 1, texts
    text = texts.pop()
    assert re.match(
        r"rank 0 gave up after 0\.5 s \(HVDLITE_STALL_SHUTDOWN_TIME_SECONDS\): allreduce of 'x' in process set 0", text
    )
    assert "for rank 1, which has not submitted it" in text
    assert text.endswith("Horovod has been shut down")
    assert "last operations of this rank" in capfd.readouterr().err


def test_of_a_process_set_only_its_members_matter(capfd):
    heard = Heard(capfd)

    def body(rank):
        chosen = rank.add_process_set([0, 2])
        if rank.rank == 2:
            assert eventually(heard.lines)
        if rank.rank != 1:
            rank.allreduce("x", np.ones(3), process_set=chosen)

    run_ranks(3, body, {**KNOBS, "stall_check_time_seconds": 0.2})
    (line,) = heard.lines()
    assert "allreduce of 'x' in process set 1 has waited" in line
    assert "for rank 2" in line
    assert "rank 1" not in line.partition("] ")[2]


def test_who_is_missing_says_where_it_is(capfd):
    heard = Heard(capfd)

    def body(rank):
        if rank.rank == 1:
            thread = threading.Thread(target=watch, args=(rank,))
            thread.start()
            assert eventually(heard.lines)
        rank.barrier("b")
        if rank.rank == 1:
            rank.engine.shutdown()
            thread.join(30)
            assert not thread.is_alive()

    def watch(rank):
        while rank.engine.await_question():
            rank.engine.tell_whereabouts("it is at\nhome")

    run_ranks(2, body, {**KNOBS, "stall_check_time_seconds": 0.2})
    (line,) = heard.lines()
    assert "for rank 1, which has not submitted it: it is at home" in line


def test_a_watchdog_that_cannot_run_python_is_told_of(capfd):
    heard = Heard(capfd)

    def body(rank):
        if rank.rank == 1:
            thread = threading.Thread(target=rank.engine.await_question)  # and never tells
            thread.start()
            assert eventually(heard.lines)
            thread.join(30)
        rank.barrier("b")

    run_ranks(2, body, {**KNOBS, "stall_check_time_seconds": 0.2})
    (line,) = heard.lines()
    assert "native code holds Python's GIL" in line


def test_an_excuse_holds_warning_and_limit_back(capfd):
    heard = Heard(capfd)

    def body(rank):
        if rank.rank == 1:
            rank.engine.excuse(1000.0)
            time.sleep(1.5)
            assert not heard.lines()
            rank.engine.excuse(0.0)
            assert eventually(heard.lines)
        try:
            rank.allreduce("x", np.ones(3))
        except HorovodInternalError:
            return False
        return True

    knobs = {**KNOBS, "stall_check_time_seconds": 0.2, "stall_shutdown_time_seconds": 1.0}
    # It may take longer on a busy machine than the limit allows from the end of the excuse on.
    results = run_ranks(2, body, knobs)
    assert results in ([True, True], [False, False])
    assert len([line for line in heard.lines() if "WARN" in line]) == 1


def test_where_the_main_thread_is():
    def somewhere():
        return watchdog.where_is_main()

    text = somewhere()
    assert re.match(
        r"its main thread is at .* > unit/test_stall\.py:\d+ somewhere > hvdlite/watchdog\.py:\d+ where_is_main$", text
    )

    def deep(depth):
        return deep(depth - 1) if depth else watchdog.where_is_main()

    assert deep(100).startswith("its main thread is at ... > ")
    assert deep(100).count(" deep") < 20
    assert "\n" not in text


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e10, "60", None])
def test_stall_limit_refuses_what_is_no_time(seconds):
    with pytest.raises(InvalidArgumentError, match=r"stall_limit\(.*\): seconds is a number above 0"):
        hvdlite.stall_limit(seconds)


def test_stall_limit_needs_an_engine():
    with pytest.raises(NotInitializedError):
        hvdlite.stall_limit(60)
