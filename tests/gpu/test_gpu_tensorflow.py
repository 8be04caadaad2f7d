"""TensorFlow's tensors on GPUs, reduced where they are, in the order of TensorFlow's stream."""

from contextlib import contextmanager

import pytest
from tensorflow_cases import *  # noqa: F403
from tensorflow_cases import operations

RANKS = (2,)
MORE_RANKS = (1,)
STAND_INS = ("fakes",)
ENVIRONMENT = {"HVDLITE_TENSORFLOW_GPU_STREAMS": "1"}
ALONE = True


@pytest.fixture
def in_gpu_memory():
    @contextmanager
    def watch():
        before = operations()
        yield
        assert operations() > before

    return watch
