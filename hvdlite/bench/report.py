"""Turns times into reports: statistics, bandwidths, the machine's bound, JSON lines and tables. Pure functions.

A *record* is one line of the output: a dictionary with the key ``record``, which is ``run`` (where and how), ``gpu`` (where
the tensors are, unless on the host), ``peer`` (who took part, or why not), ``measurement`` or ``others`` (how much of the
processors others had meanwhile). Times are seconds of the slowest rank for one call.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "BASELINES",
    "CEILINGS",
    "ISSUED",
    "absences",
    "bandwidths",
    "bound_seconds",
    "describe_gpu",
    "describe_others",
    "describe_run",
    "format_bytes",
    "format_seconds",
    "joined",
    "loop_of",
    "measurement",
    "overheads",
    "parse_bytes",
    "percentages",
    "ratios",
    "read_lines",
    "same_group",
    "short_bytes",
    "summary",
    "three_digits",
    "time_unit",
    "to_line",
    "versions",
    "with_percentages",
]

Record = dict[str, Any]

CEILINGS = ("memcpy", "rewrite")  # what no allreduce can beat, as long as it moves the same bytes
BASELINES = {
    "training": "none",
    "tensorflow_ops": "baseline",
    "backward": "none",
}  # the peer without communication, to which the others add; elsewhere there is none

_QUIET = 0.05  # of the processors that others may have before that is worth a warning

# Loads and stores that each of p ranks of a host issues for S bytes, in units of S. The floor is 2: every input is loaded
# once and every output stored once. Private: tile by tile through shared slots, a rank's own slice never packed.
ISSUED: Mapping[str, Callable[[int], float]] = {
    "floor": lambda ranks: 2.0,
    "private": lambda ranks: 5.0 - 2.0 / ranks,
    "packed": lambda ranks: 5.0 + 1.0 / ranks,
    "mpi_single_copy": lambda ranks: 7.0 * (ranks - 1) / ranks,
    "mpi_two_copies": lambda ranks: 9.0 * (ranks - 1) / ranks,
    "horovod": lambda ranks: 15.0 - 9.0 / ranks,
}

# What tells measurements apart besides the peer: those that agree in all of it were interleaved and can be compared.
_GROUP = ("case", "model", "zero_grad", "loop", "ranks", "bind", "cache", "bytes", "tensors")


# --- statistics -------------------------------------------------------------------------------------------------------


def summary(values: Iterable[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}


def bandwidths(nbytes: int, ranks: int, seconds: float) -> dict[str, float]:
    """The algorithm's and the bus bandwidth of an allreduce in bytes a second, as nccl-tests define them."""
    algbw = nbytes / seconds
    return {"algbw": algbw, "busbw": algbw * 2 * (ranks - 1) / ranks}


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times as long they took, from the medians of the rounds: pairs that were measured side by side."""
    return summary(their / our for their, our in zip(theirs, ours, strict=True))


def overheads(with_it: Sequence[float], without: Sequence[float]) -> dict[str, float]:
    """The added time in percent, from the medians of the rounds."""
    return {key: 100 * (value - 1) for key, value in ratios(with_it, without).items()}


def bound_seconds(path: str, ranks: int, copy_seconds: float) -> float:
    """The time in which a data path can issue its loads and stores, at the rate at which all ranks copy at once.

    Args:
        path: of `ISSUED`.
        ranks: of one host.
        copy_seconds: the time of a copy of the same S bytes when all ranks make one at the same time; a copy issues 2 S bytes.
            That they share memory, or cores, is in this number already.
    """
    return ISSUED[path](ranks) / ISSUED["floor"](ranks) * copy_seconds


def percentages(seconds: float, ranks: int, ceilings: Mapping[str, float]) -> dict[str, float]:
    """The reached part of the machine's speed: of each ceiling, and of the bound for private buffers.

    Args:
        seconds: a peer's time.
        ranks: of one host.
        ceilings: the seconds of those in `CEILINGS` for the same bytes.
    """
    reached = {f"percent_of_{name}": 100 * ceiling / seconds for name, ceiling in ceilings.items()}
    if "memcpy" in ceilings:
        reached["percent_of_bound"] = 100 * bound_seconds("private", ranks, ceilings["memcpy"]) / seconds
    return reached


# --- records ----------------------------------------------------------------------------------------------------------


def measurement(case: str, peer: str, rounds: Sequence[Sequence[float]], calls: int, **more: Any) -> Record:
    """The record of one peer in one case.

    Args:
        case: of the measurement.
        peer: by whom.
        rounds: the samples of each round: seconds of one call on the slowest rank.
        calls: back-to-back calls in a sample, whose time is divided by them.
        more: ranks, and what else tells this measurement from others.
    """
    times = summary(value for values in rounds for value in values)
    record = {"record": "measurement", "case": case, "peer": peer, **more, **times}
    record |= {"samples": sum(map(len, rounds)), "calls": calls, "rounds": [statistics.median(values) for values in rounds]}
    if more.get("bytes") and times["median"] > 0:
        record |= bandwidths(more["bytes"], more["ranks"], times["median"])
    return record


def same_group(record: Record) -> tuple[Any, ...]:
    """What measurements that can be compared have in common."""
    return tuple(record.get(key) for key in _GROUP)


def loop_of(record: Record) -> str:
    """In words, how a measurement of training was trained."""
    if "loop" in record:
        return {"fit": "model.fit", "tape": "a tf.function with a tape"}[record["loop"]]
    return f"gradients {'zeroed' if record['zero_grad'] == 'zero' else 'set to None'}"


def joined(parts: Sequence[Sequence[Record]]) -> list[Record]:
    """The records of one run that several jobs made in turn: each job is a round of the measurements it holds."""
    everything = [record for records in parts for record in records]
    found: list[Record] = [parts[0][0]]  # where and how
    others = [record for record in everything if record["record"] == "others"]
    peers: dict[str, Record] = {}
    groups: dict[object, dict[str, list[Record]]] = {}
    for record in everything:
        if record["record"] == "peer":
            peers[record["peer"]] = record
        elif record["record"] == "measurement":
            groups.setdefault(same_group(record), {}).setdefault(record["peer"], []).append(record)
    found += peers.values()
    for group in groups.values():
        rounds = min(len(of_peer) for of_peer in group.values())
        found += with_percentages([_as_rounds(of_peer[:rounds]) for of_peer in group.values()])
    if others:
        found.append({"record": "others"} | {who: max(record[who] for record in others) for who in ("processes", "guests")})
    return found


def _as_rounds(of_peer: Sequence[Record]) -> Record:
    first = of_peer[0]
    more = {key: first[key] for key in (*_GROUP, "gradient_bytes") if key in first and key != "case"}
    rounds = [[statistics.median(record["rounds"])] for record in of_peer]
    return measurement(first["case"], first["peer"], rounds, first["calls"], **more)


def with_percentages(group: Sequence[Record]) -> list[Record]:
    """Compares each member of a group with the group's ceiling and baseline, and adds the results."""
    ceilings = {record["peer"]: record["median"] for record in group if record["peer"] in CEILINGS}
    base = next((record for record in group if record["peer"] == BASELINES.get(record["case"])), None)
    done = []
    for record in group:
        added: Record = {}
        if ceilings and record["peer"] not in CEILINGS:
            added |= percentages(record["median"], record["ranks"], ceilings)
        if base is not None and record is not base:
            added["overhead_percent"] = overheads(record["rounds"], base["rounds"])
        done.append({**record, **added})
    return done


def to_line(record: Record) -> str:
    """The record as a line of JSON, with six significant digits."""
    return json.dumps(_rounded(record))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def read_lines(lines: Iterable[str]) -> list[Record]:
    """The records of an output file."""
    return [json.loads(line) for line in lines if line.strip()]


def describe_run(record: Record) -> str:
    """Some sentences about where and how, of a record ``run``."""
    bound = "bound to one core each" if record["bind"] == "core" else "not bound"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    where = "a host with" if record["hosts"] == 1 else f"{record['hosts']} hosts with, on the first,"
    text = f"{record['ranks']} ranks, {bound}, on {where} {record['cpus']} CPUs ({record['cpu']}); {versions}."
    if record["knobs"]:
        text += f" Knobs: {', '.join(f'{name}={value}' for name, value in record['knobs'].items())}."
    if record["ranks"] > record["cpus"] * record["hosts"]:
        text += " There are more ranks than CPUs, so they take turns."
    return text


def describe_others(record: Record) -> str:
    """Whether the machine was quiet, of a record ``others``."""
    processes, guests = record["processes"], record["guests"]
    text = f"Meanwhile other processes had {processes:.1%} of the processors, and the hypervisor's other guests {guests:.1%}"
    return text + (": do not trust these numbers." if max(processes, guests) > _QUIET else ".")


def describe_gpu(record: Record) -> str:
    """Where the tensors were, of a record ``gpu``."""
    shared = " Ranks share a GPU: it shows that it works, and the times say nothing." if record["shared"] else ""
    return f"The tensors are in the memory of GPUs ({record['name']}).{shared}"


def versions(records: Iterable[Record]) -> dict[str, str]:
    """The versions of the peers that took part, where they have any."""
    return {record["peer"]: record["version"] for record in records if record["record"] == "peer" and record["version"]}


def absences(records: Iterable[Record]) -> dict[str, str]:
    """The peers that took no part, with the reasons."""
    return {record["peer"]: record["absent"] for record in records if record["record"] == "peer" and record["absent"]}


# --- numbers for people -----------------------------------------------------------------------------------------------


_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a time has one to three digits before the point, and its length in seconds."""
    return next((unit for unit in _TIME_UNITS if seconds >= 0.9995 * unit[1]), _TIME_UNITS[-1])


def format_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    unit, size = time_unit(seconds)
    return f"{three_digits(seconds / size)} {unit}"


def three_digits(value: float) -> str:
    """The number with three digits, or with all those before its point."""
    magnitude = abs(value)
    return f"{value:.0f}" if magnitude >= 99.95 else f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20, "G": 1 << 30, "GIB": 1 << 30}


def format_bytes(nbytes: int) -> str:
    """In the largest unit that divides it, or to three digits."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size if nbytes % size == 0 else three_digits(nbytes / size)} {unit}"
    return f"{nbytes} B"


def short_bytes(nbytes: int) -> str:
    """As `parse_bytes` reads it."""
    return format_bytes(nbytes).replace(" ", "").removesuffix("B").removesuffix("i")


def parse_bytes(text: str) -> int:
    """A number of bytes, also with K, M or G (KiB, MiB, GiB).

    Raises:
        ValueError: it is none, or no multiple of the four bytes of a float32.
    """
    number = text.strip().rstrip("KMGiBkmgb ")
    suffix = text.strip()[len(number) :].strip().upper()
    if suffix not in _UNITS:
        raise ValueError(f"{text!r} is no size: write 4, 64K, 16M or 1G")
    nbytes = int(number) * _UNITS[suffix]
    if nbytes <= 0 or nbytes % 4:
        raise ValueError(f"{text!r} is no size for float32 elements: a positive multiple of 4 bytes is")
    return nbytes
