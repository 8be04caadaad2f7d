"""Is this build slower than another one? Fresh jobs of both take turns, and each figure's ratio comes with its interval.

Only figures of jobs count during which the machine had little else to do: others are measured again. The program that
measures is this build's for both (`guard_job`), with the other's package on PYTHONPATH.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdlite.bench.launch import mpirun_command
from hvdlite.bench.others import machine_seconds
from hvdlite.bench.report import Record, format_seconds
from hvdlite.bench.tables import markdown
from hvdlite.config import outside_of_jobs
from hvdlite.launcher import mpirun
from hvdlite.launcher.job import NOT_LAUNCHED

__all__ = [
    "FEWEST_PAIRS",
    "FIGURES",
    "Figure",
    "GuardError",
    "GuardPlan",
    "OtherLoad",
    "Run",
    "check_build",
    "compare",
    "interval",
    "jobs",
    "slower",
    "table",
]

FEWEST_PAIRS = 10
_QUIET = 0.02  # of the processors that others may have during a job
_CONFIDENCE = 0.95
_RESAMPLES = 4000
_JOB_SECONDS = 600.0  # after which a job hangs
_ATTEMPTS = 3  # to start a job, where mpirun gives up before it has started a rank
_LAST_LINES = 20  # of a job that failed
_PROGRAM = Path(__file__).with_name("guard_job.py")
# Not as a script, whose folder Python would search for modules first.
_START = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

Figures = Mapping[str, float]


class GuardError(Exception):
    """There is no comparison: a build is none, a job failed, or the machine was not quiet."""


class Figure(NamedTuple):
    """What a job measures: of which kind of job, and in words; a share of a processor, or seconds."""

    job: str
    what: str
    share: bool = False


FIGURES: Mapping[str, Figure] = {
    "small": Figure("pair", "an allreduce of 4 B in place"),
    "large": Figure("pair", "an allreduce of 16 MiB in place"),
    "gradients": Figure("pair", "60 gradients, submitted one by one"),
    "many": Figure("pair", "100 tensors of 64 B, submitted one by one"),
    "grouped": Figure("pair", "the same in one call"),
    "mismatch": Figure("pair", "until ranks are told of a mismatch"),
    "idle": Figure("pair", "processor time of an idle rank", share=True),
    "waiting": Figure("pair", "the same while one waits for another", share=True),
    "crowded": Figure("crowd", "an allreduce of 64 B of 4 ranks that are not bound"),
    "crowded_processor": Figure("crowd", "its processor time on each rank"),
    "death": Figure("death", "until a rank is told that another was killed"),
}

# By kind of job: ranks, and whether each has a core to itself.
_JOBS = {"pair": (2, "core"), "crowd": (4, "none"), "death": (2, "core")}


@dataclass(frozen=True)
class GuardPlan:
    """How much is done.

    Attributes:
        pairs: jobs of each build.
        seconds: for each figure of a job, about.
        tolerance: a ratio whose interval lies above it makes a build slower.
        any_load: count jobs under any other load of the machine?
        most_repeats: jobs that may be measured again, all together.
    """

    pairs: int = FEWEST_PAIRS
    seconds: float = 2.0
    tolerance: float = 1.05
    any_load: bool = False
    most_repeats: int = 20


class Run(NamedTuple):
    """One turn of a build: its figures, and the share of the processors that others had meanwhile."""

    figures: Figures
    load: float


# --- statistics -------------------------------------------------------------------------------------------------------


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians of what was measured in turn, between the ends of its interval.

    The interval is the bootstrap's, over pairs of neighbours, which a drift of the machine hits alike. The same numbers always
    give the same interval.
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
    """The figures in which this build is slower than the other by more than is tolerated."""
    return [record["figure"] for record in records if record["record"] == "guard" and record["interval"][0] > tolerance]


# --- in turn ----------------------------------------------------------------------------------------------------------


def compare(
    builds: Sequence[Path], plan: GuardPlan, measure: Callable[[Path], Run], say: Callable[[str], None]
) -> list[Record]:
    """Measures this build and the other in turn.

    Args:
        builds: this one, the other.
        plan: how often.
        measure: runs a build's jobs once.
        say: gets a line of progress.

    Raises:
        GuardError: the machine was not quiet, as often as jobs were repeated.
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
                    raise GuardError(
                        f"the machine is not quiet: in {repeats} turns other processes and guests had more than {_QUIET:.0%} "
                        f"of its processors, in the last one {run.load:.0%}. End them (`top` shows them), or take --any-load "
                        f"and wider intervals"
                    )
                say(f"{run.load:.1%} of the processors were busy with something else: again")
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
    """The comparison as a table in markdown, and what follows.

    Args:
        records: of `compare`.
        figures: what was measured.
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
            f"{run['pairs']} jobs of each, in turn, {run['repeated']} of them again. Other load: at most {run['load']:.1%}.\n"
            f"This build: {run['this']}. The other: {run['other']}.",
            markdown(["median of the jobs", "this", "other", f"ratio ({_CONFIDENCE:.0%} interval)", ""], rows),
            verdict,
        ]
    )


# --- jobs -------------------------------------------------------------------------------------------------------------


def check_build(folder: Path) -> Path:
    """The folder from which hvdlite can be imported.

    Raises:
        GuardError: it holds no hvdlite, or one whose native code is not built.
    """
    folder = folder.resolve()
    if not (folder / "hvdlite" / "__init__.py").exists():
        raise GuardError(f"{folder} holds no hvdlite: name a checkout, or the folder that a wheel was unpacked into")
    if not list((folder / "hvdlite").glob("_engine*.so")):
        raise GuardError(f"the hvdlite in {folder} is not built: run `make develop` there")
    return folder


def jobs(plan: GuardPlan) -> Callable[[Path], Run]:
    """A function that runs each kind of job once with a build, for `compare`."""
    program = mpirun.find()

    def measure(build: Path) -> Run:
        others = OtherLoad()
        figures: dict[str, float] = {}
        for kind, (ranks, bind) in _JOBS.items():
            command = mpirun_command(program, ranks, bind, os.geteuid() == 0)
            figures |= _job(command, kind, build, plan.seconds)
        return Run(figures, others.share())

    return measure


class OtherLoad:
    """What else the machine does from now on: neither this process nor what it starts and sees the end of."""

    def __init__(self) -> None:
        self._begun = self._taken()

    def share(self) -> float:
        """Of the processors."""
        there, busy, own = (late - early for late, early in zip(self._taken(), self._begun, strict=True))
        return max(0.0, busy - own) / there

    @staticmethod
    def _taken() -> tuple[float, float, float]:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return *machine_seconds(), sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _job(command: Sequence[str], kind: str, build: Path, seconds: float) -> Figures:
    """The figures of a fresh job, which a kill may have ended after it has written them.

    Raises:
        GuardError: it has written none, hangs, or imports another hvdlite.
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
                raise GuardError(f"the job {kind} of {build} hangs: it was ended after {_JOB_SECONDS:.0f} s") from late
            if NOT_LAUNCHED not in done.stderr:
                break
        file = Path(folder) / "figures.json"
        if not file.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
            raise GuardError(f"the job {kind} of {build} ended with status {done.returncode} and no figures:\n{said}")
        found = json.loads(file.read_text())
    if not Path(found["package"]).resolve().is_relative_to(build):
        raise GuardError(f"the job {kind} of {build} has imported {found['package']}: is that on PYTHONPATH, too?")
    figures: Figures = found["figures"]
    return figures
