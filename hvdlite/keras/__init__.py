"""hvdlite for Keras, on TensorFlow, torch or JAX: the names of ``horovod.keras``.

    import keras
    import hvdlite.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())), loss="mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], verbose=hvd.rank() == 0)

One adapter serves Keras 3 on its three backends, Keras 2, and tf_keras where ``TF_USE_LEGACY_KERAS=1`` makes it ``tf.keras``.
It imports the framework that Keras runs on, and no other.
"""

from hvdlite import (
    Adasum,
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gather_stats,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mark_step,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    stall_limit,
    start_timeline,
    stats,
    stop_timeline,
)
from hvdlite.keras import callbacks, elastic
from hvdlite.keras.models import load_model
from hvdlite.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvdlite.keras.values import allgather, allreduce, broadcast, reducescatter
from hvdlite.keras.variables import broadcast_global_variables, broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gather_stats",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mark_step",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "stall_limit",
    "start_timeline",
    "stats",
    "stop_timeline",
]
