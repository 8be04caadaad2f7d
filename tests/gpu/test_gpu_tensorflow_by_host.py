"""TensorFlow's tensors on GPUs, which TensorFlow copies to host memory and back: the way without any knob."""

from contextlib import contextmanager

import pytest
from tensorflow_cases import *  # noqa: F403
from tensorflow_cases import operations

RANKS = (2,)
MORE_RANKS = (1,)
ROUTES = ("staged",)
STAND_INS = ("fakes",)
ALONE = True


@pytest.fixture
def in_gpu_memory():
    @contextmanager
    def watch():
        yield
        assert operations() == 0

    return watch
