"""Loss scaling and autocast on GPUs: the recipes of the CPU tests, an overflow on one rank included."""

import torch_reference  # noqa: F401 - sets the device
from test_amp import (  # noqa: F401
    test_autocast,
    test_backward_passes_per_step_with_a_scaler,
    test_compression_with_a_scaler,
    test_fused_optimizers_unscale_by_themselves,
    test_grad_scaler,
)

RANKS = (2,)
MORE_RANKS = ()  # one rank has nobody to average with
STAND_INS = ("host", "fakes, slow")
