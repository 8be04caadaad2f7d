"""Kills ranks of a training on hvd.elastic.Job and of one on TorchElastic, and writes the table and picture of docs/elastic.md.

``make elastic`` runs it. This takes some minutes and needs a machine without other work. Both trainings
(support/elastic_training.py) have the same network, data, ranks and kills. hvdlite has spares, and torchrun starts all ranks
again from the last checkpoint.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.elastic_training import BATCH, SAMPLES
from support.job import Job, job_environment
from support.pages import DOCS, write_between

__all__ = ["MARKS", "PAGE", "PICTURE"]

PROGRAM = Path(__file__).with_name("elastic_training.py")
PAGE = DOCS / "elastic.md"
PICTURE = PAGE.with_name("elastic.png")
MARKS = ("<!-- begin: written by `make elastic` -->", "<!-- end -->")
RANKS, SPARES = 3, 2
KILLS = (150, 500, 850)  # rank 1 is killed after these steps, as soon as there are RANKS ranks
EPOCHS = 40
COST_ROUNDS = 10
DEADLINE = 900.0
BIN = 0.5  # the seconds that a bar of the picture stands for


@dataclass(frozen=True)
class Step:
    """A step that rank 0 has finished: a line of the file `steps`.

    Attributes:
        time: the time at its end, in seconds.
        number: the number of the step.
        ranks: the number of ranks that took part.
        changes: how often the ranks had changed before.
    """

    time: float
    number: int
    ranks: int
    changes: int


@dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        steps: the finished steps, in their order.
        kills: the times at which ranks were killed, in seconds.
    """

    steps: list[Step]
    kills: list[float]

    def waits(self) -> list[float]:
        """The seconds from each kill to the first step that the changed ranks have finished."""
        found = []
        for kill in self.kills:
            before = max(step.changes for step in self.steps if step.time <= kill)
            found.append(next(step.time for step in self.steps if step.changes > before) - kill)
        return found

    def repeated(self) -> int:
        """The number of steps that were finished a second time."""
        return len(self.steps) - len({step.number for step in self.steps})

    def missing(self) -> int:
        """The number of steps before the last one that were never finished."""
        return max(step.number for step in self.steps) - len({step.number for step in self.steps})


def read_steps(folder: Path) -> list[Step]:
    """The steps that rank 0 has written so far."""
    file = folder / "steps"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last line may not be complete
    return [Step(float(when), *map(int, rest)) for when, *rest in map(str.split, lines)]


class Killer:
    """Kills rank 1 after the steps of KILLS. `look` must be called repeatedly."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.times = folder, list[float]()

    def look(self) -> bool:
        """Kills rank 1 if it is time. Always returns False, so that `Job.wait` continues."""
        steps = read_steps(self.folder)
        if len(self.times) < len(KILLS) and steps and steps[-1].number >= KILLS[len(self.times)] and steps[-1].ranks == RANKS:
            self.times.append(time.time())
            os.kill(int((self.folder / "pid1").read_text()), signal.SIGKILL)
        return False


def run_hvdlite(form: str, ranks: int, spares: int, folder: Path, count: int, look: Callable[[], bool]) -> None:
    """Runs the program under mpirun."""
    with tempfile.TemporaryDirectory(prefix="hvdlite-output-") as output:
        arguments = [str(PROGRAM), form, str(folder), str(count)]
        environment = {"HVDLITE_ELASTIC_SPARES": str(spares)}
        job = Job(arguments, ranks + spares, Path(output), environment, ("--with-ft", "ulfm"))
        ended = False
        try:
            ended = job.wait(DEADLINE, look)
        finally:
            result = job.end(timed_out=not ended)
        if result.returncode != 0:
            raise SystemExit(f"the training on hvdlite has failed\n{result.report()}")


def run_torchelastic(folder: Path, look: Callable[[], bool]) -> None:
    """Runs the program under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [*torchrun, f"--max-restarts={len(KILLS)}", str(PROGRAM), "torchelastic", str(folder), str(EPOCHS)]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, env=job_environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + DEADLINE
            while process.poll() is None and time.monotonic() < until:
                look()
                time.sleep(0.02)
        finally:
            process.terminate()  # torchrun ends its workers
            process.wait()
    if process.returncode != 0:
        raise SystemExit(f"the training on TorchElastic has failed\n{(folder / 'output').read_text()}")


@contextmanager
def new_folder() -> Iterator[Path]:
    """A temporary folder for the files of a training."""
    with tempfile.TemporaryDirectory(prefix="hvdlite-elastic-") as name:
        yield Path(name)


def measure() -> tuple[dict[str, Run], dict[str, float]]:
    """Runs both trainings. Returns them by name, and the median seconds of each part of a step without losses."""
    runs = {}
    with new_folder() as folder:
        killer = Killer(folder)
        run_hvdlite("job", RANKS, SPARES, folder, EPOCHS, killer.look)
        runs["hvd.elastic.Job"] = Run(read_steps(folder), killer.times)
    with new_folder() as folder:
        killer = Killer(folder)
        run_torchelastic(folder, killer.look)
        runs["TorchElastic, gloo"] = Run(read_steps(folder), killer.times)
    with new_folder() as folder:
        run_hvdlite("cost", 2, 0, folder, COST_ROUNDS, lambda: False)
        cost = {name: statistics.median(times) for name, times in json.loads((folder / "cost").read_text()).items()}
    return runs, cost


def table(runs: dict[str, Run], cost: dict[str, float]) -> str:
    """The text between the marks."""
    names = list(runs)
    rows = {
        "ranks": [f"{RANKS}, and {SPARES} spares", f"{RANKS}, started again (`--max-restarts={len(KILLS)}`)"],
        "from a kill to the next finished step": [
            " / ".join(f"{seconds:.2f} s" for seconds in run.waits()) for run in runs.values()
        ],
        "finished steps that were done again": [f"{run.repeated()} of {len(run.steps)}" for run in runs.values()],
        "their samples": [str(run.repeated() * BATCH) for run in runs.values()],
        "steps left out": [str(run.missing()) for run in runs.values()],
        "the whole training": [f"{run.steps[-1].time - run.steps[0].time:.1f} s" for run in runs.values()],
    }
    lines = [f"| {len(KILLS)} kills | {' | '.join(names)} |", "|---|---|---|"]
    lines += [f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items()]
    load, step = cost["job load"] - cost["plain load"], cost["plain load"] + cost["plain step"]
    lines += [
        "",
        f"Without losses, on 2 ranks, a step of {BATCH} samples takes {1e3 * step:.1f} ms. `job.step()` itself takes",
        f"{1e3 * cost['guard']:.2f} ms ({cost['guard'] / step:.1%}), and loading a batch takes {1e3 * load:.2f} ms more than",
        f"without a job ({load / step:.1%}). A `DataLoader` with workers loads the next batch during the step.",
    ]
    return "\n".join(lines)


def draw(runs: dict[str, Run], picture: Path) -> None:
    """Draws the samples per second against the time, with the kills."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    panels: Any = figure.subplots(len(runs), 1, sharex=True, sharey=True)
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        begin, end = run.steps[0].time, run.steps[-1].time
        edges = [begin + BIN * number for number in range(int((end - begin) / BIN) + 1)]
        new, seen = list[Step](), set[int]()
        for step in run.steps:
            if step.number not in seen:
                new.append(step)
            seen.add(step.number)
        for steps, colour, label in ((run.steps, "#e69f00", "samples done again"), (new, "#0072b2", "new samples")):
            counts = [sum(edge <= step.time < edge + BIN for step in steps) for edge in edges]
            rates = [count * BATCH / BIN for count in counts]
            axes.bar([edge - begin for edge in edges], rates, BIN, align="edge", color=colour, label=label)
        for number, kill in enumerate(run.kills):
            axes.axvline(kill - begin, color="#d55e00", linewidth=1.6, label=None if number else "a rank is killed")
        axes.set_title(f"{name}: {run.steps[-1].number} steps in {end - begin:.0f} s", fontsize=10)
        axes.set_ylabel("samples per second")
        axes.grid(True, axis="y", color="#e0e0e0", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[-1].set_xlabel("seconds since the first step")
    panels[0].legend(fontsize=9, loc="lower right")
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Measures, and writes the page and the picture."""
    assert KILLS[-1] < SAMPLES * EPOCHS // BATCH
    runs, cost = measure()
    draw(runs, PICTURE)
    text = table(runs, cost)
    print(text)
    write_between(PAGE, MARKS, text)


if __name__ == "__main__":
    main()
