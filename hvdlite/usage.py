"""The cost of communication on this rank: `stats` takes a snapshot of counters; the difference of two is the cost of an
interval.

The native engine counts (csrc/engine/observe/usage.h); docs/stats.md says how to read the numbers.
"""

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.objects import allgather_object
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.runtime import RUNTIME

__all__ = ["Stats", "gather_stats", "mark_step", "stats"]

_SECONDS = ("negotiating", "waiting", "moving", "exposed", "exposed_moving")


@dataclass(frozen=True)
class Stats:
    """The cost of communication on one rank: since `init`, or, in a difference of two snapshots, between the snapshots.

    The time of a stage is the time during which *at least one* operation was in that stage: operations that overlap count
    once. The stages of different operations may overlap.

    Attributes:
        rank: the rank that counted.
        size: the number of ranks in the job.
        seconds: the wall-clock time of the interval.
        steps: training steps that ended: those of `DistributedOptimizer` in torch, or those that `mark_step` counted.
        operations: operations that ended without an error, including those that move no data.
        failed_operations: operations that ended with an error.
        fused_operations: executed operations: several small allreduces may be executed as one.
        bytes: the bytes of the data of operations, counted as nccl-tests does: the whole result of an allgather, what this
            rank sends in an alltoall, the input of all others.
        bus_bytes: the least bytes that each rank's link has to carry: `bytes` times 2(n-1)/n for an allreduce of n ranks,
            (n-1)/n for allgather, alltoall and reducescatter, 1 for broadcast. Tiny operations, whose data travel with the
            agreement, count 0.
        sent_bytes: the bytes that this rank sent as messages; exchanges in shared memory do not count.
        uncoded_bytes, coded_bytes: the bytes of the elements that this rank has sent coded (`Compression.int8` and others),
            before coding and after coding.
        control_messages: the messages that this rank sent for the negotiation, and to announce or answer sends and receives. Up
            to 64 ranks that are all on one host send none for most operations; docs/stats.md lists the other operations.
        control_bytes: the bytes of the control messages.
        agreed_in_memory: operations that were agreed on in the ledger, without the coordinator.
        negotiating_seconds: the time in which an operation was submitted on this rank and not agreed on, because this rank
            gathered more operations or because another rank had not asked for the operation yet.
        waiting_seconds: the part of `negotiating_seconds` after this rank had announced the operation: another rank had not
            asked for it, or that rank's message had not come.
        moving_seconds: the time in which the data of an operation moved, or were reduced. For GPU memory only the host's part
            counts.
        exposed_seconds: the time in which a thread of the program was blocked until an operation ended; for several threads the
            sum. It is 0 in TensorFlow's graphs that XLA does not compile: these graphs get results by callbacks, and no thread
            is blocked.
        exposed_moving_seconds: the part of `exposed_seconds` in which data moved. In the rest this rank waited for other ranks.
        last_to_ask: for each rank, the number of operations for which that rank was the last to ask; only operations in which
            this rank took part.
        waited_for_seconds: `waiting_seconds` by rank: each moment of waiting counts for the rank whose request ended the wait.
        last_step: the `Stats` of the last training step alone, or of the steps that the last call of `mark_step` counted; None
            before two steps (or calls) have ended, and in differences.
        job: the number of the job among those that this process has joined. Each `init` joins another job, and so do the ranks
            of an elastic job that continues after a loss.
    """

    rank: int
    size: int
    seconds: float
    steps: int
    operations: int
    failed_operations: int
    fused_operations: int
    bytes: int
    bus_bytes: int
    sent_bytes: int
    uncoded_bytes: int
    coded_bytes: int
    control_messages: int
    control_bytes: int
    agreed_in_memory: int
    negotiating_seconds: float
    waiting_seconds: float
    moving_seconds: float
    exposed_seconds: float
    exposed_moving_seconds: float
    last_to_ask: tuple[int, ...]
    waited_for_seconds: tuple[float, ...]
    last_step: "Stats | None" = None
    job: int = 1

    @property
    def bus_bandwidth(self) -> float:
        """`bus_bytes` per second of `moving_seconds`; 0 if no data moved."""
        return self.bus_bytes / self.moving_seconds if self.moving_seconds > 0 else 0.0

    @property
    def exposed_waiting_seconds(self) -> float:
        """The part of `exposed_seconds` in which no data moved: this rank waited for others."""
        return self.exposed_seconds - self.exposed_moving_seconds

    @property
    def slowest_rank(self) -> int | None:
        """The rank that was most often the last to ask; None if no rank ever was. If all operations were on one process set,
        all its ranks get the same rank.
        """
        most = max(self.last_to_ask)
        return self.last_to_ask.index(most) if most else None

    @property
    def slowest_share(self) -> float:
        """The share of operations, from 0 to 1, for which `slowest_rank` was the last to ask. Pure chance gives 1 / `size`."""
        total = sum(self.last_to_ask)
        return max(self.last_to_ask) / total if total else 0.0

    def __sub__(self, earlier: "Stats") -> "Stats":
        """What happened since an earlier snapshot of the same rank.

        Raises:
            InvalidArgumentError: `earlier` is of another rank or job, or is later.
        """
        if not isinstance(earlier, Stats):
            return NotImplemented
        mine, theirs = (f"rank {each.rank} of {each.size} in job {each.job} of the process" for each in (self, earlier))
        if mine != theirs:
            raise InvalidArgumentError(
                f"stats of {mine} minus those of {theirs}: subtract an earlier snapshot of the same rank and the same init()"
            )
        if earlier.seconds > self.seconds or earlier.operations > self.operations or earlier.steps > self.steps:
            raise InvalidArgumentError(
                f"these stats span {self.seconds:.3f} s and {self.operations} operations, but the subtracted stats span "
                f"{earlier.seconds:.3f} s and {earlier.operations} operations: "
                "subtract the earlier snapshot from the later one"
            )
        values: dict[str, Any] = {"rank": self.rank, "size": self.size, "job": self.job}
        for name in _SUMS:
            mine, other = getattr(self, name), getattr(earlier, name)
            pairs = isinstance(mine, tuple)
            values[name] = tuple(a - b for a, b in zip(mine, other, strict=True)) if pairs else mine - other
        return Stats(**values)

    def as_dict(self) -> dict[str, Any]:
        """All numbers by name, with the properties, in types that JSON has. The last step is a nested dictionary."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["last_to_ask"] = list(self.last_to_ask)
        values["waited_for_seconds"] = list(self.waited_for_seconds)
        for name in ("bus_bandwidth", "exposed_waiting_seconds", "slowest_rank", "slowest_share"):
            values[name] = getattr(self, name)
        values["last_step"] = None if self.last_step is None else self.last_step.as_dict()
        return values

    def __str__(self) -> str:
        """A few lines of text, with means per step if there were steps."""
        parts, each = (self.steps, " in each") if self.steps else (1, "")
        ms = {name: f"{1e3 * getattr(self, name) / parts:.3f} ms" for name in (f"{each}_seconds" for each in _SECONDS)}
        waiting = f"{1e3 * self.exposed_waiting_seconds / parts:.3f} ms for other ranks"
        lines = [
            f"rank {self.rank} of {self.size}: {self.steps} steps in {self.seconds:.3f} s{each and f';{each}:'}",
            f"  exposed wait   {ms['exposed_seconds']}: {ms['exposed_moving_seconds']} while data moved, {waiting}",
            f"  stages         negotiating {ms['negotiating_seconds']}, of it waiting for ranks {ms['waiting_seconds']}; "
            f"moving data {ms['moving_seconds']}",
            f"  operations     {self.operations / parts:.1f} in {self.fused_operations / parts:.1f} fused ones; "
            f"{self.bytes / parts:,.0f} bytes at {self.bus_bandwidth / 1e9:.3f} GB/s (bus)",
            f"  control        {self.control_messages / parts:.1f} messages of {self.control_bytes / parts:,.0f} bytes",
        ]
        if self.coded_bytes:
            lines.append(f"  coded          {self.uncoded_bytes / parts:,.0f} bytes as {self.coded_bytes / parts:,.0f}")
        slowest = self.slowest_rank
        if slowest is not None:
            waited = 1e3 * self.waited_for_seconds[slowest] / parts
            lines.append(
                f"  last to ask    rank {slowest}, of {self.slowest_share:.0%} of the operations; "
                f"this rank waited {waited:.3f} ms for it"
            )
        if self.failed_operations:
            lines.append(f"  failed         {self.failed_operations} operations")
        return "\n".join(lines)


_SUMS = tuple(field.name for field in fields(Stats) if field.name not in ("rank", "size", "last_step", "job"))


def stats() -> Stats:
    """The cost of communication on this rank since `init`. Local: it sends nothing.

    Take a snapshot before and one after, and subtract: ``stats() - before`` is the cost of the time between them. The call
    takes some microseconds and disturbs no operation; any thread may make it.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    now = _read(RUNTIME.require())
    before, last = RUNTIME.steps.marks
    if before is None or last is None:
        return now
    return replace(now, last_step=last - before)


def gather_stats(process_set: ProcessSet = global_process_set) -> tuple[Stats, ...]:
    """`stats` of all ranks, in rank order. Collective over `process_set`; the numbers do not include this call's own messages.

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError, HorovodInternalError: as for `hvdlite.allgather_object`.
    """
    return tuple(allgather_object(stats(), process_set=process_set))


def mark_step(steps: int = 1) -> None:
    """Marks the end of a training step of the program, for `Stats.steps` and `Stats.last_step`. Local.

    torch's `DistributedOptimizer` marks a step at each ``step()``. Once the program has called `mark_step`, only the program's
    calls count. A program needs `mark_step` if two optimizers work in one training step, for example.

    Args:
        steps: how many training steps have ended since the last call; for frameworks that run several steps at once.

    Raises:
        NotInitializedError: `init` has not been called.
        InvalidArgumentError: `steps` is no whole number of at least 0.
    """
    if not isinstance(steps, Integral) or steps < 0:
        raise InvalidArgumentError(f"mark_step({steps!r}): steps is how many steps have ended, a whole number of at least 0")
    engine, marked = RUNTIME.require(), RUNTIME.steps
    if not marked.by_program:
        marked.by_program = True
        marked.marks = (None, None)
    _mark(engine, steps)


def optimizer_stepped() -> None:
    """Optimizers call this at the end of a step. Does nothing if the program marks its steps, or after `shutdown`."""
    engine = RUNTIME.engine
    if engine is not None and not RUNTIME.steps.by_program:
        _mark(engine)


def _mark(engine: Any, steps: int = 1) -> None:
    marked = RUNTIME.steps
    marked.count += steps
    marked.marks = (marked.marks[1], _read(engine))
    for watch in tuple(marked.watchers):
        watch()


def _read(engine: Any) -> Stats:
    counters: dict[str, int] = engine.counters()
    operations, waited = engine.lateness()
    topology = RUNTIME.require_topology()
    times: dict[str, Any] = {name: counters[f"{name}_ns"] / 1e9 for name in _SECONDS}
    return Stats(
        rank=topology.rank,
        size=topology.size,
        seconds=counters["time_ns"] / 1e9,
        steps=RUNTIME.steps.count,
        operations=counters["completed"],
        failed_operations=counters["failed"],
        fused_operations=counters["fused_ops"],
        bytes=counters["bytes"],
        bus_bytes=counters["bus_bytes"],
        sent_bytes=counters["data_bytes_sent"],
        uncoded_bytes=counters["coded_bytes_before"],
        coded_bytes=counters["coded_bytes_after"],
        control_messages=counters["control_messages_sent"],
        control_bytes=counters["control_bytes_sent"],
        agreed_in_memory=counters["agreed_in_memory"],
        **{f"{name}_seconds": seconds for name, seconds in times.items()},
        last_to_ask=tuple(operations),
        waited_for_seconds=tuple(each / 1e9 for each in waited),
        job=RUNTIME.steps.job,
    )
