"""Warm interpreters: the ranks of a job are forked from zygotes, processes that have imported their frameworks
(support/zygote.py).

A zygote starts when the first job needs it, and ends with the first pytest. The pytests that the first pytest starts find the
zygotes by the variable NURSERY. For each set of modules, and of variables that act at import, there are two zygotes with
different seeds of Python's hashes, so that ranks which iterate over a set do not have the same order by chance.

Ranks are fresh processes in tests of how processes start and end (`fresh=True` of support/job.py), on emulated hosts, and in
one job for each door, so that imports and ends are tested: parallel/test_basics.py, adapters/torch/test_compile_first.py
(`FRESH = True`, support/parallel.py), a case of fault/test_torch_door.py, and the elastic case of fault/test_jax_door.py for
JAX and Keras. tests/smoke does this for all doors. If the import of a framework leaves threads, as pyarrow's allocator does,
all its ranks are fresh processes. That is slower, and the last lines of pytest report it.
"""

import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

from support.zygote import MUST_NOT_FORK

if TYPE_CHECKING:  # tests/smoke starts jobs where there is no pytest
    import pytest

NURSERY = "HVDTEST_NURSERY"  # the variable that names the folder of the zygotes' sockets
ZYGOTE = Path(__file__).with_name("zygote.py")
HASH_SEEDS = ("1", "2")
START_SECONDS = 300.0
ALWAYS = ("numpy", "ml_dtypes", "pytest", "mpi4py", "cloudpickle")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "sklearn")
# torch's first optimizer in a process imports torch's compiler, which takes a second.
MODULES = {"torch": ("torch", "torch._dynamo")}
TAKE_SECONDS = {"torch", "tensorflow", "keras", "jax"}  # importing these takes seconds
# Programs read these variables themselves, or XLA reads them when it first compiles. So jobs of one zygote may have different
# values.
READ_LATER = ("HVDLITE_", "HOROVOD_", "HVDTEST_", "FAKE_GPU", "OMPI_", "PMIX_", "PRTE_", "PYTEST_", "XLA_FLAGS")
# scikit-learn, TensorFlow, JAX and torch set these variables when they are imported, in the zygote and in a pytest that imports
# them.
SET_BY_IMPORTS = ("KMP_", "TF2_BEHAVIOR", "TF_CPP_MIN_LOG_LEVEL", "TPU_", "ENABLE_RUNTIME_UPTIME_TELEMETRY", "HDF5_PLUGIN_PATH",
                  "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip


def open_nursery(config: "pytest.Config") -> None:
    """Makes the folder of the zygotes, in the first pytest."""
    if NURSERY in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="hvdlite-warm-"))
    (folder / "owner").write_text(str(os.getpid()))
    os.environ[NURSERY] = str(folder)
    config.add_cleanup(lambda: _close(folder))


def is_first() -> bool:
    """Has this process made the folder of the zygotes?"""
    return (Path(os.environ[NURSERY]) / "owner").read_text() == str(os.getpid())


def _close(folder: Path) -> None:
    """Removes the folder. The zygotes end with this process."""
    os.environ.pop(NURSERY, None)
    shutil.rmtree(folder, ignore_errors=True)


def processor_seconds() -> float:
    """The processor time of this process, of its ended children, and of the zygotes with their ranks, in seconds. The zygotes
    are ended to get it. Only the first pytest may call this.
    """
    folder = Path(os.environ[NURSERY])
    for log in folder.glob("*.log"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as zygote, contextlib.suppress(OSError):
            zygote.connect(str(log.with_suffix("")))
            zygote.sendall(b'"end"\n')
            zygote.recv(1)  # returns when the zygote has ended
    return sum(os.times()[:4]) + sum(float(file.read_text()) for file in folder.glob("*.seconds"))


def imports_of(tree: ast.AST) -> set[str]:
    """The first two words of the name of each module that a test file or a program imports in its own text."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "importorskip":
            modules |= {ast.literal_eval(node.args[0])}
    return {word for module in modules for word in module.split(".")[:2]}


def frameworks_of(imports: Set[str], environment: Mapping[str, str]) -> set[str]:
    """The frameworks among these words. If a variable chooses Keras's backend, they are Keras and this backend."""
    backend = environment.get("KERAS_BACKEND")
    return {"keras", backend} if backend else {name for name in FRAMEWORKS if name in imports}


def zygotes(frameworks: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """The sockets of the zygotes for ranks with this environment. Starts the zygotes if they do not run yet.

    Frameworks that are not installed are left out; the ranks will report them. The list is empty if the imports leave threads,
    so that ranks must be fresh processes.

    Raises:
        RuntimeError: a zygote did not start. The text has its output.
    """
    folder = Path(os.environ[NURSERY])
    wanted = {name for name in frameworks if importlib.util.find_spec(name) is not None}
    if wanted & TAKE_SECONDS and importlib.util.find_spec("sklearn") is not None:
        wanted.add("sklearn")  # programs with and without scikit-learn share a zygote
    # Keras imports TensorFlow by default, and most programs of TensorFlow import Keras, so all of them share a zygote. Few jobs
    # use Keras on other backends. Their ranks import Keras, so they share the zygote of the backend.
    if wanted & {"keras", "tensorflow"} and environment.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        wanted |= {name for name in ("keras", "tensorflow") if importlib.util.find_spec(name) is not None}
        environment = {**environment, "KERAS_BACKEND": "tensorflow"}
    else:
        wanted.discard("keras")
        environment = {name: value for name, value in environment.items() if name != "KERAS_BACKEND"}
    modules = [*ALWAYS, *(module for name in FRAMEWORKS if name in wanted for module in MODULES.get(name, (name,)))]
    fixed = {name: value for name, value in sorted(environment.items()) if not name.startswith(READ_LATER + SET_BY_IMPORTS)}
    key = hashlib.sha256(json.dumps([modules, fixed]).encode()).hexdigest()[:12]
    sockets = [folder / f"{key}.{seed}" for seed in HASH_SEEDS]
    refusal = folder / f"{key}.refusal"
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if refusal.exists():
            return []
        started = {path: _start(path, modules, {**fixed, "PYTHONHASHSEED": seed})
                   for path, seed in zip(sockets, HASH_SEEDS, strict=True) if not path.exists()}  # fmt: skip
        starts = [_has_started(path, process) for path, process in started.items()]
        if not all(starts):
            shutil.copy(f"{sockets[0]}.log", refusal)
            return []
    return [str(path) for path in sockets]


def refusals() -> list[str]:
    """The reasons why some ranks of this run were fresh processes although their tests do not need it."""
    return sorted({file.read_text().strip() for file in Path(os.environ[NURSERY]).glob("*.refusal")})


def _start(path: Path, modules: Iterable[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    owner = (path.parent / "owner").read_text()
    with Path(f"{path}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, str(ZYGOTE), str(path), owner, ",".join(modules)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _has_started(path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Waits for the socket of a zygote. Returns false if the zygote must not fork."""
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            if process.poll() == MUST_NOT_FORK:
                return False
            process.kill()
            log = Path(f"{path}.log").read_text(errors="replace")
            raise RuntimeError(f"the zygote {path.name} did not start:\n{log}")
        time.sleep(0.01)
    return True
