"""`python -m hvdlite.bench collectives --device cuda`: measures allreduces of torch's CUDA tensors by hvdlite and by NCCL.

As for host memory, the peers are measured alternately in one run, and each peer's sum is compared with the right one first.
Every time ends when the GPU has done the work. There are two ways: *waited*, in which the host waits for the GPU after each
call, and *queued*, in which the host makes twenty calls in a row and then waits once, as a training loop does. The time of
*queued* is divided by the number of calls.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.collectives import SHARES, SMALL_ELEMENTS, Sink
from hvdlite.bench.measure import Effort, Subject, divided, measure
from hvdlite.bench.models import resnet50_shapes
from hvdlite.bench.peers import Submissions, installed, join_group, leave_groups
from hvdlite.bench.team import check_sum, contribution, expected_sum
from hvdlite.bench.world import World

__all__ = ["CASES", "DEFAULT_SIZES", "PEERS", "CudaPlan", "RankGpu", "no_gpu", "run"]

CASES = ("allreduce", "gradients", "small")
PEERS = ("hvdlite", "hvdlite-out", "nccl")
DEFAULT_SIZES = tuple(4**power for power in range(5, 15))  # 1 KiB to 256 MiB

_QUEUED = 20  # the number of calls in a row


@dataclass(frozen=True)
class CudaPlan:
    """The selection to measure.

    Attributes:
        cases: names of `CASES`.
        sizes: the sizes of the tensors of the case allreduce, in bytes.
        tensors: the number of tensors of the case small.
        peers: names of `PEERS`.
        seconds: the approximate time for all measurements.
    """

    cases: Sequence[str] = CASES
    sizes: Sequence[int] = DEFAULT_SIZES
    tensors: int = 160
    peers: Sequence[str] = PEERS
    seconds: float = 60.0


Call = Callable[[], Any]


def no_gpu() -> str | None:
    """The reason why this process cannot make CUDA tensors; None if it can."""
    if missing := installed("torch", "pip install torch"):
        return missing
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    return None if torch.cuda.is_available() else "torch finds no GPU on this machine"


class RankGpu:
    """The GPU of this rank's tensors. Making it is collective.

    Attributes:
        device: the torch.device of the GPU.
        name: the name of the GPU, for the output.
        shared: do several ranks use one GPU? If so, the times mean nothing.
    """

    def __init__(self, world: World) -> None:
        import torch

        place = importlib.import_module("hvdlite").local_rank()
        self.device = torch.device("cuda", place % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.name = torch.cuda.get_device_name(self.device)
        self.shared = any(world.everyone(place >= torch.cuda.device_count()))

    def wait(self) -> None:
        """Waits until the GPU has done all the work that this process gave it."""
        import torch

        torch.cuda.synchronize(self.device)


# --- the peers --------------------------------------------------------------------------------------------------------


class _HvdliteOnGpu:
    """hvdlite in place, through its door for torch."""

    name = "hvdlite"

    def __init__(self, world: World, gpu: RankGpu) -> None:
        self._hvd = importlib.import_module("hvdlite.torch")

    def call(self, tensor: Any) -> Call:
        return partial(self._hvd.allreduce_, tensor, op=self._hvd.Sum)

    def batch(self, tensors: Sequence[Any]) -> Submissions | None:
        hvd = self._hvd
        starts = [
            partial(hvd.allreduce_async_, tensor, name=f"bench.{len(tensors)}.{place}", op=hvd.Sum)
            for place, tensor in enumerate(tensors)
        ]
        return Submissions(starts, lambda handles: [hvd.synchronize(handle) for handle in handles])

    def version(self) -> str:
        from hvdlite import config

        return f"route {config.from_environment().values['gpu_route']}"

    def close(self) -> None:
        pass


class _HvdliteOnGpuOut(_HvdliteOnGpu):
    """hvdlite out of place: the result is a new tensor."""

    name = "hvdlite-out"

    def call(self, tensor: Any) -> Call:
        return partial(self._hvd.allreduce, tensor, op=self._hvd.Sum)

    def batch(self, tensors: Sequence[Any]) -> Submissions | None:
        return None


class _TorchNccl:
    """torch.distributed on NCCL."""

    name = "nccl"

    def __init__(self, world: World, gpu: RankGpu) -> None:
        self._dist = importlib.import_module("torch.distributed")
        if not (self._dist.is_available() and self._dist.is_nccl_available()):
            raise RuntimeError("this torch was built without NCCL")
        if gpu.shared:
            raise RuntimeError("ranks share a GPU")
        join_group(world, "nccl")

    def call(self, tensor: Any) -> Call:
        return partial(self._dist.all_reduce, tensor)

    def batch(self, tensors: Sequence[Any]) -> Submissions | None:
        starts = [partial(self._dist.all_reduce, tensor, async_op=True) for tensor in tensors]
        return Submissions(starts, lambda works: [work.wait() for work in works])

    def version(self) -> str:
        import torch

        nccl: Any = torch.cuda.nccl
        return f"torch {torch.__version__}, NCCL {'.'.join(map(str, nccl.version()))}"

    def close(self) -> None:
        leave_groups()


class _DeviceCopy:
    """The speed of the GPU: it copies the tensor to other memory."""

    name = "memcpy"

    def call(self, tensor: Any) -> Call:
        return partial(tensor.clone().copy_, tensor)


_Peer = _HvdliteOnGpu | _TorchNccl
_KINDS: tuple[type[_HvdliteOnGpu] | type[_TorchNccl], ...] = (_HvdliteOnGpu, _HvdliteOnGpuOut, _TorchNccl)


def _team(world: World, gpu: RankGpu, wanted: Sequence[str]) -> tuple[list[_Peer], list[report.Record]]:
    """The wanted peers that could be started on all ranks, and a record of each wanted peer. Collective."""
    peers: list[_Peer] = []
    records: list[report.Record] = []
    for kind in _KINDS:
        if kind.name not in wanted:
            continue
        peer, problem = None, None
        try:
            peer = kind(world, gpu)
        except Exception as error:  # an error of the peer's software; the other peers are measured without it
            problem = f"it cannot be started: {error}"
        problem = world.all_agree(problem)
        if peer is not None and problem is None:
            peers.append(peer)
        version = peer.version() if peer is not None and problem is None else ""
        records.append({"record": "peer", "peer": kind.name, "absent": problem, "version": version})
    return peers, records


# --- measuring --------------------------------------------------------------------------------------------------------


def run(world: World, plan: CudaPlan, sink: Sink, gpu: RankGpu | None = None) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    importlib.import_module("hvdlite.torch").init()
    gpu = gpu or RankGpu(world)
    peers, records = _team(world, gpu, plan.peers)
    try:
        sink([{"record": "gpu", "name": gpu.name, "shared": gpu.shared}, *records])
        total = sum(SHARES[case] for case in plan.cases)
        for case in plan.cases:
            seconds = plan.seconds * SHARES[case] / total
            if case == "allreduce":
                _sizes(world, gpu, peers, plan.sizes, seconds, sink)
            else:
                shapes = resnet50_shapes() if case == "gradients" else [(SMALL_ELEMENTS,)] * plan.tensors
                _batches(world, gpu, peers, case, shapes, seconds, sink)
    finally:
        for peer in reversed(peers):
            peer.close()


def _sizes(world: World, gpu: RankGpu, peers: Sequence[_Peer], sizes: Sequence[int], seconds: float, sink: Sink) -> None:
    import torch

    effort = Effort(sample_seconds=0, most_calls=1, block_seconds=0.02)
    for nbytes in sorted(sizes):
        tensor = torch.zeros(nbytes // 4, dtype=torch.float32, device=gpu.device)
        for peer in peers:
            _check_call(world, gpu, peer.name, tensor, peer.call(tensor))
        for manner, calls in (("waited", 1), ("queued", _QUEUED)):
            subjects = [_subject(world, gpu, who.name, tensor, who.call(tensor), calls) for who in [*peers, _DeviceCopy()]]
            done = measure(world, subjects, effort, seconds / len(sizes) / 2)
            more = {"bytes": nbytes, "ranks": world.size, "bind": world.bind, "cache": manner}
            group = []
            for name, at in done.items():
                group.append(report.measurement("allreduce", name, divided(at.rounds, calls), calls, **more))
            sink(_with_copies(group))


def _subject(world: World, gpu: RankGpu, name: str, tensor: Any, call: Call, calls: int) -> Subject:
    def prepare() -> None:
        tensor.fill_(1 + world.rank)
        gpu.wait()

    def several() -> None:
        for _ in range(calls):
            call()
        gpu.wait()

    return Subject(name, [prepare], several)


def _with_copies(group: Sequence[report.Record]) -> list[report.Record]:
    """Adds to each peer's record the part of the GPU's copy rate that it reaches, in percent."""
    copy = next(record["median"] for record in group if record["peer"] == _DeviceCopy.name)
    return [
        record if record["peer"] == _DeviceCopy.name else {**record, "percent_of_memcpy": 100 * copy / record["median"]}
        for record in group
    ]


def _batches(
    world: World, gpu: RankGpu, peers: Sequence[_Peer], case: str, shapes: Sequence[tuple[int, ...]], seconds: float, sink: Sink
) -> None:
    import torch

    alike = len(set(shapes)) == 1
    tensors = [torch.zeros(shape, dtype=torch.float32, device=gpu.device) for shape in shapes]

    def prepare() -> None:
        for tensor in tensors:
            tensor.fill_(1 + world.rank)
        gpu.wait()

    subjects = []
    for peer in peers:
        batch = peer.batch(tensors)
        if batch is not None:
            _check_batch(world, gpu, peer.name, tensors, batch)
            call, submitting = partial(_run_batch, gpu, batch), partial(getattr, batch, "submitted")
            subjects.append(Subject(peer.name, [prepare], call, submitting))
    effort = Effort(sample_seconds=0, most_calls=1, block_seconds=0.5, most_samples=5)
    done = measure(world, subjects, effort, seconds)
    divisor = len(tensors) if alike else 1
    more = {"ranks": world.size, "bind": world.bind, "cache": "waited", "tensors": len(tensors)}
    nbytes = sum(tensor.nbytes for tensor in tensors) // divisor
    sink([report.measurement(case, name, divided(at.rounds, divisor), 1, bytes=nbytes, **more) for name, at in done.items()])
    submits = {name: divided(at.parts, len(tensors)) for name, at in done.items()}
    sink([report.measurement(f"{case}_submit", name, rounds, 1, **more) for name, rounds in submits.items()])


def _run_batch(gpu: RankGpu, batch: Submissions) -> None:
    batch.run()
    gpu.wait()


# --- checking results -------------------------------------------------------------------------------------------------


def _check_call(world: World, gpu: RankGpu, name: str, tensor: Any, call: Call) -> None:
    import torch

    tensor.copy_(torch.from_numpy(contribution(world.rank, tensor.numel())))
    result = call()
    result = tensor if result is None else result
    gpu.wait()
    right = torch.equal(result.cpu(), torch.from_numpy(expected_sum(world.size, tensor.numel())))
    check_sum(world, name, tensor.nbytes, right)


def _check_batch(world: World, gpu: RankGpu, name: str, tensors: Sequence[Any], batch: Submissions) -> None:
    import torch

    for tensor in tensors:
        tensor.copy_(torch.from_numpy(contribution(world.rank, tensor.numel())).reshape(tensor.shape))
    _run_batch(gpu, batch)
    largest = torch.from_numpy(expected_sum(world.size, max(tensor.numel() for tensor in tensors)))
    right = all(torch.equal(tensor.cpu().ravel(), largest[: tensor.numel()]) for tensor in tensors)
    check_sum(world, name, sum(tensor.nbytes for tensor in tensors), right)
