"""The names of ``horovod.tensorflow.keras.elastic``."""

from hvdlite.keras.elastic import CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
