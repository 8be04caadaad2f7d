"""The peers and the ceilings.

A *peer* is one library of this environment that can reduce arrays, or one way to use hvdlite. A *ceiling* is an operation on
memory, such as a copy: no allreduce of as many bytes can be faster.

A peer is made collectively, on all ranks or on none. All peers sum float32 arrays in memory of the benchmark; on a GPU the
arrays are tensors of torch. Over 400 lines, because it has one class for each library and mode.
"""

import importlib
import importlib.metadata
import importlib.util
import socket
import time
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hvdlite.bench import oneccl
from hvdlite.bench.machine import aligned_zeros
from hvdlite.bench.world import World
from hvdlite.config import from_environment, set_unless_set
from hvdlite.dtypes import code_of_name
from hvdlite.requests import Kind, Request, member_names, tensor_name
from hvdlite.runtime import RUNTIME

Array = NDArray[np.float32]


class Submissions:
    """Submits many tensors one by one, and then waits for all of them.

    Args:
        starts: functions that submit one tensor each and return its handle.
        finish: a function that waits for all handles; None if submitting a tensor already waits for its result.

    Attributes:
        submitted: the time in seconds that submitting all tensors took in the last `run`.
    """

    def __init__(self, starts: Iterable[Callable[[], Any]], finish: Callable[[list[Any]], Any] | None = None) -> None:
        self._starts = list(starts)
        self._finish = finish
        self.submitted = 0.0

    def run(self) -> None:
        """Submits all tensors and waits for them."""
        begun = time.perf_counter_ns()
        tokens = [start() for start in self._starts]
        self.submitted = (time.perf_counter_ns() - begun) / 1e9
        if self._finish is not None:
            self._finish(tokens)


class Peer(ABC):
    """One way to reduce arrays.

    Attributes:
        name: the name in the output and for ``--peers``.
        by_default: does the peer take part if ``--peers`` is not given?
        sums: is the result the sum over the ranks? A ceiling sums nothing.
    """

    name: ClassVar[str]
    by_default: ClassVar[bool] = True
    sums: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str | None:
        """The reason why the peer cannot be measured here; None if it can. The call is not collective and starts nothing."""
        return None

    def __init__(self, world: World) -> None:  # noqa: B027 - ceilings have nothing to start
        """Starts the peer. Collective."""

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        """A function that reduces the array and returns when the result is there; None if the peer has no such call.

        The function returns the result, or None if the result is in the array.
        """
        return None

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        """The reduction of many arrays in place; None if the peer has no such call."""
        return None

    def message(self, array: Array, other: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """A function that sends the array to the rank `other`, and a function that receives the array from that rank.

        Raises:
            NotImplementedError: the peer has no messages.
        """
        raise NotImplementedError(self.name)

    def version(self) -> str:
        """The version of the peer's software; empty if there is none."""
        return ""

    def close(self) -> None:  # noqa: B027 - most peers have nothing to stop
        """Stops what the constructor started. Collective."""


def installed(module: str, how: str) -> str | None:
    """None if a module can be imported; otherwise the reason, with the remedy `how`."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        found = False
    return None if found else f"{module} is not installed ({how})"


_NO_TORCH = "pip install torch"


# --- hvdlite and Horovod ----------------------------------------------------------------------------------------------


class _HorovodNames(Peer):
    """A module with Horovod's names, and with tensors of the module's framework."""

    def __init__(self, world: World) -> None:
        self._hvd, self._tensor = self._load()
        self._hvd.init()
        if self._hvd.size() != world.size:
            raise RuntimeError(f"{self.name} finds {self._hvd.size()} of {world.size} ranks; it uses another MPI, or none")

    def _load(self) -> tuple[Any, Callable[[Array], Any]]:
        """The module, and a function that makes a tensor which shares an array's memory."""
        if installed("torch", _NO_TORCH):
            return importlib.import_module("hvdlite"), lambda array: array
        return importlib.import_module("hvdlite.torch"), _torch_tensor

    def version(self) -> str:
        return str(importlib.metadata.version(self._hvd.__name__.split(".")[0]))


class _InPlace(_HorovodNames):
    """A module with Horovod's names, in place."""

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(self._hvd.allreduce_, self._tensor(array), op=self._hvd.Sum)

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        hvd, tensors = self._hvd, [self._tensor(array) for array in arrays]
        starts = [
            partial(hvd.allreduce_async_, tensor, name=f"bench.{len(arrays)}.{place}", op=hvd.Sum)
            for place, tensor in enumerate(tensors)
        ]
        return Submissions(starts, lambda handles: [hvd.synchronize(handle) for handle in handles])


class _Hvdlite(_InPlace):
    """hvdlite in place, through its door for torch, or for NumPy if torch is missing."""

    name = "hvdlite"

    def message(self, array: Array, other: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        tensor = self._tensor(array)
        return partial(self._hvd.send, tensor, other), partial(self._hvd.recv, tensor, other)


class _HvdliteOut(_HorovodNames):
    """hvdlite out of place: the result is a new tensor."""

    name = "hvdlite-out"

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(self._hvd.allreduce, self._tensor(array), op=self._hvd.Sum)


class _HvdliteNamed(_HorovodNames):
    """hvdlite in place, with a name that the user gives instead of an automatic one."""

    name = "hvdlite-named"
    by_default = False

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(self._hvd.allreduce_, self._tensor(array), name=f"bench.{array.nbytes}", op=self._hvd.Sum)


class _HvdliteNumpy(_Hvdlite):
    """hvdlite in place through its door for NumPy."""

    name = "hvdlite-numpy"
    by_default = False

    def _load(self) -> tuple[Any, Callable[[Array], Any]]:
        return importlib.import_module("hvdlite"), lambda array: array


class _HvdliteGrouped(_HorovodNames):
    """hvdlite with all tensors in one call."""

    name = "hvdlite-grouped"

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        hvd, tensors = self._hvd, [self._tensor(array) for array in arrays]
        start = partial(hvd.grouped_allreduce_async_, tensors, name=f"bench.group.{len(arrays)}", op=hvd.Sum)
        return Submissions([start], lambda handles: hvd.synchronize(handles[0]))


class _HvdliteEngine(_HorovodNames):
    """hvdlite's engine, without a door: each tensor is described by integers and a name."""

    name = "hvdlite-engine"
    by_default = False

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        engine, dtype = RUNTIME.require(), code_of_name("float32")
        starts = []
        for place, array in enumerate(arrays):
            name, address = tensor_name(Kind.ALLREDUCE, f"bench.engine.{len(arrays)}.{place}"), array.ctypes.data
            starts.append(partial(engine.submit, (Request(Kind.ALLREDUCE, name, dtype, array.shape, address, address),)))
        return Submissions(starts, lambda handles: engine.wait_many(handles, []))


class _HvdlitePrepared(_HorovodNames):
    """hvdlite with a prepared group: a submission has only the tensors' addresses, as in DistributedOptimizer."""

    name = "hvdlite-prepared"

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        engine = RUNTIME.require()
        label, size = f"bench.prepared.{len(arrays)}", len(arrays)
        names = [tensor_name(Kind.ALLREDUCE, name) for name in member_names(label, size)]
        dtype = code_of_name("float32")
        group = engine.prepare(
            [
                Request(Kind.ALLREDUCE, name, dtype, array.shape, group=label, group_size=size, group_index=place)
                for place, (name, array) in enumerate(zip(names, arrays, strict=True))
            ]
        )
        addresses = [array.ctypes.data for array in arrays]
        return Submissions(
            [lambda: engine.submit_prepared(group, addresses, (), False)], lambda handles: engine.wait_many(handles, [])
        )


class _Horovod(_InPlace):
    """Horovod in place, through its door for torch."""

    name = "horovod"

    @classmethod
    def missing(cls) -> str | None:
        return installed("torch", _NO_TORCH) or installed("horovod.torch", "https://horovod.readthedocs.io")

    def _load(self) -> tuple[Any, Callable[[Array], Any]]:
        return importlib.import_module("horovod.torch"), _torch_tensor

    def close(self) -> None:
        self._hvd.shutdown()


def _torch_tensor(array: Array) -> Any:
    """A tensor of torch with the memory of an array of NumPy. If `array` is a tensor of torch, as on a GPU, it is returned."""
    import torch

    return torch.as_tensor(array)


# --- MPI --------------------------------------------------------------------------------------------------------------


class _Mpi4py(Peer):
    """MPI_Allreduce in place; many tensors by MPI_Iallreduce and MPI_Waitall."""

    name = "mpi4py"

    def __init__(self, world: World) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD.Dup()

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(self._comm.Allreduce, self._mpi.IN_PLACE, [array, self._mpi.FLOAT])

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        mpi = self._mpi
        starts = [partial(self._comm.Iallreduce, mpi.IN_PLACE, [array, mpi.FLOAT]) for array in arrays]
        return Submissions(starts, mpi.Request.Waitall)

    def message(self, array: Array, other: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        memory = [array, self._mpi.FLOAT]
        return partial(self._comm.Send, memory, other), partial(self._comm.Recv, memory, other)

    def version(self) -> str:
        return str(self._mpi.Get_library_version().splitlines()[0].strip("\0 ").split(",")[0])

    def close(self) -> None:
        self._comm.Free()


class _Mpi4pyBlocking(_Mpi4py):
    """Many tensors by one MPI_Allreduce after the other."""

    name = "mpi4py-blocking"

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return None

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        mpi = self._mpi
        return Submissions(partial(self._comm.Allreduce, mpi.IN_PLACE, [array, mpi.FLOAT]) for array in arrays)


# --- torch.distributed ------------------------------------------------------------------------------------------------


def _distributed() -> Any:
    return importlib.import_module("torch.distributed")


def join_gloo(world: World) -> None:
    """Makes torch's default process group, on gloo, unless there is one. Collective."""
    _join_group(world, "gloo")


def _join_group(world: World, backend: str) -> None:
    """Makes torch's default process group, on `backend`, unless there is one. Collective."""
    dist = _distributed()
    if dist.is_initialized():
        return
    host = "127.0.0.1" if world.hosts == 1 else world.from_first(socket.gethostname())
    store = dist.TCPStore(host, 0, world.size, True, wait_for_workers=False) if world.rank == 0 else None
    port = world.from_first(store.port if store is not None else 0)
    store = store or dist.TCPStore(host, port, world.size, False)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)


def leave_groups() -> None:
    """Ends all process groups of torch. Collective."""
    dist = _distributed()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class _Gloo(Peer):
    """torch.distributed on gloo."""

    name = "gloo"

    @classmethod
    def missing(cls) -> str | None:
        if reason := installed("torch", _NO_TORCH):
            return reason
        dist = _distributed()
        return None if dist.is_available() and dist.is_gloo_available() else "this torch was built without gloo"

    def __init__(self, world: World) -> None:
        join_gloo(world)
        self._group = _distributed().group.WORLD

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        dist = _distributed()
        return partial(dist.all_reduce, _torch_tensor(array), group=self._group)

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        dist = _distributed()
        starts = [partial(dist.all_reduce, _torch_tensor(array), group=self._group, async_op=True) for array in arrays]
        return Submissions(starts, lambda works: [work.wait() for work in works])

    def message(self, array: Array, other: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        dist, tensor = _distributed(), _torch_tensor(array)
        return partial(dist.send, tensor, other, self._group), partial(dist.recv, tensor, other, self._group)

    def version(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def close(self) -> None:
        leave_groups()


# --- oneCCL -------------------------------------------------------------------------------------------------------------


class _OneCcl(Peer):
    """oneCCL's allreduce in place; many tensors by one call after the other."""

    name = "oneccl"

    @classmethod
    def missing(cls) -> str | None:
        return oneccl.missing()

    def __init__(self, world: World) -> None:
        hosts = world.everyone(socket.gethostname())
        mine = hosts[world.rank]
        set_unless_set(oneccl.settings(hosts[: world.rank].count(mine), hosts.count(mine), world.hosts == 1))
        self._comm = oneccl.Communicator(world.rank, world.size, world.from_first)

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(self._comm.sum, array.ctypes.data, array.size)

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        return Submissions(partial(self._comm.sum, array.ctypes.data, array.size) for array in arrays)

    def version(self) -> str:
        return self._comm.version()

    def close(self) -> None:
        self._comm.close()


# --- the ceilings -----------------------------------------------------------------------------------------------------


class _Memcpy(Peer):
    """Every rank copies the array to other memory: one load and one store of each byte."""

    name = "memcpy"
    sums = False

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(np.copyto, aligned_zeros(array.shape), array)

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        return Submissions(partial(np.copyto, aligned_zeros(array.shape), array) for array in arrays)


class _Rewrite(Peer):
    """Every rank negates the array in place: one load and one store of each byte, in half the memory of a copy."""

    name = "rewrite"
    sums = False

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        return partial(np.negative, array, array)

    def batch(self, arrays: Sequence[Array]) -> Submissions | None:
        return Submissions(partial(np.negative, array, array) for array in arrays)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


class _Routed(_HorovodNames):
    def version(self) -> str:
        return f"route {from_environment().values['gpu_route']}"


class _HvdliteOnGpu(_Routed, _Hvdlite):
    """hvdlite in place, through its door for torch."""


class _HvdliteOnGpuOut(_Routed, _HvdliteOut):
    """hvdlite out of place: the result is a new tensor."""


class _TorchNccl(_Gloo):
    """torch.distributed on NCCL."""

    name = "nccl"

    @classmethod
    def missing(cls) -> str | None:
        import torch

        dist = _distributed()
        if not (dist.is_available() and dist.is_nccl_available()):
            return "this torch was built without NCCL"
        return "ranks share a GPU" if RUNTIME.require_topology().local_size > torch.cuda.device_count() else None

    def __init__(self, world: World) -> None:
        _join_group(world, "nccl")
        self._group = _distributed().group.WORLD

    def version(self) -> str:
        import torch

        nccl: Any = torch.cuda.nccl
        return f"torch {torch.__version__}, NCCL {'.'.join(map(str, nccl.version()))}"


class _DeviceCopy(Peer):
    """The GPU copies the tensor to other memory."""

    name = "memcpy"
    sums = False

    def blocking(self, array: Array) -> Callable[[], Any] | None:
        tensor: Any = array
        return partial(tensor.clone().copy_, tensor)


def _by_name(*kinds: type[Peer]) -> dict[str, type[Peer]]:
    return {kind.name: kind for kind in kinds}


PEERS = _by_name(
    _Hvdlite,
    _HvdliteOut,
    _HvdliteNamed,
    _HvdliteNumpy,
    _HvdliteGrouped,
    _HvdliteEngine,
    _HvdlitePrepared,
    _Mpi4py,
    _Mpi4pyBlocking,
    _Gloo,
    _Horovod,
    _OneCcl,
)
CEILINGS: tuple[type[Peer], ...] = (_Memcpy, _Rewrite)
CUDA_PEERS = _by_name(_HvdliteOnGpu, _HvdliteOnGpuOut, _TorchNccl)
CUDA_CEILINGS: tuple[type[Peer], ...] = (_DeviceCopy,)
