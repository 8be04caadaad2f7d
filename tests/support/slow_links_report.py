"""Trains on two emulated hosts with a slow link, and writes the table and the picture of docs/slow_links.md.

``make slow-links`` runs it. It takes some minutes, and needs root for the hosts. The training is
support/slow_links_training.py.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from support.hosts import emulated_hosts
from support.pages import DOCS, write_between
from support.slow_links_training import FULL_STEPS, WAYS

__all__ = ["MARKS", "PAGE", "PICTURE"]

PROGRAM = Path(__file__).with_name("slow_links_training.py")
PAGE = DOCS / "slow_links.md"
PICTURE = PAGE.with_name("slow_links.png")
MARKS = ("<!-- begin: written by `make slow-links` -->", "<!-- end: make slow-links -->")
RATE_MBIT, DELAY_US = 100.0, 10_000.0  # the delay is that of one way; a round trip takes 20 ms
STEPS, ROUNDS = 60, 3
DEADLINE = 1200.0
COLOURS = ("#000000", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999999", "#56b4e9")

Trainings = Mapping[str, Sequence[Mapping[str, Any]]]  # for each way, one training for each round


def measure() -> Trainings:
    """Trains with each way in turn, in one job of one rank on each host."""
    with emulated_hosts(2, RATE_MBIT, DELAY_US) as hosts:
        job = hosts.run(1, PROGRAM, args=[str(STEPS), str(ROUNDS)], timeout=DEADLINE)
    if job.returncode != 0:
        raise SystemExit(job.report())
    trainings = defaultdict(list)
    for line in job.stdout[0].splitlines():
        training = json.loads(line)
        trainings[training["way"]].append(training)
    return trainings


def step_seconds(trainings: Sequence[Mapping[str, Any]]) -> float:
    """The median seconds of a step, over all rounds, without the steps before PowerSGD begins."""
    return median(seconds for training in trainings for seconds in training["seconds"][FULL_STEPS:])


def curve(trainings: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """The seconds and the losses of a training, as medians over the rounds."""
    points = zip(*(training["losses"] for training in trainings), strict=True)
    medians = [tuple(median(column) for column in zip(*point, strict=True)) for point in points]
    return [seconds for seconds, _ in medians], [loss for _, loss in medians]


def table(trainings: Trainings) -> str:
    """The table in Markdown."""
    lines = ["| | step | bytes that a host sends in it | whole training | loss at its end |", "|---|---|---|---|---|"]
    for way in WAYS:
        seconds, losses = curve(trainings[way])
        sent = median(training["bytes"] for training in trainings[way])
        step = step_seconds(trainings[way])
        lines.append(f"| {way} | {step * 1e3:.0f} ms | {sent / 1e3:.0f} kB | {seconds[-1]:.1f} s | {losses[-1]:.3f} |")
    return "\n".join(lines)


def draw(trainings: Trainings, picture: Path) -> None:
    """Draws the time of a step (left), and the loss against the time of training (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    ways = list(WAYS)
    times = [step_seconds(trainings[way]) * 1e3 for way in ways]
    left.barh(ways, times, color=COLOURS)
    for place, way in enumerate(ways):
        sent = median(training["bytes"] for training in trainings[way]) / 1e3
        left.annotate(f"{sent:.0f} kB", (times[place], place), (3, 0), textcoords="offset points", va="center", fontsize=8)
        right.plot(*curve(trainings[way]), color=COLOURS[place], label=way, linewidth=1.6)
    left.invert_yaxis()
    left.margins(x=0.2)
    left.set_title("a step, and the bytes that a host sends in it", fontsize=10)
    left.set_xlabel("milliseconds")
    right.set_title(f"{STEPS} steps of training", fontsize=10)
    right.set_xlabel("seconds of training")
    right.set_ylabel("loss over the test images")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(True, axis="x" if axes is left else "both", color="#e0e0e0", linewidth=0.6)
        axes.set_axisbelow(True)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Measures, and writes the page and the picture."""
    trainings = measure()
    draw(trainings, PICTURE)
    text = table(trainings)
    print(text)
    write_between(PAGE, MARKS, text)


if __name__ == "__main__":
    main()
