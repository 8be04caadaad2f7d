"""Signs of life between hosts where there is no engine: who is heard, who is not, and whose fault that is.

The clock is the test's own, and a thread looks as often as the test lets it.
"""

import threading
from collections import deque
from types import SimpleNamespace

import pytest

from hvdlite import other_hosts
from hvdlite.other_hosts import OtherHosts

DEADLINE = 120.0  # only turns a hang into a failure

DONE = SimpleNamespace(Test=lambda: True)


class Status:
    """Of a message; filled by Iprobe."""

    source = -1

    def Get_source(self) -> int:  # noqa: N802 - MPI's name
        return self.source


class Lost(Exception):
    """What this MPI raises where a process is lost."""


class World:
    """MPI_COMM_SELF, and what makes its keys: those who want to know of MPI's end before it comes."""

    def __init__(self):
        self.told = []

    def Create_keyval(self, delete_fn: object) -> object:  # noqa: N802 - MPI's name
        return delete_fn

    def Set_attr(self, key: object, value: object) -> None:  # noqa: N802 - MPI's name
        self.told.append(key)


SELF = World()
MPI = SimpleNamespace(Comm=SELF, COMM_SELF=SELF, ANY_SOURCE=-1, BYTE=None, REQUEST_NULL=DONE, Status=Status, Exception=Lost)


class Comm:
    """One process's end of a network that loses nothing."""

    def __init__(self, rank: int, boxes: dict[int, deque[int]]) -> None:
        self.rank, self.boxes, self.sent, self.raises = rank, boxes, 0, False

    def Isend(self, message: object, destination: int, tag: int) -> object:  # noqa: N802 - MPI's name
        self.boxes[destination].append(self.rank)
        self.sent += 1
        return DONE

    def Iprobe(self, source: int, tag: int, status: Status) -> bool:  # noqa: N802 - MPI's name
        if self.raises:
            raise Lost
        if self.boxes[self.rank]:
            status.source = self.boxes[self.rank][0]
        return bool(self.boxes[self.rank])

    def Recv(self, message: object, source: int, tag: int) -> None:  # noqa: N802 - MPI's name
        assert self.boxes[self.rank].popleft() == source


@pytest.fixture
def comms():
    boxes: dict[int, deque[int]] = {rank: deque() for rank in (0, 3, 5)}
    return {rank: Comm(rank, boxes) for rank in boxes}


class Turns:
    """What a thread of OtherHosts waits on between two looks: the test gives it turns, and is told when one is over."""

    def __init__(self):
        self._given, self._over = threading.Semaphore(0), threading.Semaphore(0)
        self._begun = self._ended = False

    def wait(self, seconds: float) -> bool:
        if self._begun:
            self._over.release()  # the turn before this
        self._begun = True
        assert self._given.acquire(timeout=DEADLINE)
        return self._ended

    def set(self) -> None:
        self._ended = True
        self._given.release()

    def give(self) -> None:
        """One turn, from its begin to its end."""
        self._given.release()
        assert self._over.acquire(timeout=DEADLINE)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(other_hosts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    threads = SimpleNamespace(Thread=threading.Thread, Lock=threading.Lock, Event=Turns)
    monkeypatch.setattr(other_hosts, "threading", threads)
    return now


def hosts_of(comms, limit):
    return {rank: OtherHosts(MPI, comm, [other for other in comms if other != rank], limit) for rank, comm in comms.items()}


def test_whoever_sends_is_heard_and_whoever_stops_is_silent(comms, clock):
    hosts = hosts_of(comms, limit=0.5)  # so each looks, and sends, every 0.05 s

    def pass_time(seconds, who):
        for _ in range(round(seconds / 0.05)):
            clock[0] += 0.05
            for rank in who:
                hosts[rank]._ended.give()

    pass_time(1.0, (0, 3, 5))
    assert all(each.silent(0.1) == [] for each in hosts.values())
    hosts[3].close()
    pass_time(0.5, (0, 5))
    assert hosts[0].silent(0.5) == hosts[5].silent(0.5) == []
    pass_time(0.1, (0, 5))
    assert hosts[0].silent(0.5) == [3]
    assert hosts[5].silent(0.5) == [3]
    assert hosts[3].silent(0.5) == [], "it no longer looks"
    for each in hosts.values():
        each.close()


def test_whoever_was_away_accuses_nobody_of_that_time(comms, clock):
    again = OtherHosts(MPI, comms[0], [3], limit=10.0)  # an interval of 2 s: its thread does not look meanwhile
    now = again._looked
    again._look(now + 3.0)
    assert again.silent(2.5) == [3]
    again._look(now + 60.0)
    assert again.silent(2.5) == [3]
    assert again.silent(4.0) == [], "57 s of these this process has slept"
    comms[3].Isend(None, 0, 0)
    again._look(now + 61.0)
    assert again.silent(0.0) == []
    again.close()


def test_a_sign_that_nobody_takes_is_not_sent_again(comms, clock):
    pending = SimpleNamespace(Test=lambda: False)
    taken = []
    comms[0].Isend = lambda *_: taken.append(1) or pending
    own = OtherHosts(MPI, comms[0], [3], limit=0.1)
    for _ in range(20):
        own._ended.give()
    own.close()
    assert len(taken) == 1


def test_the_thread_ends_before_mpi_does(comms):
    own = OtherHosts(MPI, comms[0], [3], limit=0.1)
    SELF.told[-1](None, None, own)
    assert not own._thread.is_alive()
    own.close()


def test_where_mpi_tells_of_a_loss_itself_the_thread_ends(comms):
    comms[0].raises = True
    own = OtherHosts(MPI, comms[0], [3], limit=0.1)
    own._thread.join(DEADLINE)
    assert not own._thread.is_alive()
    own.close()
