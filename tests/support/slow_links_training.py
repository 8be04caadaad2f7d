"""The program of each rank for the figures in docs/slow_links.md: trains a network on digits, with each way to reduce
gradients.

    mpirun -n 2 python slow_links_training.py STEPS ROUNDS

All ways begin with the same weights and read the same images. Rank 0 prints a line of JSON for each training:
{"way", "seconds": [of each step], "losses": [[seconds of training, loss over the test images], ...], "bytes": sent in a step}.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

BATCH = 32  # the samples of a rank in a step
WIDTHS = (64, 1024, 512, 10)
RATE, MOMENTUM = 0.05, 0.9
FULL_STEPS = 10  # the first steps, in which PowerSGD sends whole gradients
LOOK = 5  # the number of steps between two measured losses
LINK = "eth0"

# Changes a model and its optimizer so that a step uses the gradients of all ranks.
Make = Callable[[Any, Any], tuple[Any, Any]]


def _hvdlite(compression: Callable[[Any], Any]) -> Make:
    def make(model: Any, optimizer: Any) -> tuple[Any, Any]:
        import hvdlite.torch as hvd

        named = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named, compression=compression(hvd.Compression))

    return make


def _ddp(low_rank: bool) -> Make:
    def make(model: Any, optimizer: Any) -> tuple[Any, Any]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks
        from torch.nn.parallel import DistributedDataParallel

        # The hook gets one bucket, because it does not work on gloo with several.
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1000 if low_rank else 25)
        if low_rank:
            state = hooks.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=FULL_STEPS, min_compression_rate=2, random_seed=0
            )
            wrapped.register_comm_hook(state, hooks.powerSGD_hook)
        return wrapped, optimizer

    return make


WAYS: dict[str, Make] = {
    "float32": _hvdlite(lambda known: known.none),
    "bf16": _hvdlite(lambda known: known.bf16),
    "int8": _hvdlite(lambda known: known.int8()),
    "int4": _hvdlite(lambda known: known.int4()),
    "int4, error feedback": _hvdlite(lambda known: known.int4(error_feedback=True)),
    "powersgd": _hvdlite(lambda known: known.powersgd(rank=2, start_step=FULL_STEPS)),
    "DDP on gloo": _ddp(low_rank=False),
    "DDP, PowerSGD hook": _ddp(low_rank=True),
}


def _sent() -> int:
    """The number of bytes that have left this host, with all headers."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith(f"{LINK}:"))
    return int(line.split(":")[1].split()[8])


def train(make: Make, steps: int, rank: int, size: int, begin_step: Callable[[int], None]) -> dict[str, Any]:
    """Trains the network.

    Args:
        make: a value of WAYS.
        steps: the number of steps.
        rank: the rank of this process.
        size: the number of ranks.
        begin_step: a function that is called before each step with the number of the step.

    Returns:
        A dictionary: "model"; "seconds" of each step; "losses", pairs of the seconds until then and the loss; "bytes" that
        leave this host in a step.
    """
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, rest = order[:360], order[360:]
    torch.manual_seed(0)
    first, second, third, last = WIDTHS
    model = nn.Sequential(nn.Linear(first, second), nn.ReLU(), nn.Linear(second, third), nn.ReLU(), nn.Linear(third, last))
    wrapped, optimizer = make(model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM))
    draw = torch.Generator().manual_seed(1)
    seconds, sent, losses = list[float](), list[int](), list[tuple[float, float]]()

    def look() -> None:
        with torch.no_grad():
            losses.append((sum(seconds), nn.functional.cross_entropy(model(images[test]), labels[test]).item()))

    look()
    for step in range(steps):
        batch = rest[torch.randint(len(rest), (size, BATCH), generator=draw)[rank]]
        begin_step(step)
        before, begin = _sent(), time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(images[batch]), labels[batch]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        sent.append(_sent() - before)
        if (step + 1) % LOOK == 0:
            look()
    return {"model": model, "seconds": seconds, "losses": losses, "bytes": median(sent[FULL_STEPS:])}


def main() -> None:
    """Trains with each way in turn, and prints the results."""
    steps, rounds = map(int, sys.argv[1:])

    import torch
    import torch.distributed as dist

    import hvdlite.torch as hvd
    from hvdlite.bench.peers import join_gloo
    from hvdlite.bench.world import World

    torch.set_num_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    join_gloo(World())
    for _ in range(rounds):
        for way, make in WAYS.items():
            result = train(make, steps, rank, size, lambda _: hvd.barrier())
            del result["model"]
            if rank == 0:
                print(json.dumps({"way": way, **result}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
