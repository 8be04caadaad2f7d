"""hvdlite for TensorFlow: the names of ``horovod.tensorflow``.

    import hvdlite.tensorflow as hvd

    hvd.init()
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def train_step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = compute_loss(model(inputs, training=True), targets)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

For ``model.fit`` there is `hvdlite.keras`. Nothing here is compiled against TensorFlow: any version from 2.13 on will
do, and it can be upgraded freely.
"""

from typing import TYPE_CHECKING, Any

try:
    import tensorflow as _tf  # noqa: F401 - only to say clearly that it is missing
except ImportError as error:
    raise ImportError(
        f"hvdlite.tensorflow needs TensorFlow, which cannot be imported ({error}): pip install tensorflow"
    ) from error

from hvdlite import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
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
from hvdlite.errors import missing_name
from hvdlite.tensorflow import compression, elastic, functions, mpi_ops, util  # noqa: F401 - so that hvd.mpi_ops needs no import of its own
from hvdlite.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from hvdlite.tensorflow.mpi_ops import _allreduce  # noqa: F401
from hvdlite.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from hvdlite.tensorflow.optimizer import DistributedOptimizer, _DistributedAdasumOptimizer, _DistributedOptimizer  # noqa: F401
from hvdlite.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape, _DistributedGradientTape  # noqa: F401
from hvdlite.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, gpu_available, refs_to_vars, vars_to_refs  # noqa: F401

if TYPE_CHECKING:
    from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
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
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mark_step",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "stall_limit",
    "start_timeline",
    "stats",
    "stop_timeline",
]


# Not public in Horovod, but within reach there.
_REMEDIES = {
    "LocalGradientAggregationHelper": "pass backward_passes_per_step to DistributedOptimizer",
    "_allreduce_cond": "call allreduce, on the ranks of the process set only",
    "_grouped_allreduce": "call grouped_allreduce with op=hvd.Sum",
    "_grouped_allreduce_cond": "call grouped_allreduce, on the ranks of the process set only",
    "_grouped_reducescatter": "call grouped_reducescatter with op=hvd.Sum",
    "_make_allreduce_grads_fn": "reduce gradients with grouped_allreduce, or let DistributedGradientTape do it",
    "_make_cached_allreduce_grads_fn": "reduce gradients with grouped_allreduce, or let DistributedGradientTape do it",
    "_reducescatter": "call reducescatter with op=hvd.Sum",
    "check_num_rank_power_of_2": "use num_rank_is_power_2 of horovod.common.util",
    "handle_average_backwards_compatibility": "use get_average_backwards_compatibility_fun of horovod.common.util",
    "split_list": "import it from horovod.common.util",
}


def __getattr__(name: str) -> Any:
    # The only name that needs Keras, whose import takes long.
    if name == "SyncBatchNormalization":
        from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise missing_name(__name__, name, _REMEDIES)
