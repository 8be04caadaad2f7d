"""The program of `support.chaos`: elastic training, in which some ranks end themselves by a signal at a drawn moment.

Arguments: a folder for what the ranks report, the number of epochs, and for each rank the seconds after which it dies ("-":
never).
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import hvdlite.torch as hvd

SAMPLES, BATCH = 240, 8


def main() -> None:
    """Trains, and writes a file that says how it went."""
    folder, epochs, *deaths = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    hvd.init()
    first = hvd.rank()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    inputs, targets = torch.randn(SAMPLES, 32), torch.randint(0, 10, (SAMPLES,))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), groups=2)
    sampler = hvd.elastic.ElasticSampler(inputs, seed=2)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    resumed: list[tuple[int, float]] = []  # the number of ranks after a loss, and when the first step with them was over
    after_loss = [False]
    state.register_reset_callbacks([lambda: after_loss.__setitem__(0, True)])
    if deaths[first] != "-":

        def die() -> None:
            (folder / f"died{first}").write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL if first % 2 else signal.SIGTERM)

        timer = threading.Timer(float(deaths[first]), die)
        timer.daemon = True
        timer.start()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> list[int]:
        while state.epoch < epochs:
            for batch, index in enumerate(torch.utils.data.DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler)):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs[index]), targets[index]).backward()
                optimizer.step()
                sampler.record_batch(batch, BATCH)
                if after_loss[0]:
                    after_loss[0] = False
                    resumed.append((hvd.size(), time.time()))
                if batch % 3 == 2:
                    state.commit()
            used = sorted(set().union(*hvd.allgather_object(sampler.processed_indices)))
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
        return used

    used = train(state)
    weights = [parameter.detach().reshape(-1).tolist() for parameter in model.parameters()]
    report = {"rank": hvd.rank(), "size": hvd.size(), "used": used, "weights": weights, "resumed": resumed}
    (folder / f"ended{first}").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
