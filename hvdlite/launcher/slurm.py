"""Reads an allocation from Slurm's variables, and chooses the plugin of srun that starts ranks of the loaded MPI."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher.hosts import Host

_NO_STEP = 0xFFFFFFF0  # this id and higher ones do not belong to steps of srun, but for example to the batch script


@dataclass(frozen=True)
class Allocation:
    """An allocation of Slurm.

    Attributes:
        job: the id of the job.
        hosts: the nodes; a node's slots are its number of tasks, or 1 for every node if SLURM_TASKS_PER_NODE lacks some.
        tasks: the number of tasks that the user gave Slurm (``--ntasks``); None if there is none.
        inside_step: has srun started this process?
    """

    job: str
    hosts: tuple[Host, ...]
    tasks: int | None
    inside_step: bool


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that an environment describes; None if it describes none.

    Raises:
        InvalidArgumentError: a variable of Slurm has an unknown form.
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
        InvalidArgumentError: `text` is not a node list.
    """
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if ",".join(parts) != text:
        raise InvalidArgumentError(f"{text!r} is not a node list of Slurm")
    return [name for part in parts for name in _expand(part, text)]


def _expand(part: str, text: str) -> list[str]:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if bracket is None:
        if not part or set("[]") & set(part):
            raise InvalidArgumentError(f"{text!r} is not a node list of Slurm")
        return [part]
    names = []
    for piece in bracket[1].split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InvalidArgumentError(f"{text!r} is not a node list of Slurm: {piece!r} is neither a number nor a range")
        for number in range(int(first), int(last or first) + 1):
            middle = f"{number:0{len(first)}}"
            names += _expand(part[: bracket.start()] + middle + part[bracket.end() :], text)
    return names


def expand_tasks(text: str) -> list[int]:
    """The number of tasks of each node, from a value of SLURM_TASKS_PER_NODE.

    >>> expand_tasks("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        InvalidArgumentError: `text` does not have this form.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise InvalidArgumentError(f"SLURM_TASKS_PER_NODE={text!r}: {part!r} has neither the form 2 nor the form 2(x3)")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


# The plugins that can start each MPI, the best first. Some versions of Slurm list a plugin only with its version (pmix_v4).
_PLUGINS = {"openmpi": ("pmix",), "mpich": ("pmi2", "pmix"), "intel": ("pmi2", "pmix")}


def choose_plugin(listing: str, family: str) -> str | None:
    """The value of ``srun --mpi`` that starts an MPI; None if there is none.

    Args:
        listing: the output of ``srun --mpi=list``.
        family: the family of the MPI, as `hvdlite.launcher.mpirun.Loaded` has it.
    """
    offered: set[str] = set()
    for line in listing.splitlines():  # each line has one name; older versions of Slurm put "srun:" in front of it
        words = line.removeprefix("srun:").split()
        offered |= set(words) if len(words) == 1 else set()
    for name in _PLUGINS.get(family, ()):
        versions = sorted(word for word in offered if word.startswith(f"{name}_v"))
        if name in offered or versions:
            return name if name in offered else versions[-1]
    return None
