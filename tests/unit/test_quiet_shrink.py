"""MPI makes the communicator of the living ranks while nothing else of hvdlite calls MPI."""

from hvdlite import runtime
from hvdlite.elastic import recovery


class Pausing:
    """An engine or a job that records its pauses."""

    def __init__(self, name, events):
        self._name, self._events = name, events

    def pause(self):
        self._events.append(f"pause {self._name}")

    def resume(self):
        self._events.append(f"resume {self._name}")


def test_mpi_shrinks_a_communicator_while_no_other_thread_of_hvdlite_calls_it(monkeypatch):
    """Otherwise messages of Open MPI's agreement are spoilt now and then, and all processes crash."""
    events = []
    process = runtime.Runtime()
    process.engine, process._job = Pausing("engine", events), Pausing("job", events)
    process._other_jobs = [Pausing("earlier job", events)]
    monkeypatch.setattr(recovery, "RUNTIME", process)
    for exiting, function in (False, "shrink_in_thread"), (True, "shrink_at_exit"):
        events.clear()
        process.exiting = exiting
        monkeypatch.setattr(recovery, function, lambda *_: events.append("shrink"))
        recovery._shrink(None)
        assert events[:3] == ["pause engine", "pause earlier job", "pause job"]
        assert events[3:] == ["shrink", "resume job", "resume earlier job", "resume engine"]
