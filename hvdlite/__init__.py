"""hvdlite: data-parallel training over MPI, with Horovod's interface.

``import hvdlite`` loads neither MPI nor the native engine nor any framework: each public name is fetched from its
module when the name is first used. `hvdlite.init` starts MPI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hvdlite._version import __version__

if TYPE_CHECKING:
    from hvdlite.backends import *
    from hvdlite.basics import *
    from hvdlite.compression import *
    from hvdlite.consistency import *
    from hvdlite.errors import *
    from hvdlite.handles import *
    from hvdlite.launcher.functions import *
    from hvdlite.objects import *
    from hvdlite.ops import *
    from hvdlite.point_to_point import *
    from hvdlite.process_sets import *
    from hvdlite.usage import *

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
    "check_consistency",
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
    "recv_object_list",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "send",
    "send_object",
    "send_object_list",
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
    *("consistency", "backends", "launcher.functions"),
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
