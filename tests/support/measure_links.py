"""Measures a collective of hvdlite and of Open MPI between emulated hosts, in one job.

Run python -m support.measure_links in tests/. Each figure is the mean of many calls, one after the other, on the slowest rank.
hvdlite and Open MPI are measured alternately, and the table has the median of the turns. "wire" is the time for the bytes of an
ideal ring and the least delays, "TCP" the time in which each host sends these bytes to the next one through a plain socket: the
frames of TCP carry 6 % more bytes, and acknowledgements go the other way.
"""

import argparse
import json
import statistics
import sys

from support.hosts import emulated_hosts

CALLS = {4: 60, 64 << 10: 60, 4 << 20: 4}  # the number of calls in a turn, for each size of the tensor in bytes
PROGRAM = """
import json, os, socket, sys, threading, time
import numpy as np
from mpi4py import MPI
import hvdlite as hvd

kind, sizes, turns, algorithms, share = json.loads(sys.argv[1])
world = MPI.COMM_WORLD
times = {}

def mean(call, calls):
    world.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return world.allreduce(time.perf_counter() - start, MPI.MAX) / calls

# A function that sends this many bytes to the next host while the previous one sends here.
def ring_of_sockets(hosts):
    listener = socket.create_server(("", 0))
    places = hosts.allgather((socket.gethostbyname(socket.gethostname()), listener.getsockname()[1]))
    to = socket.create_connection(places[(hosts.rank + 1) % hosts.size])
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    source, _ = listener.accept()

    def stream(num_bytes):
        sender = threading.Thread(target=to.sendall, args=(bytes(num_bytes),))
        sender.start()
        while num_bytes > 0:
            num_bytes -= len(source.recv(min(num_bytes, 1 << 20)))
        sender.join()

    return stream

local = world.Split_type(MPI.COMM_TYPE_SHARED)
hosts = world.Split(local.rank > 0)
if local.rank == 0:
    stream = ring_of_sockets(hosts)
for size, calls in sizes:
    sent = share * (hosts.size - 1) * size
    call = (lambda: stream(int(sent))) if local.rank == 0 else (lambda: None)
    times[f"TCP {size}"] = [mean(call, calls) for _ in range(turns + 1)][1:]

for algorithm in algorithms:
    os.environ["HVDLITE_ALLREDUCE_ALGORITHM"] = algorithm
    hvd.init()
    for size, calls in sizes:
        value = np.full(size // 4, hvd.rank() + 1, np.float32)
        result = np.empty(value.size * (hvd.size() if kind == "allgather" else 1), np.float32)
        ours, theirs = {
            "allreduce": (
                lambda: hvd.allreduce(value, name=f"x{size}", op=hvd.Sum),
                lambda: world.Allreduce(value, result, MPI.SUM),
            ),
            "allgather": (lambda: hvd.allgather(value, name=f"x{size}"), lambda: world.Allgather(value, result)),
            "alltoall": (lambda: hvd.alltoall(value, name=f"x{size}"), lambda: world.Alltoall(value, result)),
            "broadcast": (
                lambda: hvd.broadcast(value, root_rank=0, name=f"x{size}"),
                lambda: (result.__setitem__(slice(None), value), world.Bcast(result, root=0)),
            ),
        }[kind]
        for call in (ours, theirs):
            mean(call, 2)  # connections, the response cache
        for _ in range(turns):
            times.setdefault(f"{algorithm} {size}", []).append(mean(ours, calls))
            if algorithm == algorithms[0]:
                times.setdefault(f"Open MPI {size}", []).append(mean(theirs, calls))
        theirs()
        assert np.array_equal(ours(), result)
    hvd.shutdown()
if world.rank == 0:
    print(json.dumps(times), flush=True)
"""


def share(kind: str, hosts: int, ranks: int) -> float:
    """The part of a rank's tensor that each host's link carries for each of the other hosts."""
    return {"allreduce": 2 / hosts, "allgather": ranks, "alltoall": ranks / hosts, "broadcast": 1 / (hosts - 1)}[kind]


def ideal(kind: str, hosts: int, ranks: int, size: int, rate_mbit: float, delay_us: float) -> float:
    """The seconds for the bytes over each host's link, and for delays: of recursive doubling, or one if all send at once."""
    delays = (hosts - 1).bit_length() if kind in ("allreduce", "broadcast") else 1
    return delays * delay_us * 1e-6 + (hosts - 1) * share(kind, hosts, ranks) * size / (rate_mbit * 1e6 / 8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.measure_links", description=__doc__.splitlines()[0])
    layouts = "2x1,4x1,8x1,2x2"
    parser.add_argument(
        "--hosts", default=layouts, metavar="HxR,...", help="numbers of hosts and of ranks on each; default: %(default)s"
    )
    kinds = ("allreduce", "allgather", "alltoall", "broadcast")
    parser.add_argument("--kind", default="allreduce", choices=kinds, help="the collective; default: %(default)s")
    parser.add_argument(
        "--sizes", default="4,65536,4194304", metavar="BYTES,...", help="sizes of a rank's tensor; default: %(default)s"
    )
    parser.add_argument("--algorithms", default="auto", metavar="NAME,...", help="hvdlite's algorithms to measure")
    parser.add_argument("--turns", type=int, default=3, help="the number of turns; default: %(default)s")
    parser.add_argument("--rate-mbit", type=float, default=100, help="the rate of each host's link; default: %(default)s")
    parser.add_argument("--delay-us", type=float, default=1000, help="the delay of one way; default: %(default)s")
    words = parser.parse_args()
    sizes = [(int(size), CALLS.get(int(size), 20)) for size in words.sizes.split(",")]
    algorithms = words.algorithms.split(",")
    print("| hosts x ranks | bytes | wire | TCP | Open MPI | " + " | ".join(f"{name} | ratio" for name in algorithms) + " |")
    print("|---|---|---|---|---|" + "---|---|" * len(algorithms), flush=True)
    for layout in words.hosts.split(","):
        hosts, ranks = map(int, layout.split("x"))
        with emulated_hosts(hosts, rate_mbit=words.rate_mbit, delay_us=words.delay_us) as network:
            given = [words.kind, sizes, words.turns, algorithms, share(words.kind, hosts, ranks)]
            job = network.run(ranks, PROGRAM, args=[json.dumps(given)], timeout=600.0)
        if job.returncode != 0:
            sys.exit(job.report())
        times = {name: statistics.median(values) for name, values in json.loads(job.stdout[0]).items()}
        for size, _ in sizes:
            theirs = times[f"Open MPI {size}"]
            cells = [f"{1e3 * time:.2f} | {time / theirs:.2f}" for time in (times[f"{name} {size}"] for name in algorithms)]
            wire = ideal(words.kind, hosts, ranks, size, words.rate_mbit, words.delay_us)
            limits = f"{1e3 * wire:.2f} | {1e3 * times[f'TCP {size}']:.2f} | {1e3 * theirs:.2f}"
            print(f"| {layout} | {size} | {limits} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
