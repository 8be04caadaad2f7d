"""Runs the cases of failure_cases.py and writes the tables of docs/failures.md (`make failures`)."""

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
    "negotiation": "the others wait for it in an allreduce",
    "collective": "an allreduce of 64 MiB is under way",
    "computing": "the others compute",
    "shutdown": "the others have shut down",
}
HOSTS = {(): "", (1, 1, 1): "; it is alone on its host", (1, 2, 1): "; another rank is on its host"}
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
# What a text about the failure is called in a cell, how to know it (the first that fits counts), and what the text says.
TEXTS = (
    (
        "cannot go on",
        "elastic training cannot go on after this",
        "`UnsupportedError: elastic training cannot go on after this (AbortedError: … rank 1 (host …, pid …) has left …`",
    ),
    ("exception", r"rank 1 \(.*?\) raised ValueError", "`rank 1 (host …, pid …) raised ValueError: bad batch 17 …`"),
    ("left", "has left", "`rank 1 (host …, pid …) has left …`"),
    ("ended", "ended without telling the other ranks", "`rank 1 (host …, pid …) ended without telling the other ranks …`"),
    (
        "gave up",
        "gave up after",
        "`rank … gave up after … HVDLITE_STALL_SHUTDOWN_TIME_SECONDS …`, and what it waited for",
    ),
    ("silent", "has heard nothing for", "`rank … has heard nothing for 10 s (HVDLITE_PEER_TIMEOUT) from the host of rank 1 …`"),
    ("SIGTERM", "SIGTERM ends this rank", "`SIGTERM ends this rank …`"),
)


def title(case: Case) -> tuple[str, str]:
    """The first two columns of a case's row."""
    return ENDINGS[case.ending], PLACES[case.place] + HOSTS[case.hosts]


def row_titles() -> list[tuple[str, str]]:
    """The titles of all rows of cases, in order."""
    return list(dict.fromkeys(map(title, CASES)))


def describe(outcome: Outcome) -> str:
    """The text of a cell: the name of the survivors' text, the time at which the last of them has it, mpirun's exit code."""
    case, parts = outcome.case, []
    if len(outcome.went_on) == len(case.survivors):
        late, ranks = max(outcome.went_on.values())
        return f"continue with {ranks} ranks in {late:.2f} s; code {outcome.job.returncode}"
    heard = {}
    for rank in case.survivors:
        times = [(one[rank][0], one[rank][1]) for one in (outcome.said, outcome.raised) if rank in one]
        if times:
            heard[rank] = min(times)
    if heard:
        late, text = max(heard.values())
        who = "" if len(heard) == len(case.survivors) else f"{len(heard)} of {len(case.survivors)} "
        verb = "raise" if len(outcome.raised) == len(case.survivors) else "print"
        parts.append(f"{who}{verb} *{name_of(text)}* in {late:.2f} s")
    else:
        parts.append("no report")
    if case.ending == "link cut":
        return parts[0]  # mpirun still waits
    parts.append("**did not end**" if outcome.job.timed_out else f"code {outcome.job.returncode}")
    if outcome.orphans:
        parts.append(f"**{len(outcome.orphans)} processes left**")
    return "; ".join(parts)


def name_of(text: str) -> str:
    """What a text about a failure is called in a cell; the text itself if it has no name in `TEXTS`."""
    return next((name for name, pattern, _ in TEXTS if re.search(pattern, text)), text.replace("|", "/"))


def table(outcomes: Mapping[Case, Outcome]) -> str:
    """The tables in Markdown: the names of the texts, and the cases on one host and on several, with a column for each mode."""
    version = subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    lines = [
        f"Run on {datetime.date.today()}, {version}, Python {sys.version.split()[0]}.",
        "",
        "| in a cell | the text |",
        "|---|---|",
        *(f"| *{name}* | {text} |" for name, _, text in TEXTS),
    ]
    for heading, hosts in (("One host, three ranks:", False), ("Three hosts, three or four ranks:", True)):
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for case in CASES:
            if bool(case.hosts) == hosts:
                cell = describe(outcomes[case]) if case in outcomes else "not run"
                rows.setdefault(title(case), {})[case.mode] = cell
        lines += [
            "",
            heading,
            "",
            "| rank 1 … | while … | `mpirun` | `mpirun --with-ft ulfm` | `--with-ft ulfm`, `hvd.elastic.run` |",
            "|---|---|---|---|---|",
            *("| " + " | ".join([*titles, *(cells[mode] for mode in MODES)]) + " |" for titles, cells in rows.items()),
        ]
    return "\n".join(lines)


def main() -> None:
    """Runs all cases but those left out, and replaces the tables."""
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
