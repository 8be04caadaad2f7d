"""hvdlite as a backend of torch.distributed, for DDP, FSDP and all other code that calls torch.distributed's functions. Tensors
are in host memory or on NVIDIA GPUs.

    import hvdlite.torch.distributed

    torch.distributed.init_process_group("hvdlite")  # under hvdlite run, mpirun or torchrun
    model = torch.nn.parallel.DistributedDataParallel(model)

`init_process_group` initialises hvdlite if needed. Rank, size and store come from hvdlite
(`hvdlite.torch.distributed.rendezvous`), with two exceptions: torch takes them from the environment if RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are all set, as under torchrun, and from `init_method` if that is a URL such as ``tcp://``. In both
cases rank and size must equal hvdlite's. hvdlite runs the collectives and the messages from rank to rank
(`hvdlite.torch.distributed.group`), and raises its own errors. A group uses the process set of its ranks.

`Work.wait` of a collective on GPU tensors orders the current stream after the collective, as with torch's NCCL backend. If the
tensors travel by NCCL, `wait` does not wait for the GPU. If they go through host memory, `wait` waits until the ranks have
exchanged them there. After that, only the copy of the result to the GPU can still be running. A message with a GPU tensor
always goes through host memory, and `wait` of its send waits until the tensor has been received.
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
