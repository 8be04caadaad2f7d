"""Compares two builds like `python -m hvdlite.bench guard`, on emulated hosts: python -m support.guard_hosts --against DIR, in
tests/.

It measures an allreduce over a link of 1 Gbit/s and 1 ms, and a backward that hides its communication. Each of the 16 layers of
the backward sleeps 9 ms, as if a device worked, because the ranks of all hosts share this machine's processors.
"""

import argparse
import json
import sys
from pathlib import Path

from support.hosts import emulated_hosts

from hvdlite.bench import guard, others
from hvdlite.errors import SystemFailure

FIGURES = {
    "wire": guard.Figure("wire", "an allreduce of 4 MiB, two hosts of two ranks"),
    "overlap": guard.Figure("overlap", "a backward of 16 layers of 1 MiB, two hosts"),
}
RANKS = {"wire": 2, "overlap": 1}  # on each host
PROGRAM = """
import json, statistics, sys, time
import numpy as np
from mpi4py import MPI

def median_time(repeats, call):
    # On the slowest rank; the first ones make connections and plans.
    times = []
    for _ in range(2 + repeats):
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        call()
        times.append(MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX))
    return statistics.median(times[2:])

def wire():
    import hvdlite as hvd
    hvd.init()
    value = np.full(1 << 20, hvd.rank(), np.float32)
    return median_time(9, lambda: hvd.allreduce(value, name="x", op=hvd.Sum))

def overlap():
    import torch
    import hvdlite.torch as hvd

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            time.sleep(0.009)
            return grad, torch.ones(1 << 18)

    def one_pass():
        x = torch.ones(1, requires_grad=True)
        for weight in weights:
            weight.grad = None
            x = Slow.apply(x, weight)
        x.sum().backward()
        optimizer.synchronize()

    hvd.init()
    torch.set_num_threads(1)
    weights = [torch.nn.Parameter(torch.zeros(1 << 18)) for _ in range(16)]
    named = [(f"layer{number}", weight) for number, weight in enumerate(weights)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=0.1), named_parameters=named)
    return median_time(7, one_pass)

import hvdlite
print(json.dumps([hvdlite.__file__, {"wire": wire, "overlap": overlap}[sys.argv[1]]()]), flush=True)
"""


def measure(build: Path) -> guard.Run:
    """Runs one job of each kind on new hosts, and returns the figures."""
    begun, figures = others.taken(), {}
    for name, ranks in RANKS.items():
        with emulated_hosts(2, rate_mbit=1000, delay_us=1000) as hosts:
            job = hosts.run(ranks, PROGRAM, {"PYTHONPATH": str(build), "HVDLITE_BUCKET_BYTES": str(2 << 20)}, [name])
        if job.returncode != 0:
            raise SystemFailure(f"a job of {build} failed: {job.report()}")
        package, figures[name] = json.loads(job.stdout[0])
        if not Path(package).is_relative_to(build):
            raise SystemFailure(f"a job of {build} has imported {package}")
    return guard.Run(figures, others.share_since(begun))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.guard_hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="a built checkout of the other hvdlite")
    parser.add_argument("--any-load", action="store_true", help="also count jobs during which the machine had other work")
    words = parser.parse_args()
    try:
        builds = [guard.check_build(folder) for folder in (Path(__file__).parents[2], words.against)]
        plan = guard.GuardPlan(any_load=words.any_load)
        records = guard.compare(builds, plan, measure, lambda line: print(line, file=sys.stderr, flush=True))
    except SystemFailure as error:
        print(f"guard_hosts: {error}", file=sys.stderr)
        return 2
    print(guard.table(records, FIGURES))
    return 1 if guard.slower(records, plan.tolerance) else 0


if __name__ == "__main__":
    sys.exit(main())
