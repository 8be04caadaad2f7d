"""Gives torch.distributed its ranks and its store. hvdlite connects the processes, so torch needs no environment variables.

`init_process_group` asks a handler for a store, the rank and the size before it makes a group. hvdlite's handler
(``hvdlite://``) takes rank and size from hvdlite. It also replaces ``env://``, the default of all backends, if torch's own
handler would fail because the environment lacks a variable. If RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set, as
under torchrun, torch's own handler is used.

The store must answer any rank at any time, even while no other rank makes a call, so it cannot use collectives. hvdlite's
collectives do not need the store. torch needs it for the barrier after a new group, and for groups of other backends (gloo). On
one host the store is a file in a private folder, without a listening port; across hosts it is torch's TCPStore, on a port of
rank 0's host that the system chooses. All hosts must be able to resolve the name of rank 0's host.
"""

import importlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed

from hvdlite import basics
from hvdlite.config import folder_of_torchrun_job, lacks_torch_variables
from hvdlite.errors import InvalidArgumentError
from hvdlite.objects import broadcast_object
from hvdlite.own_folder import folder_until_exit

_TIMEOUT = timedelta(minutes=30)  # torch's default for all backends but NCCL

# torch's stubs lack some of these names.
dist: Any = torch.distributed

Store = Any
_Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def install(scheme: str) -> None:
    """Registers the handler for URLs of this scheme, and for ``env://`` if the environment lacks a variable for it."""
    dist.register_rendezvous_handler(scheme, _rendezvous)
    # Without a replacement of torch's handler for env://, a script would have to pass init_method="hvdlite://". The table of
    # handlers is not part of torch's public interface.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, _Handler] = getattr(module, "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = _instead_of(handlers["env"])


def _instead_of(torch_handler: _Handler) -> _Handler:
    def from_environment(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        given = parse_qs(urlparse(url).query)
        handler = _rendezvous if lacks_torch_variables("rank" in given, "world_size" in given) else torch_handler
        return handler(url, **options)

    return from_environment


def _rendezvous(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yields store, rank and size. Collective over all ranks of the job."""
    if not basics.is_initialized():
        basics.init()
    rank, size = basics.rank(), basics.size()
    given = parse_qs(urlparse(url).query)
    check_place(int(given.get("rank", [rank])[0]), int(given.get("world_size", [size])[0]))
    yield make_store(basics.local_size() == size, timeout), rank, size
    raise RuntimeError("hvdlite:// cannot connect the ranks a second time: start the job again")


def check_place(rank: int, size: int) -> None:
    """Checks that torch.distributed and hvdlite number the ranks in the same way.

    Raises:
        InvalidArgumentError: torch.distributed was given another rank or size than hvdlite's.
    """
    if (rank, size) != (basics.rank(), basics.size()):
        raise InvalidArgumentError(
            f"torch.distributed was given rank {rank} and world size {size}, but this is rank {basics.rank()} of "
            f"{basics.size()} of hvdlite's job; start the script with hvdlite run or mpirun, and leave rank and world size out "
            "(or pass hvdlite.rank() and hvdlite.size())"
        )


def make_store(one_host: bool, timeout: timedelta) -> Store:
    """A store that all ranks of the job share. Collective over all of them."""
    size = basics.size()
    if one_host:
        path = broadcast_object(_new_file() if basics.rank() == 0 else None)
        store = dist.FileStore(path, size)
    else:
        server = None
        if basics.rank() == 0:
            host = socket.gethostname()
            server = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        address = broadcast_object((host, server.port) if server is not None else None)
        store = server or dist.TCPStore(*address, size, False, timeout)
    store.set_timeout(timeout)
    return store


def _new_file() -> str:
    """A path in a new folder that only this user may read. The folder is removed when this process ends.

    If this process is killed, the folder remains; but under torchrun, hvdlite's server of the node removes it.
    """
    return os.path.join(folder_until_exit("hvdlite-store-", folder_of_torchrun_job()), "store")
