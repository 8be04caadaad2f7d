"""hvdlite for PyTorch: the names of ``horovod.torch``.

    import hvdlite.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

No part of hvdlite is compiled against torch: every version of torch from 2.1 on works, and a new version of torch needs no new
build of hvdlite.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401 - only to say clearly that it is missing
except ImportError as error:
    raise ImportError(f"hvdlite.torch needs PyTorch, which cannot be imported ({error}): pip install torch") from error

from hvdlite import basics, process_sets, usage
from hvdlite import ops as plain_ops
from hvdlite import point_to_point as messages
from hvdlite.basics import *
from hvdlite.compression import Compression
from hvdlite.errors import HorovodInternalError, missing_name
from hvdlite.handles import Handle
from hvdlite.ops import *
from hvdlite.point_to_point import *
from hvdlite.process_sets import *
from hvdlite.torch import compression, elastic, functions, mpi_ops, ops, state  # noqa: F401 - so that hvd.mpi_ops needs no import of its own
from hvdlite.torch.consistency import check_consistency
from hvdlite.torch.ops import *  # after hvdlite.ops: these have gradients
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.point_to_point import *  # type: ignore[assignment]  # after hvdlite.point_to_point: these have gradients
from hvdlite.torch.state import *
from hvdlite.usage import *

if TYPE_CHECKING:
    from hvdlite.torch import sync_batch_norm as sync_batch_norm
    from hvdlite.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "SyncBatchNorm",
    "check_consistency",
    "elastic",
]
__all__ += basics.__all__
__all__ += messages.__all__
__all__ += ops.__all__
__all__ += plain_ops.__all__
__all__ += process_sets.__all__
__all__ += state.__all__
__all__ += usage.__all__


# Private names of Horovod that some programs import, and that hvdlite does not have. For each name, what to use instead.
_REMEDIES = {
    "_check_has_gpu": "use torch.cuda.is_available()",
    "check_extension": "import it from horovod.common.util",
}


def __getattr__(name: str) -> Any:
    # These names are imported on demand: only they need torch's compiler, whose import takes as long as the import of torch.
    if name in ("SyncBatchNorm", "sync_batch_norm"):
        module = import_module("hvdlite.torch.sync_batch_norm")
        return module if name == "sync_batch_norm" else module.SyncBatchNorm
    raise missing_name(__name__, name, _REMEDIES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
