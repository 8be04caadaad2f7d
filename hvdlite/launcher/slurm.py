"""What Slurm's variables say of an allocation, and which of its ways to start MPI programs fits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher.hosts import Host

__all__ = ["Allocation", "choose_plugin", "expand_nodes", "expand_tasks", "read_allocation"]


_NO_STEP = 0xFFFFFFF0  # from here on ids stand for what is none of srun's steps, such as the batch script


@dataclass(frozen=True)
class Allocation:
    """An allocation of Slurm.

    Attributes:
        job: its id.
        hosts: the nodes with the tasks that each takes; with one task each where Slurm was not told a number.
        tasks: what the job was submitted with (``--ntasks``), or None.
        inside_step: is this process itself one that srun has started?
    """

    job: str
    hosts: tuple[Host, ...]
    tasks: int | None
    inside_step: bool


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that this environment belongs to, if any.

    Raises:
        InvalidArgumentError: a variable of Slurm cannot be read.
    """
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    job = environ.get("SLURM_JOB_ID", "")
    if not job or not nodes:
        return None
    names = expand_nodes(nodes)
    counts = expand_tasks(environ.get("SLURM_TASKS_PER_NODE", "") or "1")
    if len(counts) != len(names):
        counts = [1] * len(names)
    tasks = environ.get("SLURM_NTASKS", "")
    step = environ.get("SLURM_STEP_ID", "")
    inside = step.isdigit() and int(step) < _NO_STEP
    hosts = tuple(Host(name, count) for name, count in zip(names, counts, strict=True))
    return Allocation(job, hosts, int(tasks) if tasks.isdigit() else None, inside)


def expand_nodes(text: str) -> list[str]:
    """The names in a node list of Slurm.

    >>> expand_nodes("gpu[08-10,12],login")
    ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login']

    Raises:
        InvalidArgumentError: this is no node list.
    """
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if ",".join(parts) != text:
        raise InvalidArgumentError(f"{text!r} is no node list of Slurm")
    return [name for part in parts for name in _expand(part, text)]


def _expand(part: str, text: str) -> list[str]:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if bracket is None:
        if not part or set("[]") & set(part):
            raise InvalidArgumentError(f"{text!r} is no node list of Slurm")
        return [part]
    names = []
    for piece in bracket[1].split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InvalidArgumentError(f"{text!r} is no node list of Slurm: {piece!r} is neither a number nor a range")
        for number in range(int(first), int(last or first) + 1):
            middle = f"{number:0{len(first)}}"
            names += _expand(part[: bracket.start()] + middle + part[bracket.end() :], text)
    return names


def expand_tasks(text: str) -> list[int]:
    """The tasks of each node.

    >>> expand_tasks("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        InvalidArgumentError: this is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise InvalidArgumentError(f"SLURM_TASKS_PER_NODE={text!r} cannot be read: {part!r} is neither 2 nor 2(x3)")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


# What each MPI can be started through, best first; some offer only names with a version behind (pmix_v4).
_PLUGINS = {"openmpi": ("pmix",), "mpich": ("pmi2", "pmix"), "intel": ("pmi2", "pmix")}


def choose_plugin(listing: str, family: str) -> str | None:
    """The value for ``srun --mpi`` that fits an MPI, from what ``srun --mpi=list`` prints; None where there is none."""
    offered: set[str] = set()
    for line in listing.splitlines():  # a name on a line; older versions put "srun:" before it
        words = line.removeprefix("srun:").split()
        offered |= set(words) if len(words) == 1 else set()
    for name in _PLUGINS.get(family, ()):
        versions = sorted(word for word in offered if word.startswith(f"{name}_v"))
        if name in offered or versions:
            return name if name in offered else versions[-1]
    return None
