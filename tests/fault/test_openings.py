"""What a running job of hvdlite has open: one socket that listens, to this user's viewers, no memory that others may open, no
file that is left.
"""

import os

import pytest
from support.job import run_job
from support.shared_memory import nothing_left_behind

# Says what listens, and how what is shared lies, before and after everything that opens something has been used.
LOOK_AROUND = """
import os, stat
from pathlib import Path

import numpy as np
from mpi4py import MPI

def sockets():
    "The inodes of this process's sockets."
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:  # that of the listing itself
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found

def listening():
    "Those that wait for somebody: TCP in state LISTEN, UDP that is bound, unix sockets that accept."
    own, found = sockets(), set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        table = Path(f"/proc/net/{protocol}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[9] in own and (fields[3] == "0A" if protocol.startswith("tcp") else fields[2].endswith(":0000")):
                found.add((protocol, fields[1]))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in own and int(fields[3], 16) & 0x10000:
            found.add(("unix", fields[7].rpartition(":")[0]))
    return found

def shared():
    "Of every file of ours: what it is, its mode and owner."
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target, info = os.readlink(entry), os.stat(entry)
        except OSError:
            continue
        if "hvdlite-" in target and not stat.S_ISDIR(info.st_mode) and target.startswith(("/memfd:", "/dev/shm")):
            found.append((target.split("-")[1].split()[0], oct(info.st_mode & 0o7777), info.st_uid, "(deleted)" in target))
    return sorted(found)

os.umask(0)
MPI.COMM_WORLD.Barrier()
before = listening()
import hvdlite as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
from hvdlite.arenas import make_arena
from hvdlite.process_sets import global_process_set
arena, why = make_arena(1 << 16, "arena", global_process_set)
assert arena is not None, why
total = hvd.allreduce(np.arange(1000.0) * (rank + 1), op=hvd.Sum, name="x")
assert np.array_equal(total, np.arange(1000.0) * (size * (size + 1) / 2))
assert hvd.broadcast_object({"rank": rank}) == {"rank": 0}
import torch, torch.distributed as dist
import hvdlite.torch, hvdlite.torch.distributed
before_torch = listening()
dist.init_process_group("hvdlite", init_method="hvdlite://")
value = torch.full((4,), rank + 1.0)
dist.all_reduce(value)
assert value[0].item() == size * (size + 1) / 2
MPI.COMM_WORLD.Barrier()
print("listening", "", *sorted(kind + name for kind, name in listening() - before), flush=True)
for line in shared():
    print("shared", *line, flush=True)
modes = set()
for path in Path("/tmp").glob("hvdlite-store-*"):
    try:
        info = path.stat()
    except FileNotFoundError:  # that of another job, which has ended
        continue
    if info.st_uid == os.getuid():
        modes.add(oct(info.st_mode & 0o7777))
print("folders", *sorted(modes), flush=True)
probe = os.environ.get("HVDTEST_PROBE")
if probe:
    import socket
    extra = socket.socket(); extra.bind(("127.0.0.1", 0)); extra.listen(1)
    print("probed", len(listening() - before), flush=True)
MPI.COMM_WORLD.Barrier()
hvd.shutdown()
"""


def lines(text, word):
    return [line.split()[1:] for line in text.splitlines() if line.startswith(word + " ")]


@pytest.mark.parametrize(("knob", "live_view"), [("memfd", "1"), ("shm", "0")])
def test_what_a_job_has_open(knob, live_view):
    with nothing_left_behind():
        environ = {"HVDLITE_SHARED_MEMORY": knob, "HVDLITE_LIVE_VIEW": live_view, "HVDTEST_PROBE": "1"}
        result = run_job(LOOK_AROUND, 2, env=environ)
    assert result.returncode == 0, result.report()
    for text in result.stdout.values():
        # For hvdlite top; a name without a file. Another user gets nothing from it (tests/fault/test_top.py).
        (names,) = lines(text, "listening")
        assert [name.split(":")[:2] for name in names] == [["unix@hvdlite-view", str(os.getuid())]] * int(live_view), (
            result.report()
        )
        # The page, the window, and both parts of the arena: nobody else may open them, and no name is left of a file.
        found = lines(text, "shared")
        kinds = [line[0] for line in found]
        for kind in ("control", "window", "arena"):
            assert any(name.startswith(kind) for name in kinds), result.report()
        assert all(line[1] == "0o600" for line in found), result.report()
        assert all(line[3] == "True" for line in found), result.report()
        assert lines(text, "folders") == [["0o700"]], result.report()
        # The search finds what it looks for.
        assert lines(text, "probed") == [[str(1 + int(live_view))]], result.report()
