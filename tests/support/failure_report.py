"""Runs the cases of failure_cases.py and writes the table of docs/failures.md (`make failures`)."""

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Mapping

from support.failure_cases import CASES, MODES, Case, Outcome, run_cases
from support.job import find_mpirun
from support.pages import DOCS, write_between

__all__ = ["MARKS", "PAGE", "row_titles"]

PAGE = DOCS / "failures.md"
MARKS = ("<!-- begin: written by `make failures` -->", "<!-- end -->")

PLACES = {
    "init": "in `init()`",
    "negotiation": "the others wait for its part of an allreduce",
    "collective": "an allreduce of 64 MiB is under way",
    "computing": "the others compute",
    "shutdown": "the others have shut down",
}
HOSTS = {
    (): "",
    (1, 1, 1): "; it is alone on its host (three hosts)",
    (1, 2, 1): "; another rank is on its host (three hosts)",
}
ENDINGS = {
    "raise": "raises",
    "exit 3": "`sys.exit(3)`",
    "exit 0": "`sys.exit(0)`",
    "os._exit 4": "`os._exit(4)`",
    "SIGKILL": "is killed (SIGKILL)",
    "SIGSEGV": "crashes (SIGSEGV)",
    "SIGSTOP": "is stopped (SIGSTOP)",
    "host lost": "loses its host",
    "link cut": "loses its host's link",
}


def title(case: Case) -> tuple[str, str]:
    """The first two columns of a case's row."""
    return ENDINGS[case.ending], PLACES[case.place] + HOSTS[case.hosts]


def row_titles() -> list[tuple[str, str]]:
    """The titles of all rows, in order."""
    return list(dict.fromkeys(map(title, CASES)))


def describe(outcome: Outcome) -> str:
    """The text of a cell: the survivors' error, the time at which the last of them reported it, and mpirun's exit code."""
    case, parts = outcome.case, []
    if len(outcome.went_on) == len(case.survivors):
        late, ranks = max(outcome.went_on.values())
        return f"continue with {ranks} ranks within {late:.2f} s; exit code {outcome.job.returncode}"
    heard = {}
    for rank in case.survivors:
        times = [(one[rank][0], one[rank][1]) for one in (outcome.said, outcome.raised) if rank in one]
        if times:
            heard[rank] = min(times)
    if heard:
        late, text = max(heard.values())
        who = "all" if len(heard) == len(case.survivors) else f"{len(heard)} of {len(case.survivors)}"
        verb = "raise" if len(outcome.raised) == len(case.survivors) else "print"
        parts.append(f"{who} {verb} within {late:.2f} s: “{_short(text)}”")
    else:
        parts.append("no report")
    code = outcome.job.returncode
    if case.ending == "link cut":
        parts.append("`mpirun` continues to wait for its daemon on that host")
        return "; ".join(parts)
    parts.append("**did not end**" if outcome.job.timed_out else f"exit code {code}")
    if outcome.orphans:
        parts.append(f"**{len(outcome.orphans)} processes left**")
    return "; ".join(parts)


def _short(text: str) -> str:
    text = text.replace("|", "/").removesuffix(" Horovod has been shut down").removesuffix(".")
    text = re.sub(r"\(host (\S+), pid \d+\)", r"(host \1, pid …)", text)
    return text if len(text) < 170 else text[:167] + "…"


def table(outcomes: Mapping[Case, Outcome]) -> str:
    """The table in Markdown, with a column for each mode."""
    version = subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    lines = [
        f"Run on {datetime.date.today()}, {version}, Python {sys.version.split()[0]}; jobs of three or four ranks.",
        "",
        "| rank 1 … | while … | `mpirun` | `mpirun --with-ft ulfm` | `--with-ft ulfm`, in a function of `hvd.elastic.run` |",
        "|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for case in CASES:
        cell = describe(outcomes[case]) if case in outcomes else "not run"
        rows.setdefault(title(case), {})[case.mode] = cell
    lines += [
        f"| {ending} | {place} | " + " | ".join(cells[mode] for mode in MODES) + " |" for (ending, place), cells in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Runs all cases but those left out, and replaces the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="append", default=[], help="leave out an ending, such as SIGSTOP")
    left_out = parser.parse_args().without
    outcomes = run_cases(case for case in CASES if case.ending not in left_out)
    write_between(PAGE, MARKS, table(outcomes))
    for outcome in outcomes.values():
        if outcome.job.timed_out or outcome.orphans:
            print(outcome.report())


if __name__ == "__main__":
    main()
