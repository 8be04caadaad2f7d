"""What timed_allreduce runs on every rank: python timed_allreduce_program.py REPEATS BYTES..."""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import hvdlite as hvd


def sent_by_this_host() -> int:
    """Bytes that left through the host's interface so far."""
    with open("/proc/self/net/dev") as table:
        line = next(line for line in table if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])


def seconds_of(work) -> float:
    """The time of the slowest rank, when all begin together."""
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    work()
    return MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX)


def measure(size: int, repeats: int) -> dict:
    rank, ranks = hvd.rank(), hvd.size()
    value = np.arange(size // 4, dtype=np.float32) % 64 + rank
    wanted = ranks * (np.arange(size // 4) % 64) + ranks * (ranks - 1) / 2
    out, result = np.empty_like(value), []
    ours, theirs = [], []
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    sent = 0
    for repeat in range(repeats + 2):
        MPI.COMM_WORLD.Barrier()
        before = sent_by_this_host()
        one = seconds_of(lambda: result.append(hvd.allreduce(value, name=f"size{size}", op=hvd.Sum)))
        time.sleep(0.02)  # acknowledgements
        sent += sent_by_this_host() - before if repeat >= 2 else 0
        other = seconds_of(lambda: MPI.COMM_WORLD.Allreduce(value, out))
        assert np.array_equal(result.pop(), wanted)
        assert np.array_equal(out, wanted)
        ours += [one] if repeat >= 2 else []  # the first two warm up
        theirs += [other] if repeat >= 2 else []
    each = MPI.COMM_WORLD.allgather(sent // repeats if host.rank == 0 else None)
    return {"bytes": size, "hvdlite": ours, "mpi": theirs, "sent": [count for count in each if count is not None]}


def main() -> None:
    hvd.init()
    repeats, *sizes = map(int, sys.argv[1:])
    for size in sizes:
        line = measure(size, repeats)
        if hvd.rank() == 0:
            print(json.dumps(line), flush=True)


main()
