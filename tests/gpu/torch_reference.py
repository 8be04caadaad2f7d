"""The reference of the torch door's CPU tests, on this rank's GPU (on the host where the tests are tested)."""

import pytest
import reference
from kinds import TORCH

if TORCH is None:
    pytest.skip("needs torch that can use the GPU", allow_module_level=True)

DEVICE = TORCH.device
reference.DEVICE = DEVICE
