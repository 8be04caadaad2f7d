"""Reads the traces of a job's ranks from their files, and converts their times to one clock."""

import json
import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdlite.errors import InvalidArgumentError

Span = tuple[float, float]  # begin and end, microseconds
Event = dict[str, Any]

# Collectives that cannot end on a rank before they have begun on all ranks.
_ALL_WAIT_FOR_ALL = ("ALLREDUCE", "ALLGATHER", "ALLTOALL", "REDUCESCATTER", "BARRIER")

# The name of an event for a span in which all samples of the main thread's Python stack were equal.
STACK = "STACK"

_OF_TWO_RANKS = ("SEND", "RECV")

# The name of the span from the agreement to the start. It is the last span of an operation that ends without a start.
_AGREED = "WAIT_FOR_OTHER_TENSOR_DATA"

_WINDOW = 32  # operations that `matches` pairs together

# How far the times of two ranks may be wrong relative to each other, in microseconds: on one host, where only rounding counts,
# and on two hosts, before or after `align`.
_SAME_CLOCK, _OTHER_CLOCK = 1.0, 2_000.0


@dataclass
class TracedOperation:
    """One operation of one rank that has ended without an error. Times are in microseconds, on the clock of `Trace.events`.

    Attributes:
        name: the tensor's name.
        kind: the kind of the operation, such as ``ALLREDUCE``.
        submitted: time at which the program asked for the operation.
        data: begin and end of the time in which the operation's data moved.
        num_bytes: bytes of the tensor.
        fused_op: the number of the FusedOp; 0 if the data travelled with the agreement.
        process_set: the id of the process set, the same on all ranks.
    """

    name: str
    kind: str
    submitted: float
    data: Span
    num_bytes: int
    fused_op: int
    process_set: int

    @property
    def end(self) -> float:
        """The time at which the operation's data had moved."""
        return self.data[1]

    def apart(self, other: "TracedOperation", shift: float) -> float:
        """How far the times of another rank's operation are from these times. `shift` is added to the times of `other`."""
        return abs(other.submitted + shift - self.submitted) + abs(other.end + shift - self.end)

    def gap(self, other: "TracedOperation", shift: float) -> float:
        """The time from the end of the earlier operation to the begin of the later one; not positive if they overlap."""
        return max(other.submitted + shift - self.end, self.submitted - other.end - shift)


@dataclass
class Trace:
    """The trace of one rank.

    Attributes:
        rank: the rank that wrote the trace.
        size: number of ranks of the job.
        host: name of the rank's host.
        boot_id: an identifier of the host's clock: ranks with the same value share a clock.
        clock_to_epoch: microseconds to add to the trace's times to get times of the wall clock.
        events: the events of the files, oldest first.
        operations: the operations that ended without an error, by number.
        waits: begin and end of each wait of the program for an operation.
        stacks: samples of the main thread's Python stack: begin, end, and the calls from the outermost to the innermost.
        dropped: number of events that the rank could not write.
    """

    rank: int
    size: int
    host: str
    boot_id: str
    clock_to_epoch: float
    events: list[Event]
    operations: dict[int, TracedOperation] = field(default_factory=dict)
    waits: list[Span] = field(default_factory=list)
    stacks: list[tuple[Span, str]] = field(default_factory=list)
    dropped: int = 0


def file_of_rank(path: str, rank: int, recoveries: int) -> Path:
    """The file that a rank writes, where `files_of_job` looks for it.

    Args:
        path: the path of rank 0's file. It may be relative. The result is absolute, because hvdlite renames a file that has
            become large, and the program may have changed its folder by then.
        rank: the number to put into the name; for rank 0 the name has no number.
        recoveries: how often the job has gone on with other ranks. From 1 on the name has a number, so that the new
            ranks do not overwrite the files of the old ranks.
    """
    file = Path(path).absolute()
    if recoveries:
        file = file.with_name(f"{file.stem}.job{recoveries + 1}{file.suffix}")
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}") if rank else file


def files_of_job(path: Path) -> list[Path]:
    """Finds the files of all ranks, from the path of rank 0's file.

    Raises:
        InvalidArgumentError: there is no such file.
    """
    if not path.exists():
        raise InvalidArgumentError(f"there is no timeline at '{path}': record one with HVDLITE_TIMELINE or start_timeline()")
    others = re.compile(re.escape(path.stem) + r"\.rank(\d+)" + re.escape(path.suffix))
    found = [(int(match[1]), entry) for entry in path.parent.iterdir() if (match := others.fullmatch(entry.name))]
    return [path, *(entry for _, entry in sorted(found))]


def read(path: Path) -> Trace:
    """Reads a rank's file and its file of stacks. If a file has an older half (``.old``), the older half is read first.

    Raises:
        InvalidArgumentError: the file is no timeline of hvdlite, or it has the events of several ranks.
    """
    events = _events(path)
    stacks = stacks_file(path)
    if stacks.exists():
        events += _events(stacks)
    try:
        heads = [event["args"] for event in events if event.get("name") == "hvdlite" and event.get("ph") == "M"]
        if not heads:
            raise InvalidArgumentError(f"'{path}' is no timeline of hvdlite: it does not name its rank")
        if len({head["rank"] for head in heads}) > 1:
            raise InvalidArgumentError(
                f"'{path}' has the events of several ranks, as `hvdlite timeline merge` writes them: pass the ranks' own files"
            )
        head = heads[-1]
        trace = Trace(head["rank"], head["size"], head["host"], head["boot_id"], head["clock_to_epoch_us"], events)
        _follow(trace)
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"'{path}' is damaged: an event lacks a part ({type(error).__name__}: {error})") from error
    return trace


def stacks_file(path: Path) -> Path:
    """The path of the file with samples of the Python stack, for the path of a rank's file."""
    return path.with_name(f"{path.stem}.stacks{path.suffix}")


def _events(path: Path) -> list[Event]:
    events: list[Event] = []
    for part in (path.parent / f"{path.name}.old", path):
        if part is path or part.exists():
            try:
                content = _parse(_at_once(part).decode(errors="replace"))
            except (OSError, ValueError) as error:
                raise InvalidArgumentError(f"'{part}' cannot be read as a timeline: {error}") from error
            events += content if isinstance(content, list) else []
    return events


def _at_once(path: Path) -> bytes:
    """The content of a file, by one read: a file that grows may have changed before a second read."""
    with path.open("rb", buffering=0) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def _parse(text: str) -> Any:
    """Parses the content of a file. The last event is left out if it is incomplete, because the write had not ended."""
    try:
        return json.loads(text)
    except ValueError:
        end = text.rfind("}}")  # each event is one line that ends with these characters
        if end < 0:
            raise
        return json.loads(text[: end + 2] + "]")


def _follow(trace: Trace) -> None:
    names = {event["tid"]: event["args"]["name"] for event in trace.events if event["name"] == "thread_name"}
    submitted: dict[int, float] = {}
    for event in trace.events:
        if event["name"] == "DROPPED":
            trace.dropped = event["args"]["events"]
        if event["ph"] != "X":
            continue
        name, begin, end = event["name"], event["ts"], event["ts"] + event["dur"]
        if name == "WAIT":
            trace.waits.append((begin, end))
            continue
        if name == STACK:
            trace.stacks.append(((begin, end), event["args"]["calls"]))
            continue
        about = event["args"]
        number = about["operation"]
        submitted.setdefault(number, begin)
        if not name.startswith("NEGOTIATE_") and "bytes" in about and "failed" not in about:
            # As in Horovod's timelines, the name of the row has a prefix, which is the kind of the operation.
            row = names.get(event["tid"], "?")
            kind = row.partition(".")[0].upper() if name == _AGREED else name
            trace.operations[number] = TracedOperation(
                row.removeprefix(f"{kind.lower()}."),
                kind,
                submitted[number],
                (begin, end),
                about["bytes"],
                about.get("fused_op", 0),
                about.get("process_set", 0),
            )


def occurrences(trace: Trace) -> dict[tuple[str, str, int], list[TracedOperation]]:
    """The collectives by kind, name and process set. Each list is in the order of time.

    Messages between two ranks are left out, because their names do not match between ranks.
    """
    found = defaultdict(list)
    for operation in trace.operations.values():
        if operation.kind not in _OF_TWO_RANKS:
            found[operation.kind, operation.name, operation.process_set].append(operation)
    return found


def matches(one: Trace, other: Trace, shift: float) -> Iterable[tuple[TracedOperation, TracedOperation]]:
    """Pairs of operations of two ranks that are the same collective.

    Both ranks run the collectives of one kind, name and process set in the same order, but either trace may lack some of these
    collectives. So pairs are made in windows of operations: all pairs of a window have the same offset, which is the difference
    of the two places in the two orders. No collective ends on a rank before all ranks have asked for it. So an offset is wrong
    if one operation of a pair ends before the other operation of the pair begins (`TracedOperation.gap`). A window takes the
    offset with the smallest gaps; of several such offsets, the one with which the times differ least. A window of one operation
    would not suffice, because a rank that wakes up late ends an operation at the time at which another rank ends the next
    operation.

    `shift` is added to the times of `other`.
    """
    theirs = occurrences(other)
    tolerance = _SAME_CLOCK if one.boot_id == other.boot_id else _OTHER_CLOCK
    for key, mine in occurrences(one).items():
        candidates = theirs.get(key, [])
        nearest: dict[int, tuple[float, TracedOperation]] = {}  # by the place of the candidate
        for begin in range(0, len(mine), _WINDOW):
            for place, apart, operation in _closest_pairs(mine[begin : begin + _WINDOW], candidates, shift, tolerance):
                if place not in nearest or apart < nearest[place][0]:
                    nearest[place] = (apart, operation)
        for place, (_, operation) in nearest.items():
            yield operation, candidates[place]


def _closest_pairs(
    window: Sequence[TracedOperation], candidates: Sequence[TracedOperation], shift: float, tolerance: float
) -> list[tuple[int, float, TracedOperation]]:
    """The pairs of the best offset: the candidate's place, the difference of the times, and the operation of the window."""

    def pairs(offset: int) -> list[tuple[int, TracedOperation]]:
        return [(place, one) for place, one in enumerate(window, offset) if 0 <= place < len(candidates)]

    def cost(found: list[tuple[int, TracedOperation]]) -> tuple[float, float]:
        gaps = sum(max(0.0, one.gap(candidates[place], shift) - tolerance) for place, one in found)
        return gaps / len(found), sum(one.apart(candidates[place], shift) for place, one in found) / len(found)

    near = {
        bisect_left(candidates, window[index].end - shift, key=lambda candidate: candidate.end) - index
        for index in (0, len(window) // 2, len(window) - 1)
    }
    possible = filter(None, (pairs(offset + step) for offset in near for step in range(-2, 3)))
    return [(place, one.apart(candidates[place], shift), one) for place, one in min(possible, key=cost, default=[])]


def align(traces: Sequence[Trace]) -> list[float]:
    """For each trace the number of microseconds to add to its times, so that all times are on the clock of the first trace.

    Ranks of one host share a clock. For another host the difference of the wall clocks is a first guess. A collective cannot
    end on one host before it has begun on the other, so each collective gives a lower and an upper bound of the number to add.
    The result is the middle of the narrowest bounds. Its error is at most the time of the fastest collective.
    """
    first = traces[0]
    shifts = []
    for trace in traces:
        if trace.boot_id == first.boot_id:
            shifts.append(0.0)
            continue
        guess = trace.clock_to_epoch - first.clock_to_epoch
        least, most = float("-inf"), float("inf")
        for mine, theirs in matches(first, trace, guess):
            if mine.kind in _ALL_WAIT_FOR_ALL:
                least = max(least, mine.data[0] - theirs.data[1])
                most = min(most, mine.data[1] - theirs.data[0])
        # If the clocks drift, perhaps no number satisfies all bounds. The middle is then still the best estimate.
        shifts.append((least + most) / 2 if least > float("-inf") else guess)
    return shifts


def merge(traces: Sequence[Trace]) -> list[Event]:
    """The events of all ranks, on the clock of the first trace, shifted so that the first event is at 0."""
    shifts = align(traces)
    times = [
        event["ts"] + shift for trace, shift in zip(traces, shifts, strict=True) for event in trace.events if "ts" in event
    ]
    start = min(times, default=0.0)
    merged = []
    for trace, shift in zip(traces, shifts, strict=True):
        for event in trace.events:
            if "ts" in event:
                event = {**event, "ts": round(event["ts"] + shift - start, 3)}
            merged.append(event)
    return merged
