"""`python -m hvdlite.bench collectives --device cuda`: measures allreduces of torch's CUDA tensors by hvdlite and by NCCL.

As for host memory, the peers are measured alternately in one run, and each peer's sum is compared with the right sum before the
peer is timed. Every measured time ends when the GPU has done the work. Each size is measured in two manners. In *waited* the
host waits for the GPU after each call. In *queued* the host makes twenty calls in a row and then waits once, as a training loop
does; the time of *queued* is divided by the number of calls.
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.collectives import Sink, measure_cases
from hvdlite.bench.measure import Effort, Subject, measure, measurements
from hvdlite.bench.peers import CUDA_CEILINGS, CUDA_PEERS, Array, Peer, installed
from hvdlite.bench.team import HostMemory, Team
from hvdlite.bench.world import World

CASES = ("allreduce", "gradients", "small")
DEFAULT_SIZES = tuple(4**power for power in range(5, 15))  # 1 KiB to 256 MiB
DEFAULT_TENSORS = 160

_QUEUED = 20  # the number of calls in a row
_EFFORT = Effort(sample_seconds=0, most_calls=1, block_seconds=0.02)


def no_gpu() -> str | None:
    """The reason why this process cannot make CUDA tensors; None if it can."""
    if missing := installed("torch", "pip install torch"):
        return missing
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    return None if torch.cuda.is_available() else "torch finds no GPU on this machine"


class RankGpu(HostMemory):
    """The GPU of this rank's tensors. Making this object is collective.

    Attributes:
        device: the torch.device of the GPU.
        name: the name of the GPU, for the output.
        shared: do several ranks use one GPU? If so, the times mean nothing.
    """

    peers = CUDA_PEERS
    ceilings = CUDA_CEILINGS
    manner = "waited"

    def __init__(self, world: World) -> None:
        import torch

        place = importlib.import_module("hvdlite").local_rank()
        self.device = torch.device("cuda", place % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.name = torch.cuda.get_device_name(self.device)
        self.shared = any(world.everyone(place >= torch.cuda.device_count()))

    def zeros(self, shape: int | tuple[int, ...]) -> Any:
        """A tensor of zeros."""
        import torch

        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    def write(self, array: Any, values: Array) -> None:
        """Writes as many values as the tensor has elements."""
        import torch

        array.copy_(torch.from_numpy(values).reshape(array.shape))

    def read(self, array: Any) -> Array:
        """The values of a tensor."""
        found: Array = array.cpu().numpy()
        return found

    def wait(self) -> None:
        """Waits until the GPU has done all the work that this process gave it."""
        import torch

        torch.cuda.synchronize(self.device)


def run(world: World, options: argparse.Namespace, sink: Sink, gpu: RankGpu | None = None) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``collectives``.
        sink: a function that gets the records.
        gpu: the memory of the tensors; by default this rank's GPU.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
    """
    importlib.import_module("hvdlite.torch").init()
    gpu = gpu or RankGpu(world)
    team = Team(world, options.peers, gpu)
    try:
        sink([{"record": "gpu", "name": gpu.name, "shared": gpu.shared}, *team.records])
        measure_cases(team, options, sink, _sizes)
    finally:
        team.close()


def _sizes(team: Team, options: argparse.Namespace, seconds: float, sink: Sink) -> None:
    world = team.world
    for nbytes in sorted(options.sizes):
        tensor = team.memory.zeros(nbytes // 4)
        for peer in team.peers:
            if call := peer.blocking(tensor):
                team.check_call(peer, tensor, call)
        for manner, calls in (("waited", 1), ("queued", _QUEUED)):
            subjects = [_subject(team, peer, tensor, calls) for peer in [*team.peers, *team.ceilings]]
            done = measure(world, subjects, _EFFORT, seconds / len(options.sizes) / 2)
            for samples in done.values():
                samples.calls *= calls
            sink(_with_copies(measurements(world, "allreduce", done, bytes=nbytes, cache=manner)))


def _subject(team: Team, peer: Peer, tensor: Any, calls: int) -> Subject:
    call = peer.blocking(tensor)
    assert call is not None

    def prepare() -> None:
        tensor.fill_(1 + team.world.rank)
        team.memory.wait()

    def several() -> None:
        for _ in range(calls):
            call()
        team.memory.wait()

    return Subject(peer.name, several, calls, prepare)


def _with_copies(group: Sequence[report.Record]) -> list[report.Record]:
    """Adds to each peer's record the part of the GPU's copy rate that the peer reaches, in percent."""
    copy = next(record["median"] for record in group if record["peer"] == "memcpy")
    return [
        record if record["peer"] == "memcpy" else {**record, "percent_of_memcpy": 100 * copy / record["median"]}
        for record in group
    ]
