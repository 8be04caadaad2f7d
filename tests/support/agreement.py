"""How the ranks of a test agree: in turn each way that the engine has."""

import pytest
from support import thread_ranks


@pytest.fixture(params=["memory", "copies", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, in copies of a ledger, or in messages through a coordinator: users see none."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    monkeypatch.setitem(thread_ranks.COMMON, "ledger_copies", 16 if request.param == "copies" else 0)
    return request.param
