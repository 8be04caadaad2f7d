"""Measures the processor time that others took during a benchmark: other processes, and the hypervisor's other guests."""

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
    """Processor time in seconds, of all processors of a machine together.

    Attributes:
        there: the time that the processors have run.
        busy: the time that processes took.
        stolen: the time that the hypervisor gave to other guests.
        own: the time that this process took.
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
    """The seconds that the processors have run so far, and the seconds that processes and other guests took of them."""
    now = _now()
    return now.there, now.busy + now.stolen


def shares(taken: Iterable[tuple[str, Taken]]) -> tuple[float, float]:
    """The largest share of the processor time that other processes took on any machine, and the largest that other guests took.

    Args:
        taken: for each rank, the id of its machine and the processor time that it has measured.
    """
    machines: dict[str, list[Taken]] = defaultdict(list)
    for machine, counts in taken:
        machines[machine].append(counts)
    processes = (max(0.0, ranks[0].busy - sum(rank.own for rank in ranks)) / ranks[0].there for ranks in machines.values())
    guests = (ranks[0].stolen / ranks[0].there for ranks in machines.values())
    return max(processes), max(guests)


class Others:
    """The processor time that others take from now on. Making it, and `record`, are collective over the ranks of the job."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.barrier()
        self._begun = _now()

    def record(self) -> Record:
        """The record ``others``: the shares of the processors that others took since this object was made."""
        now = _now()
        counts = Taken(*(after - before for after, before in zip(now, self._begun, strict=True)))
        processes, guests = shares(self._world.everyone((_BOOT.read_text().strip(), counts)))
        return {"record": "others", "processes": processes, "guests": guests}
