"""What others had of the processors while the benchmark ran: processes of the machine, and the hypervisor's other guests."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hvdlite.bench.report import Record
from hvdlite.bench.world import World

__all__ = ["Others", "Taken", "machine_seconds", "shares"]

_STAT = Path("/proc/stat")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TICKS = os.sysconf("SC_CLK_TCK")


class Taken(NamedTuple):
    """Processor time in seconds, all processors of a machine together.

    Attributes:
        there: that the machine had to give.
        busy: that processes took.
        stolen: that the hypervisor gave to others.
        own: that this process took.
    """

    there: float
    busy: float
    stolen: float
    own: float


def _now() -> Taken:
    user, nice, system, _idle, _iowait, _irq, _softirq, stolen = (
        int(ticks) / _TICKS for ticks in _STAT.read_text().split(maxsplit=9)[1:9]
    )
    return Taken(time.monotonic() * (os.cpu_count() or 1), user + nice + system, stolen, time.process_time())


def machine_seconds() -> tuple[float, float]:
    """The processors' time so far, and the parts that processes and other guests took."""
    now = _now()
    return now.there, now.busy + now.stolen


def shares(taken: Iterable[tuple[str, Taken]]) -> tuple[float, float]:
    """The shares of other processes and of other guests where they are largest, of what ranks have counted on machines."""
    machines: dict[str, list[Taken]] = defaultdict(list)
    for machine, counts in taken:
        machines[machine].append(counts)
    processes = (max(0.0, ranks[0].busy - sum(rank.own for rank in ranks)) / ranks[0].there for ranks in machines.values())
    guests = (ranks[0].stolen / ranks[0].there for ranks in machines.values())
    return max(processes), max(guests)


class Others:
    """What others take from now on. Collective over the ranks of the job."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.barrier()
        self._begun = _now()

    def record(self) -> Record:
        """The record ``others``: their shares of the processors since the beginning."""
        now = _now()
        counts = Taken(*(after - before for after, before in zip(now, self._begun, strict=True)))
        processes, guests = shares(self._world.everyone((_BOOT.read_text().strip(), counts)))
        return {"record": "others", "processes": processes, "guests": guests}
