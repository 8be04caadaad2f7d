"""The program of `support.elastic_report`: trains a network on scikit-learn's handwritten digits, in one of three ways.

    job FOLDER EPOCHS           hvd.elastic.Job
    torchelastic FOLDER EPOCHS  DistributedDataParallel under torchrun, with a checkpoint at the end of each epoch
    cost FOLDER ROUNDS          alternate epochs with hvd.elastic.Job and without it, and no rank is lost

Each rank writes its process id into the folder, into `pid0` and so on. In the first two ways, rank 0 adds a line to `steps` for
each finished step: the time, the number of the step, the number of ranks, and how often the ranks have changed. In the third
way, rank 0 writes its times to `cost`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 60  # of all ranks together; 2 and 3 ranks get equal shares
SAMPLES = 29 * BATCH

Note = Callable[[int, int, int], None]


def make_parts() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    """The data, a model and its optimizer, the same on all ranks."""
    digits = load_digits()
    images = torch.tensor(digits.images[:SAMPLES], dtype=torch.float32).unsqueeze(1) / 16
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 64, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return TensorDataset(images, torch.tensor(digits.target[:SAMPLES])), model, optimizer


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Makes a step: forward, backward and the update."""
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def begin(folder: Path, rank: int) -> Note:
    """Writes the process id of this rank. Returns a function that adds a line to `steps`."""
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    file = (folder / "steps").open("a", buffering=1)
    return lambda step, ranks, changes: print(time.time(), step, ranks, changes, file=file)


def train_job(folder: Path, epochs: int) -> None:
    """Trains with hvd.elastic.Job."""
    import hvdlite.torch as hvd

    hvd.init()
    dataset, model, optimizer = make_parts()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=BATCH)
    changes: list[int] = []
    note = begin(folder, hvd.rank())

    def reset() -> None:
        changes.append(hvd.size())
        begin(folder, hvd.rank())

    job.register_reset_callbacks([reset])
    for images, labels in job.batches(dataset, epochs):
        with job.step() as step:
            train_step(model, optimizer, images, labels)
        if step.applied and hvd.rank() == 0:
            note(job.position, hvd.size(), len(changes))


def train_torchelastic(folder: Path, epochs: int) -> None:
    """Trains as torchrun's documentation describes it: after a loss, all workers start again from the last checkpoint."""
    rank, ranks, restarts = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    # torchrun keeps one store for all restarts (torch 2.13), in which gloo would find addresses of processes that have ended.
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = torch.distributed.PrefixStore(f"restart {restarts}", store)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    dataset, model, optimizer = make_parts()
    checkpoint, first = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epoch"]
    wrapped = nn.parallel.DistributedDataParallel(model)
    sampler = torch.utils.data.DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=BATCH // ranks, sampler=sampler)
    note = begin(folder, rank)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader):
            train_step(wrapped, optimizer, images, labels)
            if rank == 0:
                note(epoch * len(loader) + number + 1, ranks, restarts)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, folder / "checkpoint.part")
            os.replace(folder / "checkpoint.part", checkpoint)
    torch.distributed.destroy_process_group()


def measure_cost(folder: Path, rounds: int) -> None:
    """Measures steps with hvd.elastic.Job and without it alternately. The time "guard" is that of the job's own code."""
    import hvdlite.torch as hvd

    hvd.init()
    dataset, model, optimizer = make_parts()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=BATCH)
    share = BATCH // hvd.size()
    firsts = range(hvd.rank() * share, SAMPLES, BATCH)
    times: dict[str, list[float]] = {name: [] for name in ("plain load", "plain step", "job load", "job step", "guard")}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        times[name].append(time.perf_counter() - began)

    for turn in range(rounds):
        if turn == 1:
            for seconds in times.values():  # the first round makes plans and buffers
                seconds.clear()
        loaded = iter(DataLoader(dataset, batch_sampler=[list(range(first, first + share)) for first in firsts]))
        for _ in firsts:
            with timed("plain load"):
                batch = next(loaded)
            with timed("plain step"):
                train_step(model, optimizer, *batch)
        batches = job.batches(dataset, turn + 1)
        for _ in firsts:
            with timed("job load"):
                batch = next(batches)
            with timed("guard"), job.step(), timed("job step"):
                train_step(model, optimizer, *batch)
            times["guard"][-1] -= times["job step"][-1]
        assert next(batches, None) is None
    if hvd.rank() == 0:
        (folder / "cost").write_text(json.dumps(times))


FORMS = {"job": train_job, "torchelastic": train_torchelastic, "cost": measure_cost}

if __name__ == "__main__":
    torch.set_num_threads(1)
    FORMS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
