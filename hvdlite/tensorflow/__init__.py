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

For ``model.fit`` use `hvdlite.keras`. hvdlite is not compiled against TensorFlow: it works with any version from 2.13 on, and a
new version of TensorFlow needs no new build of hvdlite.
"""

from typing import TYPE_CHECKING, Any

try:
    import tensorflow as _tf  # noqa: F401 - only for a clear error if it is missing
except ImportError as error:
    raise ImportError(
        f"hvdlite.tensorflow needs TensorFlow, which cannot be imported ({error}): pip install tensorflow"
    ) from error

from hvdlite import basics, process_sets, usage
from hvdlite.basics import *
from hvdlite.compression import Compression
from hvdlite.errors import missing_name
from hvdlite.point_to_point import recv_object, recv_object_list, send_object, send_object_list
from hvdlite.process_sets import *
from hvdlite.requests import Adasum, Average, Max, Min, Product, Sum
from hvdlite.tensorflow import compression, elastic, functions, mpi_ops, ops, point_to_point, util  # noqa: F401 - programs use hvd.mpi_ops without an import
from hvdlite.tensorflow.consistency import check_consistency
from hvdlite.tensorflow.functions import *
from hvdlite.tensorflow.mpi_ops import _allreduce  # noqa: F401
from hvdlite.tensorflow.ops import *
from hvdlite.tensorflow.optimizer import DistributedOptimizer, _DistributedAdasumOptimizer, _DistributedOptimizer  # noqa: F401
from hvdlite.tensorflow.point_to_point import *
from hvdlite.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape, _DistributedGradientTape  # noqa: F401
from hvdlite.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, gpu_available, refs_to_vars, vars_to_refs  # noqa: F401
from hvdlite.usage import *

if TYPE_CHECKING:
    from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["Adasum", "Average", "Compression", "Max", "Min", "Product", "Sum", "check_consistency", "elastic"]
__all__ += ["DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape", "SyncBatchNormalization"]
__all__ += ["recv_object", "recv_object_list", "send_object", "send_object_list"]
__all__ += basics.__all__
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += point_to_point.__all__
__all__ += process_sets.__all__
__all__ += usage.__all__


_MESSAGES = "use send or recv, or call hvdlite.{} with NumPy arrays, which hvdlite can write to"

# For each name that this door lacks, what to use instead: names for asynchronous messages, and names of Horovod that are not
# public, but that programs can import.
_REMEDIES = {
    **{name: _MESSAGES.format(name) for name in ("P2POp", "batch", "irecv", "isend")},
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
    # Only this name needs Keras, and importing Keras takes long.
    if name == "SyncBatchNormalization":
        from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise missing_name(__name__, name, _REMEDIES)
