"""hvdlite as a backend of torch.distributed: for DDP and everything else that uses its collectives, with tensors in host memory
and on NVIDIA GPUs.

    import hvdlite.torch.distributed

    torch.distributed.init_process_group("hvdlite")  # under mpirun; no RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT needed
    model = torch.nn.parallel.DistributedDataParallel(model)

Rank, size and store come from hvdlite, which is initialised if needed (`hvdlite.torch.distributed.rendezvous`). If the four
variables or an `init_method` are given, torch uses them as usual; the ranks must then be the same as hvdlite's. hvdlite runs
the collectives and the messages from rank to rank (`hvdlite.torch.distributed.group`), with its error texts. A group uses the
process set of its ranks.

On a GPU, `Work.wait` does not wait for the GPU: it returns when the operation's work is enqueued, and orders the current
stream after it. torch's NCCL backend orders the stream in the same way.
"""

import torch.distributed as dist

if not dist.is_available():
    raise ImportError("hvdlite.torch.distributed needs a torch that was built with torch.distributed; this one was not")

from hvdlite.torch.distributed import callbacks
from hvdlite.torch.distributed.group import HvdliteProcessGroup, create_group
from hvdlite.torch.distributed.rendezvous import install

__all__ = ["BACKEND", "HvdliteProcessGroup"]

BACKEND = "hvdlite"

dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
install(BACKEND)
callbacks.install()
