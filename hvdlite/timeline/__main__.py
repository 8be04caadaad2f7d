"""``python -m hvdlite.timeline``: merges the files of `hvdlite.start_timeline`, or reports on them."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.timeline import files
from hvdlite.timeline.advice import advice
from hvdlite.timeline.analysis import analyse
from hvdlite.timeline.report import page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of both subcommands, for this program and for ``hvdlite timeline``."""
    commands = parser.add_subparsers(dest="action", required=True)
    for name, help_text, output in (
        ("merge", "write the traces of all ranks to one file, with the times of one clock", "timeline-merged.json"),
        ("report", "explain how the job spent the time of its steps, in an HTML page and in sentences", "timeline.html"),
    ):
        command = commands.add_parser(name, help=help_text, description=help_text.capitalize() + ".")
        command.add_argument(
            "files",
            nargs="+",
            type=Path,
            help="the file of rank 0, if the other ranks' files are in the same folder; or all files",
        )
        command.add_argument("-o", "--output", type=Path, default=Path(output), help="file to write; default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand. Returns the exit status: 0, or 1 after an error, which is printed."""
    try:
        given: list[Path] = arguments.files
        paths = files.files_of_job(given[0]) if len(given) == 1 else given
        traces = sorted((files.read(path) for path in paths), key=lambda trace: trace.rank)
        ranks = [trace.rank for trace in traces]
        if len(set(ranks)) < len(ranks):
            raise InvalidArgumentError(f"several files have the same rank (ranks {ranks}): pass the files of one job")
        if other := next((each for each in traces if each.size != traces[0].size), None):
            raise InvalidArgumentError(
                f"the file of rank {other.rank} is of a job of {other.size} ranks, and that of rank {ranks[0]} of a job of "
                f"{traces[0].size}: pass the files of one job, or delete those of the earlier job"
            )
        if any(arguments.output.resolve() == path.resolve() for path in paths):
            raise InvalidArgumentError(f"--output {arguments.output} would replace a file of the job: name another file")
        sentences: list[str] = []
        if arguments.action == "merge":
            content = json.dumps(files.merge(traces))
        else:
            analysis = analyse(traces)
            content, sentences = page(analysis), advice(analysis)
        arguments.output.write_text(content, encoding="utf-8")
    except (HvdliteError, OSError) as error:
        print(f"hvdlite timeline: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output}: traces of {len(traces)} rank{'' if len(traces) == 1 else 's'}")
    for sentence in sentences:
        print(f"- {sentence}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program with these arguments. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="hvdlite timeline", description="Merges and explains the traces of a job.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
