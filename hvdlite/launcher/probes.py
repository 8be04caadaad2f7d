"""Small programs for checks that may crash or hang. Each program runs in a process of its own and prints its result as JSON."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdlite.config import OPEN_MPI_FOLDER, outside_of_jobs

_MARK = "hvdlite-probe:"
_SAY = f"def say(**found):\n    print({_MARK!r} + __import__('json').dumps(found), flush=True)\n"
# Probes import the same hvdlite as this process, and not one in the current folder, such as the source tree.
_HERE = str(Path(__file__).resolve().parents[2])
_FIND = f"import sys\nsys.path[:] = filter(None, sys.path)\nif {_HERE!r} not in sys.path:\n    sys.path.insert(0, {_HERE!r})\n"

# Loads MPI but does not initialise it.
LOADED_MPI = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
from hvdlite import _native
mpi = _native.loaded_mpi()
found = dict(family=mpi.family, version=mpi.version, module=mpi.module, libraries=mpi.libraries, mpi4py=mpi4py.__version__)
say(**found)
"""

MPI = f"""{LOADED_MPI}
MPI.Init_thread(MPI.THREAD_MULTIPLE)
names = ("THREAD_SINGLE", "THREAD_FUNNELED", "THREAD_SERIALIZED", "THREAD_MULTIPLE")
say(**found, thread=next(name for name in names if getattr(MPI, name) == MPI.Query_thread()))
import os, sys
sys.stdout.flush()
os._exit(0)
"""

ENGINE = """
from pathlib import Path
import hvdlite
from hvdlite import _native
shims = _native.built_shims(Path(hvdlite.__file__).parent)
say(shims=shims)
from hvdlite import _engine
say(shims=shims, engine=_engine.__file__)
"""

# Prints the driver's report first, and then a second report that also has hvdlite's part, because hvdlite may fail.
CUDA = """
import ctypes
found = dict(driver="", devices=[], problem="")
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    found["problem"] = str(error)
else:
    status = cuda.cuInit(0)
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    found["driver"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if status:
        found["problem"] = f"cuInit returns the error {status}"
    elif cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        for index in range(number.value):
            device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
            cuda.cuDeviceGet(ctypes.byref(device), index)
            cuda.cuDeviceGetName(name, 256, device)
            found["devices"].append(name.value.decode())
say(**found)
import hvdlite
say(**found, nccl_built=int(hvdlite.nccl_built()))
"""

# Imports the framework, then its door, if there is one.
FRAMEWORK = """
import importlib, sys
name, door = sys.argv[1:]
version = getattr(importlib.import_module(name), "__version__", "?")
say(version=version)
if door:
    importlib.import_module(door)
"""

SMOKE = f"""{_FIND}
import numpy, hvdlite
hvdlite.init()
rank, size = hvdlite.rank(), hvdlite.size()
total = hvdlite.allreduce(numpy.arange(1000.0) + rank, op=hvdlite.Sum, name="doctor")
assert (total == size * numpy.arange(1000.0) + size * (size - 1) // 2).all(), total
hvdlite.shutdown()
"""


def probe(program: str, arguments: Sequence[str] = (), seconds: float = 60.0) -> tuple[dict[str, Any], str]:
    """Runs a program of this module; returns the last result that the program prints, and the program's problem.

    Args:
        program: the text of the program.
        arguments: the program's arguments.
        seconds: the time after which the program is killed.

    Returns:
        The last result, empty if the program has printed none; and the problem in words (the program raised, crashed or took
        too long), empty if there was none.
    """
    command = [sys.executable, "-c", _FIND + _SAY + program, *arguments]
    with tempfile.TemporaryDirectory(prefix="hvdlite-probe-") as folder:  # for the file that Open MPI 5 would leave in /dev/shm
        environ = {**outside_of_jobs(), OPEN_MPI_FOLDER: folder}
        try:
            done = subprocess.run(
                command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as late:
            return _last_said(late.stdout or b""), f"it took more than {seconds:.0f} seconds"
    problem = ""
    if done.returncode < 0:
        problem = f"signal {-done.returncode} ({signal.Signals(-done.returncode).name}) ended it"
    elif done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        problem = lines[-1] if lines else f"it ended with exit code {done.returncode}"
    return _last_said(done.stdout), problem


def _last_said(output: bytes) -> dict[str, Any]:
    said = [line.removeprefix(_MARK) for line in output.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    found: dict[str, Any] = json.loads(said[-1]) if said else {}
    return found
