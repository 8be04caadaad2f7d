"""Measures the processor time that others took during a benchmark: other processes, and the hypervisor's other guests."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hvdlite.bench.report import Record
from hvdlite.bench.world import World
from hvdlite.tuning.place import boot_id

_STAT = Path("/proc/stat")
_TICKS = os.sysconf("SC_CLK_TCK")


class Taken(NamedTuple):
    """Processor time in seconds, of all processors of a machine together.

    Attributes:
        there: the time that has passed, times the number of processors.
        busy: the time that processes took.
        stolen: the time that the hypervisor gave to other guests.
        own: the time of this process, and of those ended children for which this process has waited.
    """

    there: float
    busy: float
    stolen: float
    own: float


def taken() -> Taken:
    """The processor time up to now."""
    user, nice, system, _idle, _iowait, _irq, _softirq, stolen = (
        int(ticks) / _TICKS for ticks in _STAT.read_text().split(maxsplit=9)[1:9]
    )
    return Taken(time.monotonic() * (os.cpu_count() or 1), user + nice + system, stolen, sum(os.times()[:4]))


def taken_since(begun: Taken) -> Taken:
    """The processor time since `begun` was taken."""
    return Taken(*(after - before for after, before in zip(taken(), begun, strict=True)))


def shares(measured: Iterable[tuple[str, Taken]]) -> tuple[float, float]:
    """The largest share of the processor time that other processes took on any machine, and the largest share that guests took.

    Args:
        measured: for each rank, the id of its machine and the processor time that it has measured.
    """
    machines: dict[str, list[Taken]] = defaultdict(list)
    for machine, counts in measured:
        machines[machine].append(counts)
    processes = (max(0.0, ranks[0].busy - sum(rank.own for rank in ranks)) / ranks[0].there for ranks in machines.values())
    guests = (ranks[0].stolen / ranks[0].there for ranks in machines.values())
    return max(processes), max(guests)


def share_since(begun: Taken) -> float:
    """The share of this machine's processors that other processes and guests took since `begun`."""
    return sum(shares([("", taken_since(begun))]))


class Others:
    """The processor time that others take after this object is made.

    Making the object and calling `record` are collective over the ranks of the job.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        world.barrier()
        self._begun = taken()

    def record(self) -> Record:
        """The record ``others``: the shares of the processors that others took since this object was made."""
        processes, guests = shares(self._world.everyone((boot_id(), taken_since(self._begun))))
        return {"record": "others", "processes": processes, "guests": guests}
