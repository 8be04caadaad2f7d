"""The initialised ``hvdlite.torch``, in place of the package itself."""

import pytest
import torch


@pytest.fixture(scope="module")
def hvd():
    """Buckets are tiny, so that the tests' small models have several of each kind; and tiny gradients have places too."""
    import hvdlite.torch
    import hvdlite.torch.arena
    from hvdlite.runtime import RUNTIME

    hvdlite.torch.init(process_sets="dynamic")
    RUNTIME.config = RUNTIME.config.replace(bucket_bytes=400, first_bucket_bytes=100)
    hvdlite.torch.arena.SMALLEST = 1
    torch.set_num_threads(1)
    return hvdlite.torch
