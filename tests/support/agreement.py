"""A fixture that runs each test with every way in which the engine's ranks can agree."""

import pytest
from support import thread_ranks


@pytest.fixture(params=["memory", "copies", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, in copies of a ledger, or by messages through a coordinator, with the same results."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    monkeypatch.setitem(thread_ranks.COMMON, "ledger_copies", 16 if request.param == "copies" else 0)
    return request.param
