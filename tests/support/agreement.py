"""How the ranks of a test agree: in turn each way that the engine has."""

import pytest
from support import thread_ranks


@pytest.fixture(params=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks agree in shared memory, or in messages through a coordinator: users see no difference."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    return request.param
