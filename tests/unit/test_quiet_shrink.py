"""MPI makes the communicator of the living ranks while the engine does not call MPI."""

from hvdlite import runtime
from hvdlite.elastic import recovery


class Pausing:
    """An engine that records its pauses."""

    def __init__(self, events):
        self._events = events

    def pause(self):
        self._events.append("pause")

    def resume(self):
        self._events.append("resume")


def test_mpi_shrinks_a_communicator_while_the_engine_does_not_call_it(monkeypatch):
    """Otherwise messages of Open MPI's agreement are spoilt now and then, and all processes crash."""
    events = []
    process = runtime.Runtime()
    monkeypatch.setattr(recovery, "RUNTIME", process)
    monkeypatch.setattr(recovery, "shrink_in_thread", lambda *_: events.append("shrink"))
    process.engine = Pausing(events)
    recovery._shrink(None)
    process.engine = None
    recovery._shrink(None)
    assert events == ["pause", "shrink", "resume", "shrink"]
