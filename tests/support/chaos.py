"""A campaign of elastic trainings whose ranks are killed at drawn moments: do the others always go on, all alike, and how soon?

``make chaos`` runs it; ``CHAOS='--jobs 20 --seed 7'`` says how long and from which seed. Seeds that are even train with
hvd.elastic.run, the others with hvd.elastic.Job, whose weights are compared with those of one process that nobody kills.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support.chaos_program import SAMPLES
from support.job import JobResult, run_job

PROGRAM = Path(__file__).with_name("chaos_program.py")
EPOCHS = {"run": 50, "job": 40}  # of some hundred steps of one millisecond each
FORMS = ("run", "job")


def draw(seed: int, ranks: int, span: float) -> list[str]:
    """For each rank the seconds after which it dies, as the program takes them. One rank at least lives."""
    source = random.Random(seed)
    dying = source.sample(range(ranks), source.randint(1, ranks - 1))
    return [f"{source.uniform(0, span):.3f}" if rank in dying else "-" for rank in range(ranks)]


def train(form: str, deaths: list[str], spares: int, folder: Path) -> tuple[JobResult, list[dict[str, Any]]]:
    """One job, and what its ranks have reported at their end."""
    result = run_job(
        PROGRAM,
        len(deaths) + spares,
        timeout=180,
        env={"HVDLITE_ELASTIC_SPARES": str(spares)},
        args=[str(folder), form, str(EPOCHS[form]), *deaths],
        mpirun_args=("--with-ft", "ulfm"),
    )
    return result, [json.loads(file.read_text()) for file in sorted(folder.glob("ended*"))]


def problems(result: JobResult, reports: list[dict[str, Any]], folder: Path, deaths: list[str], expected: Any) -> list[str]:
    """What is wrong with a job, in words. expected: the weights, or None."""
    found = []
    if result.returncode != 0:
        found.append(f"mpirun ended with {result.returncode}{', at its time limit' if result.timed_out else ''}")
    missing = [rank for rank in range(len(deaths)) if not any((folder / f"{end}{rank}").exists() for end in ("died", "ended"))]
    if missing:
        found.append(f"ranks {missing} neither died nor ended their training")
    if any(report["weights"] != reports[0]["weights"] for report in reports):
        found.append("weights differ between ranks")
    if any(report["used"] != list(range(SAMPLES)) for report in reports):
        found.append("samples of the last epoch were left out")
    if expected and reports:
        apart = max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(expected, reports[0]["weights"], strict=True))
        if apart > 1e-3:
            found.append(f"weights are {apart:.3g} away from those of a training without deaths")
    return found


def delays(reports: list[dict[str, Any]], folder: Path) -> list[float]:
    """The seconds from the death before a recovery to the first step after it, on the slowest rank."""
    died = sorted(float(file.read_text()) for file in folder.glob("died*"))
    steps: dict[int, float] = {}
    for report in reports:
        for recovery, when in report["resumed"]:
            steps[recovery] = max(steps.get(recovery, 0.0), when)
    return [when - max(moment for moment in died if moment < when) for when in steps.values()]


def main(words: list[str] | None = None) -> int:
    """Runs the campaign; 1 if a job failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next has the next")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=2, help="at most; a seed's remainder by one more than it is its number")
    parser.add_argument("--span", type=float, default=2.0, help="seconds within which ranks die")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="hvdlite-chaos-") as name:
        expected = train("job", ["-"], 0, Path(name))[1][0]["weights"]
    failed, deaths_in_all = 0, 0
    waits: list[float] = []
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        form, deaths, spares = FORMS[seed % 2], draw(seed, arguments.ranks, arguments.span), seed % (arguments.spares + 1)
        with tempfile.TemporaryDirectory(prefix="hvdlite-chaos-") as name:
            folder = Path(name)
            result, reports = train(form, deaths, spares, folder)
            wrong = problems(result, reports, folder, deaths, expected if form == "job" else None)
            died = len(list(folder.glob("died*")))
            found = delays(reports, folder)
            joined = len(list(folder.glob("joined*")))
        deaths_in_all += died
        waits += found
        print(
            f"seed {seed} ({form}): {died} deaths, {joined} of {spares} spares joined, "
            f"{', '.join(f'{wait:.3f} s' for wait in found)} {'; '.join(wrong)}",
            flush=True,
        )
        if wrong:
            failed += 1
            print(result.report(), file=sys.stderr)
    spread = ""
    if len(waits) > 1:
        tenths = statistics.quantiles(waits, n=10)
        spread = f"; from a death to the next step {statistics.median(waits):.3f} s (a tenth above {tenths[-1]:.3f} s)"
    print(f"{arguments.jobs} jobs, {deaths_in_all} deaths, {failed} jobs failed{spread}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
