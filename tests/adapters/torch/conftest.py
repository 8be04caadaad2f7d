"""The initialised ``hvdlite.torch``, in place of the package itself."""

import pytest
import torch


@pytest.fixture(scope="session")
def hvd():
    """Buckets are tiny, so that the tests' small models have several of each kind."""
    import hvdlite.torch
    from hvdlite.runtime import RUNTIME

    hvdlite.torch.init(process_sets="dynamic")
    RUNTIME.config = RUNTIME.config.replace(bucket_bytes=400, first_bucket_bytes=100)
    torch.set_num_threads(1)
    return hvdlite.torch
