"""The results of a tuning, for people, for the file, and as CSV for other programs."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdlite.knobs import KNOBS
from hvdlite.tuning.place import JobPlace
from hvdlite.tuning.search import Comparison, SearchResult, Settings, Value

_BUSY = 0.5  # of load for each core
_KINDS = {knob.name: knob.kind for knob in KNOBS}


@dataclass(frozen=True)
class Report:
    """A tuning, and the facts that are needed to judge it.

    Attributes:
        place: the machine and the shape of the job.
        outcome: the result of the search.
        cases: the timed operations, in words.
        left_out: knobs that were not searched because they might change bits.
        same_bits: do sums have the same bits with the chosen settings as with the defaults?
        seconds: the duration of the tuning.
        load: the load of the busiest host before the tuning: runnable processes for each core.
    """

    place: JobPlace
    outcome: SearchResult
    cases: Sequence[str]
    left_out: Sequence[str]
    same_bits: bool
    seconds: float
    load: float = 0.0

    @property
    def busy(self) -> str:
        """A remark if other programs used the machine; empty for an idle machine."""
        if self.load < _BUSY:
            return ""
        return f"the machine was busy (load {self.load:.1f} for each core): this tuning suits a machine that is as busy"

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that differ from the defaults."""
        return changes(self.outcome.chosen, self.outcome.defaults)


def changes(settings: Settings, base: Settings) -> dict[str, Value]:
    """The settings that differ from `base`."""
    return {name: value for name, value in settings.items() if value != base[name]}


def format_settings(settings: Settings) -> str:
    """The settings as text, such as ``tile_bytes=64KiB, spin_us=50.0``."""
    return ", ".join(f"{name}={_said(name, value)}" for name, value in settings.items())


def _said(name: str, value: Value) -> str:
    if _KINDS[name] != "bytes" or not isinstance(value, int):
        return str(value)
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit}{suffix}"
    return str(value)


def _stepped(trial: Comparison) -> tuple[str, Value, Value]:
    """The one parameter in which the two settings of a trial differ, and its values."""
    ((name, value),) = changes(trial.candidate, trial.base).items()
    return name, trial.base[name], value


def to_evidence(report: Report) -> dict[str, Any]:
    """The evidence for the tuning file."""
    outcome = report.outcome
    return {
        "cases": list(report.cases),
        "trials": [_evidence(trial, outcome.defaults) for trial in outcome.trials],
        "validation": _evidence(outcome.validation, outcome.defaults) if outcome.validation else None,
        "complete": outcome.complete,
        "same_bits": report.same_bits,
        "left_out_for_their_bits": list(report.left_out),
        "seconds": round(report.seconds, 1),
        "load": round(report.load, 2),
    }


def _evidence(trial: Comparison, defaults: Settings) -> dict[str, Any]:
    return {
        "settings": changes(trial.candidate, defaults),
        "against": changes(trial.base, defaults),
        "gain": round(trial.gain, 4),
        "noise": _noise(trial),
        "rounds": len(trial.gains),
        "better": trial.better,
    }


def _noise(trial: Comparison) -> float | None:
    return round(trial.noise, 4) if trial.noise != float("inf") else None


def to_csv(path: Path, report: Report) -> None:
    """Writes a line for each comparison. The last line compares the winner with the defaults, and names no parameter.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["parameter", "from", "to", "gain", "noise", "rounds", "taken"])
        for trial in report.outcome.trials:
            writer.writerow([*_stepped(trial), *_numbers(trial), int(trial.better)])
        if report.outcome.validation is not None:
            trial = report.outcome.validation
            writer.writerow(["", "", "", *_numbers(trial), int(trial.better)])


def _numbers(trial: Comparison) -> list[object]:
    noise = _noise(trial)
    return [round(trial.gain, 4), "" if noise is None else noise, len(trial.gains)]


def to_text(report: Report) -> str:
    """The trials and their results, as a table."""
    place, outcome = report.place, report.outcome
    hosts, ranks = len(place.ranks_per_host), place.shape().ranks
    lines = [
        f"{ranks} ranks on {hosts} host{'s' * (hosts > 1)}, {', '.join(dict.fromkeys(place.cpus))}, "
        f"{' and '.join(map(str, dict.fromkeys(place.cores)))} core{'s' * (set(place.cores) != {1})} a host, {place.mpi}",
        f"timed: {', '.join(report.cases)}",
        "",
        f"{'parameter':30}{'from':>10}{'to':>20}{'gain':>9}{'noise':>9}{'rounds':>8}",
    ]
    for trial in outcome.trials:
        name, before, after = _stepped(trial)
        line = f"{name:30}{_said(name, before):>10}{_said(name, after):>20}{_measured(trial)}"
        lines.append(f"{line}{'  taken' * trial.better}")
    return "\n".join([*lines, "", *_verdict(report)])


def _verdict(report: Report) -> list[str]:
    outcome = report.outcome
    lines = [report.busy] if report.busy else []
    if not outcome.complete:
        lines.append("the time did not suffice to try all values")
    if report.left_out:
        lines.append(f"left out, since they may change the last bits of sums: {', '.join(report.left_out)}")
    if outcome.validation is None:
        return [*lines, "nothing is better than the defaults"]
    lines.append(f"{'the winner, compared with the defaults':60}{_measured(outcome.validation)}")
    if not report.settings:
        return [*lines, "this comparison does not confirm that the winner is faster: the defaults stay"]
    for name, value in report.settings.items():
        lines.append(f"{name}: {_said(name, outcome.defaults[name])} -> {_said(name, value)}")
    said = "those of the defaults" if report.same_bits else "NOT those of the defaults (--any-bits allowed that)"
    return [*lines, f"the bits of the sums that were compared are {said}"]


def _measured(trial: Comparison) -> str:
    noise = _noise(trial)
    return f"{100 * trial.gain:+7.1f} %{'-' if noise is None else f'{100 * noise:.1f} %':>9}{len(trial.gains):>8}"
