"""How much of the communication a backward pass hides, on every rank: python overlap_program.py LAYERS BYTES SECONDS STEPS

Each of the LAYERS has a weight of BYTES bytes. Its backward takes SECONDS without using the processor, as if a device worked
(the ranks of all emulated hosts share this machine's cores); so what is measured is how communication lies beside it.
Rank 0 prints as JSON the shortest time of a pass in seconds: of backward alone, of communication alone, of both.
"""

import json
import sys
import time

import torch
from mpi4py import MPI

import hvdlite.torch as hvd


class Slow(torch.autograd.Function):
    """Scales by one; its gradients take a while."""

    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.seconds, ctx.shape = seconds, weight.shape
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, torch.full(ctx.shape, float(hvd.rank())), None


def one_pass(weights, seconds, finish) -> float:
    """The time of the slowest rank from the beginning of backward until the gradients are there."""
    x = torch.ones(1, requires_grad=True)
    for weight in weights:
        weight.grad = None
        x = Slow.apply(x, weight, seconds)
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    x.sum().backward()
    finish()
    return MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX)


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    layers, size, seconds, steps = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    plain = [torch.nn.Parameter(torch.zeros(size // 4)) for _ in range(layers)]
    reduced = [torch.nn.Parameter(torch.zeros(size // 4)) for _ in range(layers)]
    named = [(f"layer{number}", weight) for number, weight in enumerate(reduced)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(reduced, lr=0.1), named_parameters=named)
    times = {"backward": [], "communication": [], "both": []}
    for step in range(steps + 2):
        measured = {
            "backward": one_pass(plain, seconds, lambda: None),
            "communication": one_pass(reduced, 0.0, optimizer.synchronize),
            "both": one_pass(reduced, seconds, optimizer.synchronize),
        }
        assert all((weight.grad == (hvd.size() - 1) / 2).all() for weight in reduced)
        for name, value in measured.items():
            times[name] += [value] if step >= 2 else []
    if hvd.rank() == 0:
        print(json.dumps({name: min(values) for name, values in times.items()}), flush=True)


main()
