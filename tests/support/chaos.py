"""Runs many elastic trainings whose ranks are killed at random moments, and checks that the other ranks continue with equal
weights. It also measures how soon they continue.

``make chaos`` runs it; ``CHAOS='--jobs 20 --seed 7'`` gives the number of jobs and the first seed. Even seeds train with
hvd.elastic.run, odd seeds with hvd.elastic.Job, and with ``--shard`` both with sharded optimizers. The weights of a Job are
compared with those of one process that is not killed; they contain how often each sample was used. Ranks with odd numbers are
killed, and the others leave when SIGTERM asks them to. ``CHAOS='--hosts 2'`` puts the ranks on two emulated hosts
(support/hosts.py lists the requirements).
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos_program import SAMPLES
from support.hosts import ULFM_OPTIONS, EmulatedHosts, emulated_hosts
from support.job import JobResult, run_job

PROGRAM = Path(__file__).with_name("chaos_program.py")
EPOCHS = {"run": 50, "job": 40}  # an epoch has some hundred steps of one millisecond each
FORMS = ("run", "job")
KINDS = ("leave", "kill")  # ranks with even numbers leave, the others are killed


def draw(seed: int, ranks: int, span: float) -> list[str]:
    """For each rank, the seconds after which it dies, as arguments of the program. At least one rank lives."""
    source = random.Random(seed)
    dying = source.sample(range(ranks), source.randint(1, ranks - 1))
    return [f"{source.uniform(0, span):.3f}" if rank in dying else "-" for rank in range(ranks)]


def train(
    form: str,
    deaths: list[str],
    spares: int,
    folder: Path,
    hosts: EmulatedHosts | None = None,
    ranks_of_host: int = 0,
    optimizer: str = "whole",
) -> tuple[JobResult, list[dict[str, Any]]]:
    """Runs one job; returns its result and the reports that ranks have written at their end. Spares are on the last host."""
    size = len(deaths) + spares
    options = list(ULFM_OPTIONS)
    if hosts is not None:
        each = [ranks_of_host] * (len(deaths) // ranks_of_host)
        options += hosts.placement([*each[:-1], each[-1] + spares])[1]
    result = run_job(
        PROGRAM,
        size,
        timeout=180,
        env={"HVDLITE_ELASTIC_SPARES": str(spares)},
        args=[str(folder), form, optimizer, str(EPOCHS[form]), *deaths],
        mpirun_args=options,
        hosts=hosts,
    )
    return result, [json.loads(file.read_text()) for file in sorted(folder.glob("ended*"))]


def problems(result: JobResult, reports: list[dict[str, Any]], folder: Path, deaths: list[str], expected: Any) -> list[str]:
    """The errors of a job, in words. `expected` are the weights of a training without deaths, or None."""
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


def delays(reports: list[dict[str, Any]], folder: Path) -> list[tuple[str, float]]:
    """For each recovery, the kind of the last death before it ("kill" or "leave"), and the seconds from this death to the first
    step of the slowest rank.
    """
    died = {float(file.read_text()): KINDS[int(file.name.removeprefix("died")) % 2] for file in folder.glob("died*")}
    steps: dict[int, float] = {}
    for report in reports:
        for recovery, when in report["resumed"]:
            steps[recovery] = max(steps.get(recovery, 0.0), when)
    last = [(when, max(moment for moment in died if moment < when)) for when in steps.values()]
    return [(died[moment], when - moment) for when, moment in last]


def spread(waits: list[tuple[str, float]]) -> str:
    """How soon the ranks continued after a death of each kind, in words."""
    text = ""
    for kind in KINDS:
        times = [seconds for each, seconds in waits if each == kind]
        if len(times) > 1:
            tenth, median = statistics.quantiles(times, n=10)[-1], statistics.median(times)
            text += f"; from a {kind} to the next step {median:.3f} s (median of {len(times)}, a tenth above {tenth:.3f} s)"
    return text


def main(words: list[str] | None = None) -> int:
    """Runs the trainings. Returns 1 if a job failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first job; each later job has the next seed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=1, help="the number of emulated hosts; 1: this machine")
    parser.add_argument("--spares", type=int, default=2, help="the most spares; a job has its seed modulo this number + 1")
    parser.add_argument("--shard", action="store_true", help="each rank keeps a part of the optimizer's state")
    parser.add_argument("--span", type=float, default=2.0, help="the seconds in which ranks die")
    arguments = parser.parse_args(words)
    if arguments.hosts < 1 or arguments.ranks % arguments.hosts:
        parser.error(f"--ranks {arguments.ranks} is not a multiple of --hosts {arguments.hosts}: hosts have equal numbers")
    with tempfile.TemporaryDirectory(prefix="hvdlite-chaos-") as name:
        expected = train("job", ["-"], 0, Path(name))[1][0]["weights"]
    failed, losses = 0, dict.fromkeys(KINDS, 0)
    waits: list[tuple[str, float]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        form, deaths, spares = FORMS[seed % 2], draw(seed, arguments.ranks, arguments.span), seed % (arguments.spares + 1)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvdlite-chaos-")))
            try:
                hosts = stack.enter_context(emulated_hosts(arguments.hosts)) if arguments.hosts > 1 else None
            except pytest.skip.Exception as reason:
                parser.exit(2, f"make chaos: {reason}\n")
            optimizer = "shard" if arguments.shard else "whole"
            result, reports = train(form, deaths, spares, folder, hosts, arguments.ranks // arguments.hosts, optimizer)
            wrong = problems(result, reports, folder, deaths, expected if form == "job" else None)
            died = [KINDS[int(file.name.removeprefix("died")) % 2] for file in folder.glob("died*")]
            found = delays(reports, folder)
            joined = len(list(folder.glob("joined*")))
        for kind in died:
            losses[kind] += 1
        waits += found
        print(
            f"seed {seed} ({form}): {died.count('kill')} killed, {died.count('leave')} left, {joined} of {spares} spares in, "
            f"{', '.join(f'{seconds:.3f} s after a {kind}' for kind, seconds in found)} {'; '.join(wrong)}",
            flush=True,
        )
        if wrong:
            failed += 1
            print(result.report(), file=sys.stderr)
    print(f"{arguments.jobs} jobs, {losses['kill']} kills, {losses['leave']} leaves, {failed} jobs failed{spread(waits)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
