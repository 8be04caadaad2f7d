"""What a test of one process draws from torch's own generator does not depend on the tests before it."""

import sys

import pytest
from support.leftovers import TORCH_SEED


@pytest.fixture(autouse=True)
def restarted_generator() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(TORCH_SEED)
