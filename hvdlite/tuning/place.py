"""The scope of a tuning: the machine, and the shape of the job."""

import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdlite._version import __version__
from hvdlite.tuning.parameters import JobShape


@dataclass(frozen=True)
class JobPlace:
    """The machine and the shape of a job, for which a tuning holds.

    Attributes:
        cpus: the name of each host's processor.
        cores: for each host, the number of cores that its ranks together may use.
        ranks_per_host: the number of ranks on each host.
        bound: is each rank bound to one core?
        mpi: the family of the MPI.
        shared_memory, deterministic: the knobs of these names.
    """

    cpus: tuple[str, ...]
    cores: tuple[int, ...]
    ranks_per_host: tuple[int, ...]
    bound: bool
    mpi: str
    shared_memory: str
    deterministic: bool

    def key(self) -> dict[str, Any]:
        """The key in a tuning file, in types that JSON has."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**plain, "hvdlite": __version__}

    def shape(self) -> JobShape:
        """The properties that decide which parameters have an effect."""
        return JobShape(self.ranks_per_host, self.shared_memory != "off", self.deterministic)


def boot_id() -> str:
    """The kernel's id for this boot of the machine; "" if this process may not read it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def cpu_name() -> str:
    """The name of this host's processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.machine()
