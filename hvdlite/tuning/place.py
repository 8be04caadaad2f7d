"""The scope of a tuning: the machine, and the shape of the job."""

import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdlite._version import __version__
from hvdlite.tuning.parameters import JobShape

__all__ = ["JobPlace", "boot_id", "cpu_name"]


@dataclass(frozen=True)
class JobPlace:
    """The machine and the shape of a job, for which a tuning holds.

    Attributes:
        cpus: the processor of each host, as it calls itself.
        cores: on each host, how many its ranks together may run on.
        ranks_per_host: on each host.
        bound: may each rank run on one core only?
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
        """The key in a tuning file, as JSON gives it back."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**plain, "hvdlite": __version__}

    def shape(self) -> JobShape:
        """What decides which parameters matter."""
        return JobShape(self.ranks_per_host, self.shared_memory != "off", self.deterministic)


def boot_id() -> str:
    """The kernel's name for its present run; "" if it is kept secret."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def cpu_name() -> str:
    """The processor of this host, as it calls itself."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.machine()
