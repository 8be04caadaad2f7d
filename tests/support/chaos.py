"""A campaign of elastic trainings whose ranks are killed at drawn moments: do the others always go on, all alike, and how soon?

``make chaos`` runs it; ``CHAOS='--jobs 100 --seed 7'`` says how long and from which seed. A job that fails is kept and named.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from support.job import JobResult, run_job

PROGRAM = Path(__file__).with_name("chaos_program.py")
EPOCHS, SAMPLES = 12, 240


def draw(seed: int, ranks: int, span: float) -> list[str]:
    """For each rank the seconds after which it dies, as the program takes them. One rank at least lives."""
    source = random.Random(seed)
    dying = source.sample(range(ranks), source.randint(1, ranks - 1))
    return [f"{source.uniform(0, span):.3f}" if rank in dying else "-" for rank in range(ranks)]


def problems(result: JobResult, folder: Path, deaths: list[str]) -> list[str]:
    """What is wrong with a job, in words."""
    found = []
    if result.returncode != 0:
        found.append(f"mpirun ended with {result.returncode}{', at its time limit' if result.timed_out else ''}")
    reports = [json.loads(file.read_text()) for file in sorted(folder.glob("ended*"))]
    lost = {int(file.name.removeprefix("died")) for file in folder.glob("died*")}
    missing = [rank for rank in range(len(deaths)) if rank not in lost and not (folder / f"ended{rank}").exists()]
    if missing:
        found.append(f"ranks {missing} neither died nor ended their training")
    if any(report["weights"] != reports[0]["weights"] for report in reports):
        found.append("weights differ between ranks")
    if any(report["used"] != list(range(SAMPLES)) for report in reports):
        found.append("samples of the last epoch were left out")
    return found


def delays(folder: Path) -> list[float]:
    """The seconds from the death before a recovery to the first step after it, on the slowest rank."""
    died = sorted(float(file.read_text()) for file in folder.glob("died*"))
    steps: dict[int, float] = {}
    for file in folder.glob("ended*"):
        for size, when in json.loads(file.read_text())["resumed"]:
            steps[size] = max(steps.get(size, 0.0), when)
    return [when - max(moment for moment in died if moment < when) for when in steps.values() if died and died[0] < when]


def main(words: list[str] | None = None) -> int:
    """Runs the campaign; 1 if a job failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next has the next")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--span", type=float, default=2.0, help="seconds within which ranks die")
    arguments = parser.parse_args(words)
    failed, deaths_in_all, waits = 0, 0, []
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        deaths = draw(seed, arguments.ranks, arguments.span)
        with tempfile.TemporaryDirectory(prefix="hvdlite-chaos-") as name:
            folder = Path(name)
            result = run_job(
                PROGRAM,
                arguments.ranks,
                timeout=120,
                args=[name, str(EPOCHS), *deaths],
                mpirun_args=("--with-ft", "ulfm"),
            )
            wrong = problems(result, folder, deaths)
            died = len(list(folder.glob("died*")))
            found = delays(folder)
        deaths_in_all += died
        waits += found
        print(f"seed {seed}: {died} deaths, {', '.join(f'{wait:.3f} s' for wait in found)} {'; '.join(wrong)}", flush=True)
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
