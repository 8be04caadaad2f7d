"""The initialised ``hvdlite.torch``, in place of the package itself."""

import pytest
import torch


@pytest.fixture(scope="session")
def hvd():
    import hvdlite.torch

    hvdlite.torch.init()
    torch.set_num_threads(1)
    return hvdlite.torch
