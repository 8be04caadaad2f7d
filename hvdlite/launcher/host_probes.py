"""The programs that ``hvdlite doctor --hosts`` runs on each host. Each program prints its result as one line of JSON.

The programs are texts, like those in `hvdlite.launcher.probes`, because the launcher itself loads neither MPI nor the engine.
"""

# Prints the facts about a host. The program loads MPI but does not initialise MPI, so it works even where no job can start.
FACTS = """
import fcntl, importlib.metadata, json, os, platform, socket, struct
from pathlib import Path

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""

def text(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""

def interfaces():
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                address, mask = (socket.inet_ntoa(fcntl.ioctl(asked, number, request)[20:24]) for number in (0x8915, 0x891B))
            except OSError:  # it has no address
                continue
            found.append([name, address, mask, text(f"/sys/class/net/{name}/speed")])
    return found

facts = {"host": socket.gethostname(), "boot_id": text("/proc/sys/kernel/random/boot_id"), "python": platform.python_version(),
         "cores": len(os.sched_getaffinity(0)), "interfaces": interfaces()}
models = [line.partition(": ")[2] for line in text("/proc/cpuinfo").splitlines() if line.startswith("model name")]
facts["processor"] = models[0] if models else platform.machine()
facts |= {name: version(name) for name in ("mpi4py", "numpy", "torch", "keras", "jax")}
facts["tensorflow"] = version("tensorflow") or version("tensorflow-cpu")
facts |= {"hvdlite": "", "place": "", "mpi": "", "problem": ""}
try:
    import hvdlite
    from hvdlite._version import __version__
    facts["hvdlite"], facts["place"] = __version__, os.path.dirname(hvdlite.__file__)
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from hvdlite import _native
    facts["mpi"] = _native.loaded_mpi().version
except Exception as error:
    facts["problem"] = f"{type(error).__name__}: {error}"
print(json.dumps(facts), flush=True)
"""

# Measures messages of MPI between the first host and each other host, and then an allreduce of hvdlite over all hosts.
MEASURE = """
import json, statistics, time
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
ROUNDS, LARGEST = 200, 256 << 20

def round_trips(other):
    "In seconds: half of the median round trip of 8 bytes, how far the other host's clock is ahead, and this figure's error."
    ping, pong = np.zeros(1), np.zeros(1)
    trips, offsets = [], []
    for _ in range(ROUNDS + 20):
        began, clock = time.perf_counter(), time.time()
        if world.rank == 0:
            world.Send(ping, other)
            world.Recv(pong, other)
            trip = time.perf_counter() - began
            trips.append(trip)
            offsets.append((trip, pong[0] - clock - trip / 2))
        else:
            world.Recv(pong, 0)
            ping[0] = time.time()
            world.Send(ping, 0)
    trip, offset = min(offsets or [(0, 0)])
    return statistics.median(trips[20:] or [0]) / 2, offset, trip / 2

def one_way(sender, receiver, data):
    "The seconds that a message and the answer to it take together."
    ack = np.zeros(1, np.uint8)
    began = time.perf_counter()
    if world.rank == sender:
        world.Send(data, receiver)
        world.Recv(ack, receiver)
    else:
        world.Recv(data, sender)
        world.Send(ack, sender)
    return time.perf_counter() - began

def bandwidth(other, to_other):
    "The bandwidth in bytes a second, measured with a message that takes about half a second."
    ends = (0, other) if to_other else (other, 0)
    data = np.ones(1 << 20, np.uint8)
    one_way(*ends, data)
    size = int(min(LARGEST, max(1 << 20, (1 << 19) / one_way(*ends, data))))
    if world.rank == 0:
        world.send(size, other)
    else:
        size = world.recv(source=0)
    data = np.ones(size, np.uint8)
    return size / min(one_way(*ends, data) for _ in range(2))

found = []
for other in range(1, world.size):
    if world.rank in (0, other):
        latency, offset, error = round_trips(other)
        found.append({"host": other, "latency": latency, "offset": offset, "error": error,
                      "to": bandwidth(other, True), "from": bandwidth(other, False)})
    world.Barrier()
slowest = world.bcast(min((min(each["to"], each["from"]) for each in found), default=0.0))
import hvdlite
hvdlite.init()
elements = int(min(1 << 24, max(1 << 16, slowest / 16)))
values = np.arange(elements, dtype=np.float32) % 1000 + world.rank
seconds = []
for _ in range(3):
    hvdlite.barrier()
    began = time.perf_counter()
    total = hvdlite.allreduce(values, op=hvdlite.Sum, name="doctor")
    seconds.append(time.perf_counter() - began)
right = bool((total == world.size * (values - world.rank) + world.size * (world.size - 1) // 2).all())
hvdlite.shutdown()
bus = 2 * (world.size - 1) / world.size * total.nbytes / min(seconds)
if world.rank == 0:
    print(json.dumps({"pairs": found, "right": right, "bytes": total.nbytes, "bus": bus}), flush=True)
"""
