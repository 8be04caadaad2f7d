"""Turns times into records and text: statistics, bandwidths, a bound for times, and lines of JSON. All functions are pure.

A *record* is one line of the output: a dictionary with the key ``record``. Its value is ``run`` (machine and arguments),
``gpu`` (the GPUs of the tensors), ``peer`` (a peer's version, or the reason why it is absent), ``measurement``, or ``others``
(the processor time that others took). Times are seconds on the slowest rank: of one call, or of one of the tensors or training
steps of a call. `hvdlite.bench.kernels` and `hvdlite.bench.guard` have records of their own.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = dict[str, Any]

CEILINGS = ("memcpy", "rewrite")  # no allreduce of as many bytes can be faster than these
# For some cases: the peer without communication, with which the other peers of the case are compared.
BASELINES = {"training": "none", "tensorflow_ops": "baseline", "backward": "none"}

_QUIET = 0.05  # the share of the processors that others may take without a warning

# The keys that form a group. Measurements with equal values of all these keys were made alternately and can be compared.
_GROUP = ("case", "model", "zero_grad", "loop", "ranks", "bind", "cache", "bytes", "tensors")


# --- statistics -------------------------------------------------------------------------------------------------------


def summary(values: Iterable[float]) -> dict[str, float]:
    """The median, the smallest and the largest of the values."""
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}


def bandwidths(nbytes: int, ranks: int, seconds: float) -> dict[str, float]:
    """The algorithm bandwidth and the bus bandwidth of an allreduce in bytes a second, as nccl-tests defines them."""
    algbw = nbytes / seconds
    return {"algbw": algbw, "busbw": algbw * 2 * (ranks - 1) / ranks}


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The median, smallest and largest of the ratios `theirs` / `ours`, which have the median time of each round."""
    return summary(their / our for their, our in zip(theirs, ours, strict=True))


def overheads(with_it: Sequence[float], without: Sequence[float]) -> dict[str, float]:
    """The added time in percent: median, smallest and largest. The arguments have the median time of each round."""
    return {key: 100 * (value - 1) for key, value in ratios(with_it, without).items()}


def bound_seconds(ranks: int, copy_seconds: float) -> float:
    """The time in which an allreduce of private buffers issues its loads and stores, if they are as fast as in a copy.

    Private buffers are memory that other ranks do not map. For S bytes, each of p ranks of a host issues (5 - 2 / p) S bytes:
    the data go tile by tile through shared slots, and no rank packs its own slice. No algorithm can issue fewer than 2 S bytes,
    because each input is loaded once and each output is stored once.

    Args:
        ranks: the number of ranks of one host.
        copy_seconds: the time of a copy of the same S bytes if all ranks make one at the same time. A copy issues 2 S bytes.
            This time includes the effect that the ranks share memory and perhaps cores.
    """
    return (5.0 - 2.0 / ranks) / 2.0 * copy_seconds


def percentages(seconds: float, ranks: int, ceilings: Mapping[str, float]) -> dict[str, float]:
    """The part of the machine's speed that a peer reaches, in percent: of each ceiling, and of the bound for private buffers.

    Args:
        seconds: the peer's time.
        ranks: the number of ranks of one host.
        ceilings: the seconds of each measured ceiling for the same bytes.
    """
    reached = {f"percent_of_{name}": 100 * ceiling / seconds for name, ceiling in ceilings.items()}
    if "memcpy" in ceilings:
        reached["percent_of_bound"] = 100 * bound_seconds(ranks, ceilings["memcpy"]) / seconds
    return reached


# --- records ----------------------------------------------------------------------------------------------------------


def measurement(case: str, peer: str, rounds: Sequence[Sequence[float]], calls: int, **more: Any) -> Record:
    """The record of one peer in one case.

    Args:
        case: the name of the case.
        peer: the name of the peer.
        rounds: the samples of each round, in seconds on the slowest rank.
        calls: the number of back-to-back calls in a sample.
        more: further keys of the record, such as ``ranks``, and ``bytes`` for a bandwidth.
    """
    times = summary(value for values in rounds for value in values)
    record = {"record": "measurement", "case": case, "peer": peer, **more, **times}
    record |= {"samples": sum(map(len, rounds)), "calls": calls, "rounds": [statistics.median(values) for values in rounds]}
    if more.get("bytes") and times["median"] > 0:
        record |= bandwidths(more["bytes"], more["ranks"], times["median"])
    return record


def same_group(record: Record) -> tuple[Any, ...]:
    """The group of a measurement. Measurements of one group can be compared."""
    return tuple(record.get(key) for key in _GROUP)


def loop_of(record: Record) -> str:
    """The loop of a measurement of training, in words."""
    if "loop" in record:
        return {"fit": "model.fit", "tape": "a tf.function with a tape"}[record["loop"]]
    return f"gradients {'zeroed' if record['zero_grad'] == 'zero' else 'set to None'}"


def joined(parts: Sequence[Sequence[Record]]) -> list[Record]:
    """Joins the records of several jobs of one run. A measurement that several jobs made gets one round from each job."""
    everything = [record for records in parts for record in records]
    found: list[Record] = [parts[0][0]]  # the record ``run``
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
    """Compares each record of a group with the group's ceilings and baseline, and adds the results to the record."""
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
    """A record ``run`` in words: the machine, the versions and the knobs."""
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
    """A record ``others`` in words: was the machine quiet?"""
    processes, guests = record["processes"], record["guests"]
    text = f"Other processes took {processes:.1%} of the processors, and the hypervisor's other guests {guests:.1%}"
    return text + (": do not trust these numbers." if max(processes, guests) > _QUIET else ".")


def describe_gpu(record: Record) -> str:
    """A record ``gpu`` in words: the GPUs of the tensors."""
    shared = " Ranks share a GPU, so the times mean nothing." if record["shared"] else ""
    return f"The tensors are in the memory of GPUs ({record['name']}).{shared}"


def versions(records: Iterable[Record]) -> dict[str, str]:
    """The versions of the peers that took part and have a version."""
    return {record["peer"]: record["version"] for record in records if record["record"] == "peer" and record["version"]}


def absences(records: Iterable[Record]) -> dict[str, str]:
    """The peers that took no part, with the reasons."""
    return {record["peer"]: record["absent"] for record in records if record["record"] == "peer" and record["absent"]}


# --- numbers as text --------------------------------------------------------------------------------------------------


_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a time has one to three digits before the point, and the unit's length in seconds."""
    return next((unit for unit in _TIME_UNITS if seconds >= 0.9995 * unit[1]), _TIME_UNITS[-1])


def format_seconds(seconds: float) -> str:
    """A time with three digits and a unit."""
    unit, size = time_unit(seconds)
    return f"{three_digits(seconds / size)} {unit}"


def three_digits(value: float) -> str:
    """The number with three digits; a large number without decimals, with all its digits."""
    magnitude = abs(value)
    return f"{value:.0f}" if magnitude >= 99.95 else f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20, "G": 1 << 30, "GIB": 1 << 30}


def format_bytes(nbytes: int) -> str:
    """A size in the largest unit that is not larger than the size: a whole number if the unit divides it, else three digits."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size if nbytes % size == 0 else three_digits(nbytes / size)} {unit}"
    return f"{nbytes} B"


def short_bytes(nbytes: int) -> str:
    """A size in the form that `parse_bytes` reads."""
    return format_bytes(nbytes).replace(" ", "").removesuffix("B").removesuffix("i")


def parse_bytes(text: str) -> int:
    """The number of bytes that a text such as 4, 64K, 16M or 1G names. K, M and G stand for KiB, MiB and GiB.

    Raises:
        ValueError: the text is not a size, or the size is not a positive multiple of the four bytes of a float32.
    """
    number = text.strip().rstrip("KMGiBkmgb ")
    suffix = text.strip()[len(number) :].strip().upper()
    if suffix not in _UNITS or not number.isdigit():
        raise ValueError(f"{text!r} is not a size: write for example 4, 64K, 16M or 1G")
    nbytes = int(number) * _UNITS[suffix]
    if nbytes <= 0 or nbytes % 4:
        raise ValueError(f"{text!r} is not a size of float32 elements: give a positive multiple of 4 bytes")
    return nbytes
