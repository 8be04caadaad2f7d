"""``hvdlite doctor``: checks an installation, and reports each part that does not work and how to repair it."""

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from hvdlite._version import __version__
from hvdlite.launcher import checks, on_hosts
from hvdlite.launcher.checks import Finding
from hvdlite.launcher.host_checks import examine_hosts

# The meaning of each mark in front of a line.
_LEGEND = "ok: it works   WARN: it could work better   FAIL: a required part does not work   -: it is missing and not required"
_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "none": "-   "}
_WIDTH = 16  # the width of the column with the names of checks


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``hvdlite doctor``."""
    parser.add_argument("--json", action="store_true", help="prints the report as JSON")
    parser.add_argument(
        "--smoke", action=argparse.BooleanOptionalAction, default=True, help="starts a small job of two ranks [on]"
    )
    parser.add_argument("--frameworks", action=argparse.BooleanOptionalAction, default=True, help="imports each framework [on]")
    parser.add_argument(
        "-H", "--hosts", default="", metavar="HOSTS", help="compares these hosts, in the form a,b [checks this host]"
    )
    on_hosts.add_flags(parser)
    parser.epilog = "The exit code is 1 if a required part does not work. hvdlite doctor changes nothing."


def examine(smoke: bool = True, frameworks: bool = True) -> Iterator[Finding]:
    """Runs the checks of this host, and yields each finding as soon as it is known.

    Args:
        smoke: also start a job of two ranks? No job starts if no mpirun was found.
        frameworks: also import each framework?
    """
    left_out = (set() if smoke else {"job"}) | (set() if frameworks else {"frameworks"})
    without_mpirun = False
    for name, check in checks.CHECKS.items():
        if name in left_out or (name == "job" and without_mpirun):
            continue
        for finding in check():
            without_mpirun = without_mpirun or (finding.check == "mpirun" and finding.status == "fail")
            yield finding


def render(finding: Finding) -> str:
    """The line of the report about a finding, and a second line with the remedy if there is one."""
    text = f"{_MARKS[finding.status]}  {finding.check:{_WIDTH}}  {finding.found}"
    return f"{text}\n{'':{_WIDTH + 8}}To do: {finding.remedy}" if finding.remedy else text


def verdict(findings: Sequence[Finding]) -> str:
    """The last line of the report, with the number of findings of each kind."""
    count = {status: sum(finding.status == status for finding in findings) for status in _MARKS}
    said = "a required part does not work" if count["fail"] else "all required parts work"
    return f"{said}: {count['fail']} failed, {count['warn']} could work better, {count['ok']} passed"


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. Returns the exit status: 1 if a required part does not work, otherwise 0."""
    python = f"Python {platform.python_version()} ({sys.executable})"
    system = platform.platform()
    if not arguments.json:
        print(f"hvdlite {__version__}, {python}, {system}\n{_LEGEND}\n", flush=True)
    findings = []
    found_here = examine_hosts(arguments) if arguments.hosts else examine(arguments.smoke, arguments.frameworks)
    for finding in found_here:
        findings.append(finding)
        if not arguments.json:
            print(render(finding), flush=True)
    if arguments.json:
        found = {"hvdlite": __version__, "python": python, "system": system, "findings": [asdict(row) for row in findings]}
        print(json.dumps(found, indent=2))
    else:
        print(f"\n{verdict(findings)}")
    return int(any(finding.status == "fail" for finding in findings))
