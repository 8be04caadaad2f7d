"""The program of `support.chaos`: an elastic training in which some ranks send themselves a signal at a given moment.

Its arguments are a folder for the ranks' reports, ``run`` or ``job`` for the form of elastic training, ``whole`` or ``shard``
for the optimizer's state, the number of epochs, and for each rank the seconds of training after which it dies ("-": never).
Further processes are spares, and do not die.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hvdlite.torch as hvd
from hvdlite.runtime import RUNTIME

SAMPLES, BATCH = 240, 30

Event = Callable[[], None]  # a function that is called at an event


def make_parts(shard: bool) -> tuple[Any, ...]:
    """Inputs, targets, a model and its optimizer, sharded or not, the same on all ranks."""
    torch.manual_seed(3)
    inputs, targets = torch.randn(SAMPLES, 32), torch.randint(0, 10, (SAMPLES,))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    groups = [{"params": list(model.parameters())}]
    # Each use of a sample subtracts 1 from its count, because the loss has the mean of the batch's counts.
    model.register_parameter("counts", torch.nn.Parameter(torch.zeros(SAMPLES)))
    groups.append({"params": [model.counts], "lr": float(BATCH), "momentum": 0.0})
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), groups=2, shard=shard)
    return inputs, targets, model, optimizer


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The mean loss of these samples."""
    return torch.nn.functional.cross_entropy(model(inputs[index]), targets[index]) + model.counts[index].mean()


def run(parts: tuple[Any, ...], epochs: int, begin: Event, reset: Event, stepped: Event) -> list[int]:
    """Trains in Horovod's form, with a function that goes back to the last commit. Returns the samples of the last epoch."""
    inputs, targets, model, optimizer = parts
    sampler = hvd.elastic.ElasticSampler(inputs, seed=2)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([reset])
    begin()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> list[int]:
        while state.epoch < epochs:
            for batch, index in enumerate(torch.utils.data.DataLoader(range(SAMPLES), batch_size=BATCH // 4, sampler=sampler)):
                optimizer.zero_grad()
                loss_of(model, inputs, targets, index).backward()
                optimizer.step()
                sampler.record_batch(batch, BATCH // 4)
                stepped()
                if batch % 3 == 2:
                    state.commit()
            used = sorted(set().union(*hvd.allgather_object(sampler.processed_indices)))
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
        return used

    return list(train(state))


def job(parts: tuple[Any, ...], epochs: int, begin: Event, reset: Event, stepped: Event) -> list[int]:
    """Trains in the form in which no step is lost. Returns all samples; the weights contain how often each was used."""
    inputs, targets, model, optimizer = parts
    training = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=BATCH, commit_every=10)
    training.register_reset_callbacks([reset])
    begin()
    for index in training.batches(range(SAMPLES), epochs):
        with training.step() as outcome:
            loss_of(model, inputs, targets, index).backward()
            optimizer.step()
            optimizer.zero_grad()
        if outcome.applied:
            stepped()
    return list(range(SAMPLES))


def main() -> None:
    """Trains, and writes a report into the folder."""
    folder, form, optimizer, epochs, *deaths = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), *sys.argv[5:]
    hvd.init()
    first = int(os.environ["OMPI_COMM_WORLD_RANK"])
    spare = first >= len(deaths)
    torch.set_num_threads(1)
    parts = make_parts(optimizer == "shard")
    # For each loss: the number of recoveries so far, and the time at which the next step was over.
    resumed: list[tuple[int, float]] = []
    ranks, lost = [hvd.size()], [False]

    def die() -> None:
        (folder / f"died{first}").write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL if first % 2 else signal.SIGTERM)

    def begin() -> None:
        if not spare and deaths[first] != "-":
            timer = threading.Timer(float(deaths[first]), die)
            timer.daemon = True
            timer.start()

    def stepped() -> None:
        if lost[0]:
            lost[0] = False
            resumed.append((RUNTIME.recoveries, time.time()))

    def reset() -> None:
        lost[0], ranks[0] = hvd.size() < ranks[0], hvd.size()

    used = (job if form == "job" else run)(parts, epochs, begin, reset, stepped)
    if spare:
        (folder / f"joined{first}").touch()
    weights = [parameter.detach().reshape(-1).tolist() for parameter in parts[2].parameters()]
    report = {"rank": hvd.rank(), "size": hvd.size(), "used": used, "weights": weights, "resumed": resumed}
    (folder / f"ended{first}").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
