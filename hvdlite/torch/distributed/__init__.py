"""hvdlite as a backend of torch.distributed: DDP and whatever else is built on its collectives, for tensors in host memory
and on NVIDIA GPUs.

    import hvdlite.torch.distributed

    torch.distributed.init_process_group("hvdlite")  # under mpirun; no RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT needed
    model = torch.nn.parallel.DistributedDataParallel(model)

Rank, size and store come from hvdlite, which is initialised if it is not yet (`hvdlite.torch.distributed.rendezvous`).
Where the four variables or an `init_method` are given torch does as ever; the ranks must be MPI's then. The collectives
and the messages from rank to rank (`hvdlite.torch.distributed.group`) are hvdlite's, with its error texts; a group is a
process set of its own.

On a GPU `Work.wait` does not wait for it but puts the current stream after the operation, as torch's NCCL backend does.
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
