"""The names of ``horovod.tensorflow.keras``: those of `hvdlite.keras`. `DistributedOptimizer` has another argument order."""

from collections.abc import Sequence
from typing import Any

from hvdlite import basics, process_sets, usage
from hvdlite import keras as _keras
from hvdlite.basics import *
from hvdlite.compression import Compression
from hvdlite.keras import PartialDistributedOptimizer, check_consistency, load_model, values
from hvdlite.keras.values import *
from hvdlite.keras.variables import broadcast_global_variables, broadcast_variables
from hvdlite.process_sets import *
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Adasum, Average, Sum
from hvdlite.tensorflow.keras import callbacks, elastic
from hvdlite.usage import *

__all__ = ["Adasum", "Average", "Compression", "Sum", "callbacks", "check_consistency", "elastic", "load_model"]
__all__ += ["DistributedOptimizer", "PartialDistributedOptimizer", "broadcast_global_variables", "broadcast_variables"]
__all__ += basics.__all__
__all__ += process_sets.__all__
__all__ += usage.__all__
__all__ += values.__all__


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    auto_scale_loss: bool = True,
    start_check: str | None = None,
    shard: bool = False,
    weighted: bool = False,
) -> Any:
    """`hvdlite.keras.DistributedOptimizer`, with the arguments in the order of ``horovod.tensorflow.keras``."""
    return _keras.DistributedOptimizer(**locals())  # all arguments, by name
