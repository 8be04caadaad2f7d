"""The names of ``horovod.tensorflow.keras.callbacks``: those of `hvdlite.keras.callbacks`.

Only the arguments of `BestModelCheckpoint` have another order.
"""

from typing import Any

from hvdlite.keras import callbacks as _callbacks
from hvdlite.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    ConsistencyCheckCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MarkStepCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "ConsistencyCheckCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MarkStepCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(_callbacks.BestModelCheckpoint):
    """`hvdlite.keras.callbacks.BestModelCheckpoint`, with the arguments in the order of ``horovod.tensorflow.keras``."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        super().__init__(monitor, verbose, mode, save_freq, save_weights_only=save_weights_only, filepath=filepath)
