"""Draws a run: the time and the bus bandwidth against the size, and for training the time that each peer adds to a step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdlite.bench.report import CEILINGS, Record, format_bytes, format_seconds, loop_of

# Each peer has one colour in every picture. Colour-blind people can distinguish the colours (Okabe and Ito's palette).
_COLOURS = {
    "hvdlite": "#d55e00",
    "hvdlite-out": "#e69f00",
    "hvdlite-named": "#cc79a7",
    "hvdlite-numpy": "#8c564b",
    "hvdlite-view": "#e69f00",
    "mpi4py": "#0072b2",
    "gloo": "#009e73",
    "ddp": "#009e73",
    "ddp-view": "#56b4e9",
    "horovod": "#555555",
    "oneccl": "#56b4e9",
}
_OTHER_COLOUR = "#999999"
_LEAST_BANDWIDTH = 1e-4  # GB/s: lower values are not shown, because there the call takes most of the time
_CEILING_STYLES = {"memcpy": "--", "rewrite": ":"}
_BINDINGS = {"core": "one core a rank", "none": "not bound"}
_CACHES = {"warm": "warm", "cold": "cold caches"}


def draw(records: Sequence[Record], picture: Path) -> None:
    """Draws the records of an output file into the file `picture`, whose suffix decides its format.

    Raises:
        OSError: the records have no measurements that can be drawn, or the picture cannot be written.
    """
    from matplotlib.figure import Figure

    measured = [record for record in records if record["record"] == "measurement"]
    sizes = _panels([record for record in measured if record["case"] == "allreduce"], ("bind", "cache"))
    steps = _panels([record for record in measured if record["case"] == "training"], ("bind", "zero_grad", "loop"))
    rows = len(sizes) + len(steps)
    if not rows:
        raise OSError("nothing to draw: the file has no measurements of the cases allreduce or training")
    figure = Figure(figsize=(12, 4.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for row, panel in enumerate(sizes):
        _draw_times(figure.add_subplot(grid[row, 0]), panel)
        _draw_bandwidths(figure.add_subplot(grid[row, 1]), panel)
    for row, panel in enumerate(steps, len(sizes)):
        _draw_steps(figure.add_subplot(grid[row, :]), panel)
    try:
        figure.savefig(picture, dpi=130)
    except ValueError as error:
        raise OSError(f"{picture} cannot be drawn: {error}") from error


def _panels(records: Sequence[Record], keys: Sequence[str]) -> list[list[Record]]:
    """The records in groups that have the same values of `keys`, in the order of their first appearance."""
    panels: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        panels.setdefault(tuple(record.get(key) for key in keys), []).append(record)
    return list(panels.values())


# --- against size -----------------------------------------------------------------------------------------------------


def _curves(panel: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each peer in the order of their sizes; the ceilings come last."""
    curves: dict[str, list[Record]] = {}
    for record in sorted(panel, key=lambda record: (record["peer"] in CEILINGS, record["bytes"])):
        curves.setdefault(record["peer"], []).append(record)
    return curves


def _draw_times(axes: Any, panel: Sequence[Record]) -> None:
    for peer, curve in _curves(panel).items():
        sizes = [record["bytes"] for record in curve]
        _line(axes, peer, sizes, [record["median"] for record in curve])
        if peer not in CEILINGS:
            lows, highs = np.array([np.quantile(record["rounds"], (0.25, 0.75)) for record in curve]).T
            axes.fill_between(sizes, lows, highs, color=_COLOURS.get(peer, _OTHER_COLOUR), alpha=0.15, linewidth=0)
    _finish(axes, panel, "time (band: the middle half of the rounds)")
    axes.yaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds).replace(".00", "").replace(".0", ""))


def _draw_bandwidths(axes: Any, panel: Sequence[Record]) -> None:
    for peer, curve in _curves(panel).items():
        _line(axes, peer, [record["bytes"] for record in curve], [record["busbw"] / 1e9 for record in curve])
    _finish(axes, panel, "bus bandwidth (GB/s)")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], _LEAST_BANDWIDTH))
    axes.yaxis.set_major_formatter(lambda height, _: f"{height:g}")
    axes.legend(fontsize=9, loc="lower right")


def _line(axes: Any, peer: str, sizes: Sequence[int], heights: Sequence[float]) -> None:
    if peer in CEILINGS:
        style = {"color": "black", "linestyle": _CEILING_STYLES[peer], "linewidth": 1.2, "zorder": 2}
        label = f"ceiling: {peer}"
    else:
        colour = _COLOURS.get(peer, _OTHER_COLOUR)
        style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.4, "zorder": 3}
        label = peer
    axes.plot(sizes, heights, label=label, **style | ({"linewidth": 2.4, "zorder": 4} if peer == "hvdlite" else {}))


def _finish(axes: Any, panel: Sequence[Record], label: str) -> None:
    record = panel[0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({record["bytes"] for record in panel})
    axes.set_xticks(sizes, [format_bytes(nbytes) for nbytes in sizes], rotation=45, ha="right", fontsize=8)
    axes.minorticks_off()
    axes.grid(True, color="#e0e0e0", linewidth=0.6)
    axes.set_ylabel(label)
    axes.set_title(f"allreduce, {record['ranks']} ranks, {_BINDINGS[record['bind']]}, {_CACHES[record['cache']]}", fontsize=10)


# --- training ---------------------------------------------------------------------------------------------------------


def _draw_steps(axes: Any, panel: Sequence[Record]) -> None:
    """Draws bars: the time in percent that each peer adds to a step without communication, with its range over the rounds."""
    added = [record for record in panel if "overhead_percent" in record]
    models = list(dict.fromkeys(record["model"] for record in added))
    peers = list(dict.fromkeys(record["peer"] for record in added))
    width = 0.8 / max(1, len(peers))
    for place, peer in enumerate(peers):
        found: Mapping[str, Any] = {record["model"]: record["overhead_percent"] for record in added if record["peer"] == peer}
        middles = [models.index(model) + (place - (len(peers) - 1) / 2) * width for model in found]
        heights = [values["median"] for values in found.values()]
        spread = [
            [values["median"] - values["min"] for values in found.values()],
            [values["max"] - values["median"] for values in found.values()],
        ]
        axes.bar(middles, heights, width, color=_COLOURS.get(peer, _OTHER_COLOUR), label=peer)
        axes.errorbar(middles, heights, spread, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
        for middle, values in zip(middles, found.values(), strict=True):
            place_of_text = (middle, max(values["max"], 0.0))
            axes.annotate(
                f"{values['median']:+.0f} %", place_of_text, (0, 3), textcoords="offset points", ha="center", fontsize=8
            )
    record = panel[0]
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("added to a step (%)")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(True, axis="y", color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)
    title = f"a step of training against one without communication, {record['ranks']} ranks, {_BINDINGS[record['bind']]}"
    axes.set_title(f"{title}, {loop_of(record)}", fontsize=10)
    axes.legend(fontsize=9)
