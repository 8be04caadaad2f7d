"""hvdlite: data-parallel training over MPI, with Horovod's interface.

``import hvdlite`` loads neither MPI nor the native engine nor any framework: every name below is fetched from its
module when it is first used. `hvdlite.init` starts MPI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hvdlite._version import __version__

if TYPE_CHECKING:
    from hvdlite.backends import DeviceArray
    from hvdlite.basics import (
        ccl_built,
        child_environment,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rank,
        rocm_built,
        shutdown,
        size,
        stall_limit,
        start_timeline,
        stop_timeline,
    )
    from hvdlite.compression import Compression
    from hvdlite.errors import (
        AbortedError,
        HorovodInternalError,
        HvdliteError,
        InternalError,
        InvalidArgumentError,
        MismatchError,
        NotInitializedError,
        OperationTimeoutError,
        PeerLostError,
        SystemFailure,
        UnsupportedError,
    )
    from hvdlite.handles import Handle
    from hvdlite.launcher.functions import run
    from hvdlite.objects import allgather_object, broadcast_object
    from hvdlite.ops import (
        Adasum,
        Average,
        Max,
        Min,
        Product,
        Sum,
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from hvdlite.point_to_point import P2POp, Received, batch, irecv, isend, recv, recv_object, send, send_object
    from hvdlite.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
    from hvdlite.usage import Stats, gather_stats, mark_step, stats

__all__ = [
    "AbortedError",
    "Adasum",
    "Average",
    "Compression",
    "DeviceArray",
    "Handle",
    "HorovodInternalError",
    "HvdliteError",
    "InternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "OperationTimeoutError",
    "P2POp",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "Received",
    "Stats",
    "Sum",
    "SystemFailure",
    "UnsupportedError",
    "__version__",
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
    "ccl_built",
    "child_environment",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
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
    "run",
    "send",
    "send_object",
    "shutdown",
    "size",
    "stall_limit",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]

_MODULES = (
    *("errors", "basics", "process_sets", "handles", "ops", "objects", "point_to_point", "compression", "usage"),
    *("backends", "launcher.functions"),
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module_name in _MODULES:
            module = import_module(f"hvdlite.{module_name}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'hvdlite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
