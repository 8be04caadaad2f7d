"""SyncBatchNorm on GPUs: the CPU tests' cases, beside torch's own layer on the whole batch."""

import torch_reference  # noqa: F401 - sets the device
from test_sync_batch_norm import (  # noqa: F401
    test_a_converted_network_trains_like_one_process,
    test_channels_last,
    test_in_a_process_set,
    test_like_the_whole_batch,
    test_narrow_dtypes,
    test_options,
    test_ranks_that_have_joined_do_not_count,
)

RANKS = (2,)
MORE_RANKS = ()  # one rank has nobody to average with
STAND_INS = ("host", "fakes, slow")
