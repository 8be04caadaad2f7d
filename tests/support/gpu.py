"""Chooses where the files of tests/gpu run: on real GPUs if there are any, and on replacements everywhere.

A file of tests/gpu runs

- on real GPUs, marked `gpu`: by each route that GPU tensors can take between this number of ranks. If there is no GPU, each
  file is one test that skips.
- on the fakes of tests/native/fake_gpu, if it declares STAND_INS = ("fakes",), or ("fakes, slow",) for the mark `slow`. The
  fake driver and NCCL keep GPU memory on the host. The frameworks' own libraries cannot use them, so there are arrays of our
  own (support/driver_arrays.py), a small CuPy (support/fake_cupy.py), and tensors of torch that are in host memory but that
  hvdlite treats as tensors on the GPU (support/fake_torch.py).
- on the host, if it declares ("host",): the same tests with tensors in host memory, which tests the tests. Marked `slow`.

The variable HVDTEST_GPU tells its processes which of these it is.
"""

import ctypes
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MODE = "HVDTEST_GPU"
HOST_IDS = "HVDTEST_NCCL_HOSTIDS"  # if it is set, each rank tells NCCL that it is on another host
ROUTES = ("nccl", "staged")
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SHARING_VERSION = 23000  # the first NCCL that lets ranks share a GPU
_RANKS_PER_GPU = 2  # the number of ranks for which NCCL supports that
_RANKS_ON_HOST = 2  # on the host, tests run with this number of ranks only; with other numbers, the fakes use one route only


@dataclass(frozen=True)
class Variant:
    """One way to run a test file.

    Attributes:
        label: a part of the test's name.
        environment: variables of its processes.
        markers: marks of the test.
        impossible: the reason why it cannot run on this machine, or None.
    """

    label: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    impossible: str | None = None


def pass_for_other_hosts() -> None:
    """Lets NCCL treat this rank as a rank of another host, if HOST_IDS is set. Must be called before the first call of NCCL."""
    if os.environ.get(HOST_IDS):
        os.environ["NCCL_HOSTID"] = "hvdlite-" + next(os.environ[name] for name in _RANK_VARIABLES if name in os.environ)


def variants(ranks: int, routes: tuple[str, ...], stand_ins: tuple[str, ...], first: bool = True) -> Iterator[Variant]:
    """The ways to run a file of tests/gpu with this number of ranks. `first` is true for the file's first number of ranks."""
    gpus, why = count_gpus()
    if not gpus and first:
        yield Variant("on GPUs", {MODE: "real"}, ("gpu",), why)
    for route in routes if gpus else ():
        sharing, impossible = _sharing(ranks, gpus) if route == "nccl" else ({}, None)
        yield Variant(f"{route} on GPUs", {MODE: "real", "HVDLITE_GPU_ROUTE": route, **sharing}, ("gpu",), impossible)
    for declared in stand_ins if ranks > 1 else ():
        stand_in, _, slow = declared.partition(", ")
        if stand_in == "host" and ranks != _RANKS_ON_HOST:
            continue
        few = routes if ranks == _RANKS_ON_HOST else routes[:1]
        for route in few if stand_in == "fakes" else ("",):
            chosen = {"HVDLITE_GPU_ROUTE": route} if route else {}
            label = f"{route} on fakes" if route else "on the host"
            settings, missing = _settings(stand_in, ranks)
            markers = ("slow",) if slow or stand_in == "host" else ()
            yield Variant(label, {MODE: stand_in, **chosen, **settings}, markers, missing)


def _settings(stand_in: str, ranks: int) -> tuple[Mapping[str, str], str | None]:
    if stand_in == "host":
        return {}, None if _has_torch() else "torch is not installed"
    from support import fake_gpu

    missing = fake_gpu.missing()
    return ({}, missing) if missing else (fake_gpu.environment(gpus=ranks), None)


def _sharing(ranks: int, gpus: int) -> tuple[Mapping[str, str], str | None]:
    """The variables that let these ranks use NCCL on these GPUs, and the reason why that is impossible, or None."""
    if ranks <= gpus:
        return {}, None
    version = nccl_version()
    if version is None:
        return {}, "NCCL was not found"
    if version < _SHARING_VERSION:
        # NCCL treats the ranks as ranks of different hosts, which TCP joins.
        by_tcp = {HOST_IDS: "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "2"}
        return by_tcp, None if ranks <= _RANKS_PER_GPU * gpus else f"{ranks} ranks are too many for {gpus} GPUs with NCCL"
    too_many = ranks > _RANKS_PER_GPU * gpus
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, f"{ranks} ranks are too many for {gpus} GPUs with NCCL" if too_many else None


@functools.cache
def count_gpus() -> tuple[int, str | None]:
    """The number of GPUs of the CUDA driver, and the reason if there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "no GPU: there is no CUDA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    status = status or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return 0, f"no GPU: the CUDA driver finds none (status {status})"
    return count.value, None


@functools.cache
def nccl_version() -> int | None:
    """The version of the NCCL that hvdlite would use, such as 22703 for 2.27.3; None if there is none.

    A new process finds it: if torch is installed, hvdlite uses torch's NCCL, which only a process with torch imported knows.
    """
    program = f"import hvdlite{', torch' if _has_torch() else ''}; print(hvdlite.nccl_built())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    return int(found.stdout) or None if found.stdout.strip().isdigit() else None


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
