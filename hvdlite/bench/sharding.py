"""Measures the time and the memory of `shard=True`: `mpirun -n 2 python -m hvdlite.bench.sharding`, with `--framework keras`
for Keras.

By default the program measures the time of a training step with sharding and without, alternately; with torch only the time of
`optimizer.step()`. With `--memory sharded` it measures the memory with sharding, and with `--memory whole` the memory without.
A run measures only one of these, because memory that a first model does not give back would count for the second. The memory is
the mean growth of the ranks' proportional set sizes (to which each process that shares memory adds only its part of this
memory) from before the model is made until it has made some steps, divided by the number of parameters. The memory consists of
the parameters, gradients and Adam's state, and memory that the framework keeps for the next step. A small model is trained
first, so that libraries and thread pools are loaded and do not count.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from hvdlite.config import set_unless_set

_WIDTH, _BATCH = 1024, 8
_WARM_UP, _ROUNDS = 3, 15

# A function that makes a model of a number of square layers, with or without sharding. It returns another function, which makes
# a step and returns the seconds of the measured part of the step.
_Make = Callable[[int, bool], Callable[[], float]]


def _torch(layers: int, shard: bool) -> Callable[[], float]:
    import torch

    import hvdlite.torch as hvd

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(layers)))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=shard)
    batch = torch.randn(_BATCH, _WIDTH)

    def step() -> float:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        begin = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def _keras(layers: int, shard: bool) -> Callable[[], float]:
    import keras
    import numpy as np

    import hvdlite.keras as hvd

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((_WIDTH,)), *(keras.layers.Dense(_WIDTH, use_bias=False) for _ in range(layers))])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-4), shard=shard), loss="mse", jit_compile=False)
    inputs, targets = np.random.default_rng(hvd.rank()).normal(size=(2, _BATCH, _WIDTH)).astype(np.float32)

    def step() -> float:
        begin = time.perf_counter()
        model.train_on_batch(inputs, targets)
        return time.perf_counter() - begin

    return step


_FRAMEWORKS: dict[str, _Make] = {"torch": _torch, "keras": _keras}


def _set_size() -> int:
    """This process's proportional set size in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    line = next(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def _growth(make: _Make, layers: int, shard: bool, barrier: Callable[[], None]) -> float:
    """The bytes by which a model grows this process, divided by the model's number of parameters."""
    before = _set_size()
    barrier()
    step = make(layers, shard)
    for _ in range(_WARM_UP):
        step()
    barrier()
    grown = _set_size() - before
    barrier()
    return grown / (layers * _WIDTH * _WIDTH)


def _ratio(make: _Make, layers: int, barrier: Callable[[], None]) -> float:
    """The median time of a step with sharding, divided by the median time without."""
    steps = {shard: make(layers, shard) for shard in (True, False)}
    times: dict[bool, list[float]] = {shard: [] for shard in steps}
    for number in range(_WARM_UP + _ROUNDS):
        for shard, step in steps.items():
            barrier()
            seconds = step()
            if number >= _WARM_UP:
                times[shard].append(seconds)
    return median(times[True]) / median(times[False])


def main() -> None:
    """Measures on the ranks of this job, and prints on rank 0."""
    parser = argparse.ArgumentParser(prog="python -m hvdlite.bench.sharding")
    parser.add_argument("--framework", choices=_FRAMEWORKS, default="torch")
    parser.add_argument("--memory", choices=("sharded", "whole"), help="measure memory instead of time")
    parser.add_argument("--layers", type=int, default=24, help="the number of layers, each of about a million parameters")
    arguments = parser.parse_args()
    set_unless_set(dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"))

    import numpy as np

    import hvdlite as hvd

    hvd.init()
    make, layers = _FRAMEWORKS[arguments.framework], arguments.layers
    if arguments.memory is not None:
        shard = arguments.memory == "sharded"
        make(1, shard)()
        grown = hvd.allreduce(np.array([_growth(make, layers, shard, hvd.barrier)]), name="grown")
        said = f"shard={shard}: {grown[0]:.2f} bytes a parameter on each of {hvd.size()} ranks"
    else:
        said = f"a step with sharding takes {_ratio(make, layers, hvd.barrier):.2f} times as long as a step without"
    if hvd.rank() == 0:
        print(said)


if __name__ == "__main__":
    main()
