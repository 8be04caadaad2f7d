"""Do the tests notice small defects? cd tests && python -m mutants, which is `make mutants`; README.md says how to read it.

One mutant at a time is put into a copy of the project below build/mutants, built and tested; a line of JSON for each goes to a
file there, and a run goes on where the last one ended. Before that, every file of tests that a row names has to pass without
any mutant, once for each state of the project: otherwise it could be anything that a row's tests notice.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mutants.mutant import Mutant, Stale
from mutants.rows import ROOMS
from mutants.run import Verdict, run_tests
from mutants.tree import ROOT, Tree, files_of_commit, files_of_working_tree

FOLDER = ROOT / "build" / "mutants"
# Seconds, and times the seconds without the mutant: on a busy machine tests of a few seconds were seen to take minutes. Most
# jobs that hang are found out by the tests' own watchdogs before.
LEAST_DEADLINE = 900.0
TIMES_LONGER = 10.0
CLEAN_DEADLINE = 1800.0
GOOD = ("killed",)


class Results:
    """What is known so far: a file of lines of JSON, of which the last one about a row counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {entry["row"]: entry for entry in map(json.loads, lines)}

    def add(self, row: str, **facts: object) -> None:
        """Remembers a result, and writes it down at once."""
        self.known[row] = {"row": row, **facts}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(self.known[row]) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a row that was asked for is not killed, as far as it has been run."""
    options = _parser().parse_args(arguments)
    suffix = f"@{options.at}" if options.at else ""
    rows = {mutant.name: mutant for mutants in ROOMS.values() for mutant in mutants}
    unknown = set(options.only or ()) - rows.keys()
    if unknown:
        print(f"there is no row {', '.join(sorted(unknown))}; --list shows them", file=sys.stderr)
        return 2
    chosen = [rows[name] for name in options.only or rows]
    results = Results(FOLDER / f"rows{suffix}.jsonl")
    if options.list:
        for mutant in chosen:
            print(f"{_outcome(results, mutant):9} {mutant.name}: {mutant.what}")
        return 0
    if options.table:
        print(_table(results))
        return 0
    todo = [mutant for mutant in chosen if options.again or results.known.get(mutant.name, {}).get("key") != mutant.key]
    if todo:
        files = files_of_commit(options.at) if options.at else files_of_working_tree()
        tree = Tree(FOLDER / f"tree{suffix}", files)
        clean = Results(FOLDER / f"clean{suffix}.jsonl")
        # Python's first: for each of the others native code is built.
        for number, mutant in enumerate(sorted(todo, key=lambda mutant: mutant.is_native), 1):
            _judge(tree, mutant, results, clean, bool(options.at))
            entry = results.known[mutant.name]
            print(f"[{number}/{len(todo)}] {entry['outcome']:9} {mutant.name}: {entry['by']} {entry['error']}", flush=True)
    outcomes = [_outcome(results, mutant) for mutant in chosen]
    print(f"{outcomes.count('killed')} of {len(outcomes)} killed")
    return 0 if all(outcome in GOOD for outcome in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ROW", help="this row; may be given several times")
    parser.add_argument("--again", action="store_true", help="also rows that have a result")
    parser.add_argument("--list", action="store_true", help="say what the rows are, and run nothing")
    parser.add_argument("--table", action="store_true", help="print what is known, as Markdown, and run nothing")
    parser.add_argument("--at", metavar="COMMIT", help="the code and the tests of a commit; its results are kept apart")
    return parser


def _judge(tree: Tree, mutant: Mutant, results: Results, clean: Results, past: bool) -> None:
    """Runs one row."""
    contents = tree.contents
    # A commit of the past need not have had all files of tests that there are now.
    tests = [test for test in mutant.tests if not past or test.split("::")[0] in contents]

    def found(outcome: str, verdict: Verdict | None = None, error: str = "") -> None:
        facts = {"by": "", "error": error} if verdict is None else {"by": verdict.by, "error": verdict.error}
        seconds = 0.0 if verdict is None else round(verdict.seconds, 1)
        results.add(mutant.name, key=mutant.key, tree=tree.digest, outcome=outcome, seconds=seconds, **facts)

    try:
        mutated = mutant.applied(contents)
    except Stale as stale:
        return found("stale", error=str(stale))
    if not tests:
        return found("survived", error="none of its tests is there")
    usual = 0.0
    for test in tests:
        known = _without_mutant(tree, test, clean)
        if not known["passed"]:
            return found("unjudged", error=f"{test} fails without any mutant: {known['by']} {known['error']}")
        usual += known["seconds"]
    tree.change(mutant.file, mutated)
    try:
        failure = tree.build() if mutant.is_native else _built(tree)
        if failure:
            return found("unbuilt", error=failure)
        deadline, log = max(LEAST_DEADLINE, TIMES_LONGER * usual), _log_of(tree, mutant.name)
        verdict = run_tests(tree.root, tests, deadline, log)
        if verdict.passed or not verdict.by:
            return found("survived" if verdict.passed else "killed", verdict)
        # A busy machine fails a test now and then, but seldom in the same file twice.
        file = [test for test in tests if verdict.by.startswith(test)]
        again = run_tests(tree.root, file or tests, deadline, log.with_suffix(".again.log"))
    finally:
        tree.restore(mutant.file)
    return found("unsteady" if again.passed else "killed", verdict)


def _without_mutant(tree: Tree, test: str, clean: Results) -> dict[str, object]:
    """How a file of tests ends as the project is; a run that failed is tried again the next time."""
    known = clean.known.get(test)
    if known is None or known["tree"] != tree.digest or not known["passed"]:
        _built(tree)
        verdict = run_tests(tree.root, [test], CLEAN_DEADLINE, _log_of(tree, "clean"))
        facts = {"passed": verdict.passed, "by": verdict.by, "error": verdict.error, "tests": verdict.tests}
        clean.add(test, tree=tree.digest, seconds=round(verdict.seconds, 1), **facts)
        print(f"  without any mutant: {test}: {verdict.tests} passed in {verdict.seconds:.0f} s {verdict.by}", flush=True)
    return clean.known[test]


def _log_of(tree: Tree, name: str) -> Path:
    return FOLDER / f"{tree.root.name}.logs" / f"{name}.log"


def _built(tree: Tree) -> str:
    """Builds what has to build."""
    failure = tree.build()
    if failure:
        raise SystemExit(f"the project does not build without any mutant:\n{failure}")
    return ""


def _outcome(results: Results, mutant: Mutant) -> str:
    """Of a row as it is now."""
    entry = results.known.get(mutant.name, {})
    return str(entry["outcome"]) if entry.get("key") == mutant.key else "-"


def _table(results: Results) -> str:
    lines = ["| row | room | defect | outcome |", "|---|---|---|---|"]
    counts: dict[str, int] = {}
    for room, mutants in ROOMS.items():
        for mutant in mutants:
            entry = results.known.get(mutant.name, {"outcome": "-", "by": "", "error": ""})
            counts[entry["outcome"]] = counts.get(entry["outcome"], 0) + 1
            by = f" by {entry['by']}" if entry["by"] else ""
            error = f": {entry['error']}" if entry["error"] else ""
            cells = [mutant.name, room, mutant.what, f"{entry['outcome']}{by}{error}"]
            lines.append("| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))])


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
