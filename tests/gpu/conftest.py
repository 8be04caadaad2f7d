"""What tests of GPU tensors share: the kinds of tensors, and hvdlite on them. support/gpu.py says on what the files run."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.gpu import MODE, pass_for_other_hosts

# The CPU tests of the torch door, which some files here run on GPUs.
sys.path.append(str(Path(__file__).parents[1] / "adapters" / "torch"))
pass_for_other_hosts()


@pytest.fixture(scope="session")
def mode():
    """On what the tests run: real, fakes or host."""
    return os.environ[MODE]


@pytest.fixture(scope="session")
def route():
    """How tensors get from rank to rank: nccl, staged, or host where they are not on GPUs at all."""
    return os.environ.get("HVDLITE_GPU_ROUTE", "host")


@pytest.fixture(scope="module")
def hvd():
    """The initialised ``hvdlite.torch`` with tiny buckets, or ``hvdlite`` where torch has no GPU."""
    import kinds

    if kinds.TORCH is None:
        import hvdlite

        hvdlite.init()
        return hvdlite
    import torch

    import hvdlite.torch
    import hvdlite.torch.arena
    from hvdlite.runtime import RUNTIME

    hvdlite.torch.init()
    RUNTIME.config = RUNTIME.config.replace(bucket_bytes=400, first_bucket_bytes=100)
    hvdlite.torch.arena.SMALLEST = 1
    torch.set_num_threads(1)
    return hvdlite.torch


KINDS = {"real": ["plain", "cupy", "torch"], "fakes": ["plain", "cupy", "torch"], "host": ["torch"]}


@pytest.fixture(params=KINDS[os.environ.get(MODE, "real")])
def kind(request, hvd):
    """A kind of tensor."""
    import kinds

    found = kinds.KINDS[request.param]
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def taken(hvd, route):
    """A context in which at least one operation on GPU memory must take the route that was asked for, and none the other."""
    from hvdlite.runtime import RUNTIME

    @contextmanager
    def watch(other_too=False):
        before = RUNTIME.require().counters()
        yield
        after = RUNTIME.require().counters()
        grown = {name: after[f"{name}_ops"] - before[f"{name}_ops"] for name in ("nccl", "staged")}
        if route == "host":
            assert not any(grown.values()), grown
        else:
            other = "staged" if route == "nccl" else "nccl"
            assert grown[route] > 0, grown
            assert other_too or not grown[other], grown

    return watch
