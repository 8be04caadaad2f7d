"""A little of loss scaling and SyncBatchNorm, so that every change runs some of each: the files of their names take minutes on
the fakes, and run there only where slow tests do. Training is in test_gpu_torch_devices.py."""

import torch_reference  # noqa: F401 - sets the device
from test_amp import train, typical
from test_sync_batch_norm import Case, rows_of_ranks

from reference import sgd  # isort: skip

RANKS = (2,)
STAND_INS = ("fakes",)


def test_a_loss_scaler_whose_gradients_overflow_on_one_rank(hvd):
    train(hvd, typical, sgd, 1)


def test_synchronised_statistics_of_uneven_batches(hvd):
    Case(hvd, rows_of_ranks(hvd.size(), "uneven"), (4, 3)).step(1, 1e-12)
