"""The names of ``horovod.tensorflow.keras.elastic``; `run` knows the errors of TensorFlow."""

from hvdlite.keras.elastic import CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback
from hvdlite.tensorflow.elastic import run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
