"""Checks that this build is not slower than another one: runs fresh jobs of both builds alternately, and reports the ratio of
each figure with its confidence interval.

A *turn* of a build is one job of each kind (`_JOBS`). A turn counts only if the machine had little other work in this time;
otherwise it is repeated. For both builds the jobs run this build's program (`guard_job`), with the package of the measured
build on PYTHONPATH.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdlite.bench import others
from hvdlite.bench.launch import mpirun_command
from hvdlite.bench.report import Record, format_seconds
from hvdlite.bench.tables import markdown
from hvdlite.config import outside_of_jobs
from hvdlite.errors import SystemFailure
from hvdlite.launcher import mpirun
from hvdlite.launcher.job import NOT_LAUNCHED

FEWEST_PAIRS = 10
_QUIET = 0.02  # the largest share of the processors that others may take during a job
_CONFIDENCE = 0.95
_RESAMPLES = 4000
_JOB_SECONDS = 600.0  # a job that takes longer hangs
_ATTEMPTS = 3  # how often a job is started, if mpirun fails before it has started a rank
_LAST_LINES = 20  # the number of lines that the error shows of a failed job's output
_PROGRAM = Path(__file__).with_name("guard_job.py")
# The program is not run as a script, because Python would search the script's folder for modules first.
_START = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

Figures = Mapping[str, float]


class Figure(NamedTuple):
    """A figure that a job measures.

    Attributes:
        job: the kind of job, a key of `_JOBS`.
        what: the figure in words.
        share: is the figure a share of a processor? Otherwise it is in seconds.
    """

    job: str
    what: str
    share: bool = False


FIGURES: Mapping[str, Figure] = {
    "small": Figure("pair", "an allreduce of 4 B in place"),
    "large": Figure("pair", "an allreduce of 16 MiB in place"),
    "gradients": Figure("pair", "60 gradients, submitted one by one"),
    "many": Figure("pair", "100 tensors of 64 B, submitted one by one"),
    "grouped": Figure("pair", "100 tensors of 64 B, submitted in one call"),
    "mismatch": Figure("pair", "time until ranks get the error of a mismatch"),
    "idle": Figure("pair", "processor time of an idle rank", share=True),
    "waiting": Figure("pair", "processor time of a rank while one rank waits for the other", share=True),
    "crowded": Figure("crowd", "an allreduce of 64 B on 4 ranks that are not bound"),
    "crowded_processor": Figure("crowd", "an allreduce of 64 B on 4 ranks that are not bound: processor time on each rank"),
    "death": Figure("death", "time until a rank gets the error that another rank was killed"),
}

# For each kind of job, the number of ranks and their binding.
_JOBS = {"pair": (2, "core"), "crowd": (4, "none"), "death": (2, "core")}


@dataclass(frozen=True)
class GuardPlan:
    """The size of a comparison.

    Attributes:
        pairs: the number of turns of each build.
        seconds: the approximate time for each figure in a job.
        tolerance: a build is slower if the whole interval of a ratio lies above this number.
        any_load: also count turns during which the machine had other work?
        most_repeats: the largest number of turns that are repeated, in the whole comparison.
    """

    pairs: int = FEWEST_PAIRS
    seconds: float = 2.0
    tolerance: float = 1.05
    any_load: bool = False
    most_repeats: int = 20


class Run(NamedTuple):
    """One turn of a build.

    Attributes:
        figures: the figures of all kinds of jobs, by name.
        load: the share of the processors that other processes and guests took during the turn.
    """

    figures: Figures
    load: float


# --- statistics -------------------------------------------------------------------------------------------------------


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The lower end of the confidence interval of a ratio, the ratio, and the upper end.

    The ratio is the median of our figures divided by the median of theirs. The interval comes from a bootstrap over pairs of
    figures that were measured one after the other, so a slow change of the machine's speed affects both figures of a pair. The
    same figures always give the same interval.

    Args:
        ours: the figures of this build, one for each turn.
        theirs: the figures of the other build, as many as `ours`.
    """
    draw = random.Random(len(ours))
    pairs = list(zip(ours, theirs, strict=True))

    def ratio(chosen: Sequence[tuple[float, float]]) -> float:
        mine, others = (statistics.median(each) for each in zip(*chosen, strict=True))
        return mine / others if others else (1.0 if mine == others else float("inf"))

    found = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    cut = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
    return found[cut], ratio(pairs), found[-cut - 1]


def slower(records: Iterable[Record], tolerance: float) -> list[str]:
    """The names of the figures in which this build is slower: the whole interval of the ratio lies above `tolerance`."""
    return [record["figure"] for record in records if record["record"] == "guard" and record["interval"][0] > tolerance]


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(
    builds: Sequence[Path], plan: GuardPlan, measure: Callable[[Path], Run], say: Callable[[str], None]
) -> list[Record]:
    """Measures this build and the other alternately. Returns one record ``guard_run``, and a record ``guard`` for each figure.

    Args:
        builds: the folders of this build and of the other.
        plan: the size of the comparison.
        measure: a function that makes one turn of a build.
        say: a function that prints a line of progress.

    Raises:
        SystemFailure: the machine was not quiet in more turns than `plan` allows to repeat.
    """
    found: list[dict[str, list[float]]] = [{}, {}]
    loads: list[float] = []
    repeats = 0
    for number in range(plan.pairs):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            while True:
                run = measure(builds[which])
                if plan.any_load or run.load <= _QUIET:
                    break
                repeats += 1
                if repeats > plan.most_repeats:
                    raise SystemFailure(
                        f"the machine is not quiet: in {repeats} turns other processes and guests took more than {_QUIET:.0%} "
                        f"of its processors, in the last one {run.load:.0%}. End these processes (`top` shows them), or use "
                        f"--any-load, which gives wider intervals"
                    )
                say(f"other processes and guests took {run.load:.1%} of the processors: this turn is repeated")
            loads.append(run.load)
            for name, value in run.figures.items():
                found[which].setdefault(name, []).append(value)
        say(f"{number + 1} of {plan.pairs} pairs")
    about = {"repeated": repeats, "load": max(loads), "pairs": plan.pairs, "tolerance": plan.tolerance}
    return [
        {"record": "guard_run", "this": str(builds[0]), "other": str(builds[1]), **about},
        *(_record(name, ours, found[1][name]) for name, ours in found[0].items()),
    ]


def _record(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Record:
    low, ratio, high = interval(ours, theirs)
    return {
        "record": "guard",
        "figure": name,
        "ours": list(ours),
        "theirs": list(theirs),
        "ratio": ratio,
        "interval": [low, high],
    }


def table(records: Sequence[Record], figures: Mapping[str, Figure] = FIGURES) -> str:
    """The comparison as a table in markdown, with a sentence that says which figures are slower.

    Args:
        records: the records that `compare` has returned.
        figures: the description of each figure.
    """
    run = next(record for record in records if record["record"] == "guard_run")
    too_slow = slower(records, run["tolerance"])
    rows = []
    for record in records:
        if record["record"] != "guard":
            continue
        figure = figures[record["figure"]]
        form = "{:.3%}".format if figure.share else format_seconds
        low, high = record["interval"]
        medians = (form(statistics.median(record[whose])) for whose in ("ours", "theirs"))
        spread = f"{record['ratio']:.3f} ({low:.3f}..{high:.3f})"
        rows.append([figure.what, *medians, spread, "slower" if record["figure"] in too_slow else ""])
    limit = f"{run['tolerance']:g} times"
    verdict = f"Slower than {limit}: {', '.join(too_slow)}." if too_slow else f"Nothing is slower than {limit}."
    return "\n\n".join(
        [
            f"{run['pairs']} jobs of each build, alternately; {run['repeated']} were repeated. Other load: at most "
            f"{run['load']:.1%}.\n"
            f"This build: {run['this']}. The other: {run['other']}.",
            markdown(["median of the jobs", "this", "other", f"ratio ({_CONFIDENCE:.0%} interval)", ""], rows),
            verdict,
        ]
    )


# --- jobs -------------------------------------------------------------------------------------------------------------


def check_build(folder: Path) -> Path:
    """The resolved path of a folder from which hvdlite can be imported.

    Raises:
        SystemFailure: the folder has no hvdlite, or its native code is not built.
    """
    folder = folder.resolve()
    if not (folder / "hvdlite" / "__init__.py").exists():
        raise SystemFailure(f"{folder} has no hvdlite: name a checkout, or the folder of an unpacked wheel")
    if not list((folder / "hvdlite").glob("_engine*.so")):
        raise SystemFailure(f"the hvdlite in {folder} is not built: run `make develop` there")
    return folder


def jobs(plan: GuardPlan) -> Callable[[Path], Run]:
    """A function for `compare` that makes one turn of a build: it runs each kind of job once."""
    program = mpirun.find()

    def measure(build: Path) -> Run:
        begun = others.taken()
        figures: dict[str, float] = {}
        for kind, (ranks, bind) in _JOBS.items():
            command = mpirun_command(program, ranks, bind)
            figures |= _job(command, kind, build, plan.seconds)
        return Run(figures, others.share_since(begun))

    return measure


def _job(command: Sequence[str], kind: str, build: Path, seconds: float) -> Figures:
    """Runs a fresh job and returns its figures. A job of the kind ``death`` fails after that, because a rank is killed.

    Raises:
        SystemFailure: the job has written no figures, hangs, or imports another hvdlite.
    """
    inherited = outside_of_jobs()
    paths = [str(build), *filter(None, [inherited.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="hvdlite-guard-") as folder:
        words = [sys.executable, "-c", _START, str(_PROGRAM), kind, str(seconds), folder]
        for _ in range(_ATTEMPTS):
            try:
                done = subprocess.run(
                    [*command, *words],
                    env={**inherited, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_JOB_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as late:
                raise SystemFailure(f"the job {kind} of {build} hangs: hvdlite ended it after {_JOB_SECONDS:.0f} s") from late
            if NOT_LAUNCHED not in done.stderr:
                break
        file = Path(folder) / "figures.json"
        if not file.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
            raise SystemFailure(f"the job {kind} of {build} ended with status {done.returncode} and no figures:\n{said}")
        found = json.loads(file.read_text())
    if not Path(found["package"]).resolve().is_relative_to(build):
        raise SystemFailure(f"the job {kind} of {build} has imported {found['package']}: remove that folder from PYTHONPATH")
    figures: Figures = found["figures"]
    return figures
