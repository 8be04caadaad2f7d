"""Makes tables in markdown from records. The tables are also readable in a terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from hvdlite.bench.report import (
    BASELINES,
    CEILINGS,
    Record,
    absences,
    describe_gpu,
    describe_others,
    describe_run,
    format_bytes,
    format_seconds,
    loop_of,
    ratios,
    same_group,
    summary,
    three_digits,
    time_unit,
    versions,
)

_OURS = "hvdlite"
_LIMITS = ("memcpy", "rewrite", "bound")
_FIRST_PERCENTAGE = 64 << 10  # bytes: for less, the call takes most of the time, so no percentage is shown


def tables(records: Sequence[Record]) -> str:
    """The tables of all measurements, one run after the other.

    Args:
        records: the records of an output file, in its order. The records of a run follow its record ``run``.
    """
    parts = []
    for run in _runs(records):
        parts.append(describe_run(run[0]))
        parts += [describe_gpu(record) for record in run if record["record"] == "gpu"]
        parts += [describe_others(record) for record in run if record["record"] == "others"]
        if known := versions(run):
            parts.append("Versions: " + ", ".join(f"{peer}: {version}" for peer, version in known.items()) + ".")
        parts += [f"Not measured: {peer} ({reason})." for peer, reason in absences(run).items()]
        measured = [record for record in run if record["record"] == "measurement"]
        for title, cases, render in _SECTIONS:
            found = [record for record in measured if record["case"] in cases]
            if found:
                parts += [f"**{title}**", render(found)]
    return "\n\n".join(parts)


def progress(records: Sequence[Record]) -> str:
    """One line of progress about the measurements of a group; an empty text for other records."""
    measured = [record for record in records if record["record"] == "measurement"]
    if not measured:
        return ""
    times = [f"{record['peer']} {format_seconds(record['median'])}" for record in measured]
    return f"{_label({'': measured[0]})}: {', '.join(times)}"


def _runs(records: Iterable[Record]) -> list[list[Record]]:
    runs: list[list[Record]] = []
    for record in records:
        if record["record"] == "run" or not runs:
            runs.append([])
        runs[-1].append(record)
    return runs


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with aligned columns: the first column to the left, the others to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["| " + " | ".join(_aligned(row, widths)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _grouped(records: Iterable[Record]) -> list[dict[str, Record]]:
    """The measurements of each group, by peer."""
    groups: dict[object, dict[str, Record]] = {}
    for record in records:
        groups.setdefault(same_group(record), {})[record["peer"]] = record
    return list(groups.values())


def _peers(groups: Iterable[Mapping[str, Record]]) -> list[str]:
    """The names of all peers in the order of their first appearance; the ceilings come last."""
    names = list(dict.fromkeys(name for group in groups for name in group))
    return sorted(names, key=lambda name: name in CEILINGS)


def _label(group: Mapping[str, Record]) -> str:
    record = next(iter(group.values()))
    if record["case"] == "allreduce":
        return f"{format_bytes(record['bytes'])} {record['cache']}"
    if record["case"] == "message":
        return format_bytes(record["bytes"])
    if record["case"] == "training":
        return f"{record['model']}, {loop_of(record)}"
    return _CASES[record["case"]].format(tensors=record.get("tensors"))


def _seconds(values: Mapping[str, float]) -> str:
    """The median, smallest and largest time, in the unit of the median."""
    unit, size = time_unit(values["median"])
    shown = [three_digits(values[key] / size) for key in ("median", "min", "max")]
    return "{} ({}..{}) {}".format(*shown, unit)


def _spread(values: Mapping[str, float], form: str) -> str:
    return "{} ({}..{})".format(*(format(values[key], form) for key in ("median", "min", "max")))


# --- the sections -----------------------------------------------------------------------------------------------------

_CASES = {
    "gradients": "{tensors} gradients, one by one",
    "small": "one of {tensors} small tensors",
    "gradients_submit": "submitting one of {tensors} gradients",
    "idle": "idle, for each second",
    "tensorflow_ops": "one of {tensors} operations in a graph",
    "small_submit": "submitting one of {tensors} small tensors",
    "submission": "one of {tensors} small tensors",
    "submission_submit": "submitting one of {tensors} small tensors",
    "backward": "one of {tensors} small gradients",
}


def _times(records: Sequence[Record]) -> str:
    groups = _grouped(records)
    peers = _peers(groups)
    rows = [[_label(group), *(_time(group.get(peer)) for peer in peers)] for group in groups]
    return markdown(["", *peers], rows)


def _time(record: Record | None) -> str:
    if record is None:
        return ""
    if "overhead_percent" in record:
        return f"{format_seconds(record['median'])}, {_spread(record['overhead_percent'], '+.0f')} %"
    return _seconds(record)


def _ratios(records: Sequence[Record]) -> str:
    groups = [group for group in _grouped(records) if _OURS in group]
    peers = [peer for peer in _peers(groups) if peer != _OURS and peer not in CEILINGS]
    rows = []
    for group in groups:
        ours = group[_OURS]
        row = [_label(group), *(_ratio(group.get(peer), ours) for peer in peers)]
        rows.append([*row, *(_percentage(ours, limit) for limit in _LIMITS)])
    return markdown(["", *peers, *(f"of {limit}" for limit in _LIMITS)], rows)


def _ratio(theirs: Record | None, ours: Record) -> str:
    return "" if theirs is None else _spread(ratios(theirs["rounds"], ours["rounds"]), ".2f")


def _percentage(record: Record, limit: str) -> str:
    value = record.get(f"percent_of_{limit}") if record.get("bytes", 0) >= _FIRST_PERCENTAGE else None
    return "" if value is None else f"{value:.0f} %"


def _idle(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        percent = {key: 100 * record[key] for key in ("median", "min", "max")}
        rows.append([record["peer"], f"{_spread(percent, '.3f')} %"])
    return markdown(["", "of a core"], rows)


def _ops(records: Sequence[Record]) -> str:
    rows = []
    for group in _grouped(records):
        baseline = BASELINES[next(iter(group.values()))["case"]]
        base = group[baseline]["rounds"]
        for peer, record in group.items():
            added = [1e6 * (with_it - without) for with_it, without in zip(record["rounds"], base, strict=True)]
            rows.append([peer, _seconds(record), "" if peer == baseline else f"{_spread(summary(added), '+.2f')} µs"])
    return markdown(["", "time for a tensor", "added time"], rows)


def _submission(records: Sequence[Record]) -> str:
    """For each peer, the caller's time for one tensor, and the time until the tensor is done."""
    found = {(record["case"], record["peer"]): record for record in records}
    rows = [
        [peer, *(_time(found.get((case, peer))) for case in ("submission_submit", "submission"))]
        for peer in dict.fromkeys(record["peer"] for record in records)
    ]
    return markdown(["", "in the caller", "until all are done"], rows)


_COMPARED = ("allreduce", "gradients", "small", "gradients_submit", "small_submit")

# The title of each table, the cases of its measurements, and the function that makes it.
_SECTIONS: tuple[tuple[str, Sequence[str], Callable[[Sequence[Record]], str]], ...] = (
    ("Times: median (least..most)", _COMPARED, _times),
    (
        "Times as multiples of hvdlite's: median (least..most) of the rounds; and the part of each limit that hvdlite reaches",
        _COMPARED,
        _ratios,
    ),
    ("One message, one way: median (least..most)", ("message",), _times),
    ("Processor time of an idle engine", ("idle",), _idle),
    (
        "A training step, and the time that communication adds to it: median (least..most) of the rounds",
        ("training",),
        _times,
    ),
    ("A graph of operations on one rank: median (least..most) of the rounds", ("tensorflow_ops",), _ops),
    ("Submitting one of many small tensors: median (least..most)", ("submission", "submission_submit"), _submission),
    ("A backward of many small gradients: median (least..most), and the added time", ("backward",), _ops),
)
