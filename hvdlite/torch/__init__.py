"""hvdlite for PyTorch: the names of ``horovod.torch``.

    import hvdlite.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Nothing here is compiled against torch: any version from 2.1 on will do, and it can be upgraded freely.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401 - only to say clearly that it is missing
except ImportError as error:
    raise ImportError(f"hvdlite.torch needs PyTorch, which cannot be imported ({error}): pip install torch") from error

from hvdlite import (
    Adasum,
    Average,
    Compression,
    Handle,
    HorovodInternalError,
    Max,
    Min,
    P2POp,
    ProcessSet,
    Product,
    Received,
    Sum,
    add_process_set,
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    batch,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gather_stats,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    init,
    irecv,
    is_homogeneous,
    is_initialized,
    isend,
    join,
    local_rank,
    local_size,
    mark_step,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    recv_object,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    send_object,
    shutdown,
    size,
    stall_limit,
    start_timeline,
    stats,
    stop_timeline,
    synchronize,
)
from hvdlite.errors import missing_name
from hvdlite.torch import compression, elastic, functions, mpi_ops  # noqa: F401 - so that hvd.mpi_ops needs no import of its own
from hvdlite.torch.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
    sparse_allreduce_async,
)
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.point_to_point import recv, send
from hvdlite.torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

if TYPE_CHECKING:
    from hvdlite.torch import sync_batch_norm as sync_batch_norm
    from hvdlite.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "P2POp",
    "ProcessSet",
    "Product",
    "Received",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
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
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "irecv",
    "is_homogeneous",
    "is_initialized",
    "isend",
    "join",
    "local_rank",
    "local_size",
    "mark_step",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "recv",
    "recv_object",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "send",
    "send_object",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "stall_limit",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]


# Not public in Horovod, but within reach there.
_REMEDIES = {
    "_check_has_gpu": "use torch.cuda.is_available()",
    "check_extension": "import it from horovod.common.util",
}


def __getattr__(name: str) -> Any:
    # The only names that need torch's compiler, whose import takes as long as torch's.
    if name in ("SyncBatchNorm", "sync_batch_norm"):
        module = import_module("hvdlite.torch.sync_batch_norm")
        return module if name == "sync_batch_norm" else module.SyncBatchNorm
    raise missing_name(__name__, name, _REMEDIES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
