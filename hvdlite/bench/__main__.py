"""The command line of the benchmark: ``python -m hvdlite.bench COMMAND``.

Over 400 lines, because it has the flags of all commands.
"""

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from hvdlite import config
from hvdlite._version import __version__
from hvdlite.bench import (
    collectives,
    cuda_collectives,
    guard,
    keras_training,
    kernels,
    launch,
    messages,
    report,
    submission,
    tables,
    tensorflow_ops,
    training,
)
from hvdlite.bench.models import MODELS
from hvdlite.bench.others import Others
from hvdlite.bench.peers import CUDA_PEERS, PEERS, installed
from hvdlite.bench.team import WrongSum
from hvdlite.bench.world import World
from hvdlite.errors import HvdliteError, InvalidArgumentError, SystemFailure, UnsupportedError
from hvdlite.launcher import plan as launching
from hvdlite.tuning.place import cpu_name


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    The status is 0 for success and 1 for an error. The command ``guard`` returns 1 if this build is slower than the other
    build, and 2 for an error. ``kernels --targets`` returns 3 if a target is missed.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    options = parser.parse_args(words)
    try:
        if getattr(options, "output", None) and config.launcher_claim() is None:
            options.output.open("a").close()  # now, and not after the measurements
        if options.command == "table":
            records = _read(options.lines)
            kinds = {record["record"] for record in records}
            render = guard.table if "guard_run" in kinds else kernels.table if "kernel" in kinds else tables.tables
            print(render(records))
        elif options.command == "plot":
            _draw(_read(options.lines), options.picture)
        elif options.command == "kernels":
            return _kernels(options)
        elif options.command == "guard":
            return _guard(options)
        else:
            _check(parser, options)
            _job(options, words)
    except (OSError, WrongSum, HvdliteError) as error:
        print(f"hvdlite.bench: {error}", file=sys.stderr)
        return 1 if options.command != "guard" else _NO_COMPARISON
    return 0


_WAYS = {"torch": training.WAYS, "keras": keras_training.WAYS}
_BELOW_TARGET = 3  # the exit status
_SLOWER, _NO_COMPARISON = 1, 2
_ROUNDS = 4  # the number of jobs of each team, if not all ways can share one job

# --- arguments --------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hvdlite.bench", description="Measures hvdlite and other libraries; see docs/benchmarks.md."
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    def add(name: str, text: str, seconds: float | None = None) -> argparse.ArgumentParser:
        """Adds a command. With `seconds`, ranks make the measurements, and `seconds` is the default of ``--seconds``."""
        parents = [_launching()] if seconds is not None else []
        job = commands.add_parser(name, help=text, parents=parents, formatter_class=_HelpFormatter)
        if seconds is not None:
            job.add_argument(
                "--seconds", type=launching.seconds, default=seconds, help="the approximate time for all measurements"
            )
        return job

    job = add("collectives", "measures arrays of all sizes, gradients, small tensors and an idle engine", 120.0)
    usual = [name for name, kind in PEERS.items() if kind.by_default]
    _add_names(job, "--cases", collectives.CASES, collectives.CASES)
    _add_names(job, "--cache", collectives.CACHES, collectives.CACHES)
    _add_names(job, "--peers", [*(PEERS | CUDA_PEERS)], usual)
    _add_sizes(job, collectives.DEFAULT_SIZES, "the sizes of the arrays, such as 4,64K,16M")
    _add_number(job, "--tensors", collectives.DEFAULT_TENSORS, "the number of tensors in the case small")
    job.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="the memory of the tensors; cuda needs torch and a GPU"
    )

    job = add("training", "measures steps of training, with and without communication", 180.0)
    job.add_argument("--framework", choices=list(_WAYS), default="torch", help="the framework; keras is Keras on TensorFlow")
    _add_names(job, "--models", list(MODELS), list(MODELS))
    _add_names(job, "--zero-grad", training.ZERO_GRAD, training.ZERO_GRAD)
    _add_names(job, "--loops", keras_training.LOOPS, keras_training.LOOPS)
    ways = list(dict.fromkeys(way for known in _WAYS.values() for way in known))
    _add_names(job, "--peers", ways, [way for way in ways if way not in training.WAYS or training.WAYS[way].by_default])
    job.add_argument("--silent", action="store_true", help=argparse.SUPPRESS)  # a job that is a part of a run prints no tables

    job = add("tensorflow-ops", "measures operations in a graph of TensorFlow, on one rank", 20.0)
    _add_number(job, "--tensors", 160, "the number of tensors in the graph")
    _add_number(job, "--elements", 1000, "the number of elements of each tensor")

    job = add("submission", "measures the time to submit one of many small tensors", 20.0)
    _add_number(job, "--tensors", 100, "the number of tensors that are submitted before the wait")

    job = add("messages", "measures messages of all sizes from the first rank to the last", 30.0)
    _add_sizes(job, messages.DEFAULT_SIZES, "the sizes of the tensors, such as 8,64M")

    job = add("kernels", "measures the fusion kernels of one GPU, in this process")
    _add_names(job, "--cases", list(kernels.CASES), kernels.DEFAULT_CASES)
    _add_sizes(job, kernels.DEFAULT_SIZES, "the sizes to measure, each of all tensors together")
    job.add_argument("--tensors", type=_numbers, default="1,16,160,1000", metavar="N,...", help="the numbers of tensors")
    _add_number(job, "--launches", 50, "the number of launches in a row")
    _add_number(job, "--repeats", 5, "how often the launches in a row are repeated; the median is reported")
    job.add_argument("--gpu", type=int, default=0, help="the number of the GPU")
    _add_output(job)
    job.add_argument("--targets", action="store_true", help="lists each missed target, and ends with status 3 if there is one")

    guarding = guard.GuardPlan()
    job = add("guard", "checks that this build is not slower than another one")
    job.add_argument("--against", type=Path, required=True, metavar="DIR", help="a built checkout of the other hvdlite")
    job.add_argument("--pairs", type=int, default=guarding.pairs, help="how often the jobs of each build run, at least 10")
    job.add_argument(
        "--seconds", type=launching.seconds, default=guarding.seconds, help="the approximate time for each figure in a job"
    )
    job.add_argument(
        "--tolerance",
        type=float,
        default=guarding.tolerance,
        help="the largest accepted ratio of this build's figures to the other's",
    )
    job.add_argument("--any-load", action="store_true", help="also counts jobs during which the machine had other work")
    _add_output(job)

    table = add("table", "prints an output file as tables in markdown")
    table.add_argument("lines", metavar="FILE.jsonl", type=Path)
    plot = add("plot", "draws an output file")
    plot.add_argument("lines", metavar="FILE.jsonl", type=Path)
    plot.add_argument("picture", metavar="FILE.png", type=Path)
    return parser


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to the help of each flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False) else action.help


def _launching() -> argparse.ArgumentParser:
    """The arguments that this process does not pass on to the ranks that it starts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "-n", dest="ranks", type=launching.positive, metavar="N", help="the number of ranks to start [2; for tensorflow-ops 1]"
    )
    parser.add_argument(
        "--bind",
        choices=[*launch.BINDINGS, "both"],
        help="core: bind each rank to a core; none: bind no rank; both: a run with each [core]",
    )
    _add_output(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="a file for a picture; needs matplotlib")
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="a file for the measurements, as lines of JSON")


def _add_names(parser: argparse.ArgumentParser, flag: str, known: Sequence[str], usual: Sequence[str]) -> None:
    def names(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(known)}")
        return [name for name in known if name in wanted]

    parser.add_argument(
        flag, type=names, default=",".join(usual), metavar="NAME,...", help=f"a selection of {', '.join(known)}"
    )


def _add_sizes(parser: argparse.ArgumentParser, usual: Sequence[int], text: str) -> None:
    default = ",".join(map(report.short_bytes, usual))
    parser.add_argument("--sizes", type=_sizes, default=default, metavar="BYTES,...", help=text)


def _add_number(parser: argparse.ArgumentParser, flag: str, usual: int, text: str) -> None:
    parser.add_argument(flag, type=launching.positive, default=usual, help=text)


def _numbers(text: str) -> list[int]:
    numbers = [int(number) if number.isdecimal() else 0 for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers above 0")
    return numbers


def _sizes(text: str) -> list[int]:
    try:
        return [report.parse_bytes(size) for size in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with an error if arguments contradict each other, or if a package that they need is missing."""
    if getattr(options, "device", "") == "cuda":
        _check_cuda(parser, options)
    elif options.command == "collectives" and (strange := [name for name in options.peers if name not in PEERS]):
        parser.error(f"{', '.join(strange)}: not among {', '.join(PEERS)}; peers for GPUs need --device cuda")
    missing = installed("matplotlib", "pip install 'hvdlite[bench]'") if options.plot else None
    needed = {"training": getattr(options, "framework", ""), "tensorflow-ops": "tensorflow"}.get(options.command)
    for package in {"torch": ["torch"], "keras": ["keras", "tensorflow"], "tensorflow": ["tensorflow"]}.get(needed or "", ()):
        missing = missing or installed(package, f"pip install 'hvdlite[{package}]'")
    if options.command == "training":
        options.peers = [way for way in options.peers if way in _WAYS[options.framework]]
    if missing:
        parser.error(missing)
    claim = config.launcher_claim()
    if claim is not None and options.bind is not None:
        parser.error(
            f"--bind works only for ranks that this command starts, but {claim.launcher} has started them: leave --bind out"
        )
    if claim is not None and options.ranks not in (None, claim.size):
        parser.error(f"-n {options.ranks}, but {claim.launcher} has started {claim.size} ranks: leave -n out")
    if options.command == "messages" and 1 in (options.ranks, claim and claim.size):
        parser.error("a message goes from one rank to another: messages needs at least two ranks")


def _check_cuda(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Replaces defaults by the defaults for CUDA tensors, and drops peers and cases that do not exist for CUDA tensors."""
    if reason := cuda_collectives.no_gpu():
        parser.error(f"--device cuda: {reason}")
    if options.peers == [name for name, kind in PEERS.items() if kind.by_default]:
        options.peers = list(CUDA_PEERS)
    options.peers = [name for name in options.peers if name in CUDA_PEERS]
    options.cases = [name for name in options.cases if name in cuda_collectives.CASES]
    if not options.peers or not options.cases:
        known = cuda_collectives.CASES if options.peers else CUDA_PEERS
        parser.error(f"with --device cuda, {'--cases' if options.peers else '--peers'} may only be {', '.join(known)}")
    if tuple(options.sizes) == collectives.DEFAULT_SIZES:
        options.sizes = cuda_collectives.DEFAULT_SIZES
    if options.tensors == collectives.DEFAULT_TENSORS:
        options.tensors = cuda_collectives.DEFAULT_TENSORS


# --- kernels ----------------------------------------------------------------------------------------------------------


def _kernels(options: argparse.Namespace) -> int:
    records = kernels.run(options)
    _write(options, records)
    print(kernels.table(records), flush=True)
    missed = kernels.missed(records) if options.targets else []
    if missed:
        print("\nBelow target:\n" + "\n".join(f"- {line}" for line in missed), flush=True)
    return _BELOW_TARGET if missed else 0


# --- guard ------------------------------------------------------------------------------------------------------------


def _guard(options: argparse.Namespace) -> int:
    if options.pairs < guard.FEWEST_PAIRS:
        raise InvalidArgumentError(f"--pairs {options.pairs}: a comparison needs at least {guard.FEWEST_PAIRS} pairs")
    plan = guard.GuardPlan(options.pairs, options.seconds, options.tolerance, options.any_load)
    builds = [guard.check_build(folder) for folder in (Path(__file__).parents[2], options.against)]
    records = guard.compare(builds, plan, guard.jobs(plan), lambda line: print(line, file=sys.stderr, flush=True))
    _write(options, records)
    print(guard.table(records), flush=True)
    return _SLOWER if guard.slower(records, plan.tolerance) else 0


# --- a job ------------------------------------------------------------------------------------------------------------


def _job(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Measures if a launcher has started this process as a rank; otherwise starts ranks that measure."""
    if config.launcher_claim() is not None:
        _measure(options, words)
        return
    # The rank of tensorflow-ops is not bound, because on one core TensorFlow's threads and the engine's thread would wait for
    # each other.
    usual = "none" if options.command == "tensorflow-ops" else "core"
    bindings = launch.BINDINGS if options.bind == "both" else [options.bind or usual]
    for_ranks = _launching().parse_known_args(words)[1]
    with tempfile.TemporaryDirectory(prefix="hvdlite-bench-") as folder:
        records = [record for bind in bindings for record in _started(options, bind, for_ranks, Path(folder) / f"{bind}.jsonl")]
    _write(options, records)
    if options.plot:
        _draw(records, options.plot)


def _started(options: argparse.Namespace, bind: str, for_ranks: Sequence[str], file: Path) -> list[report.Record]:
    """Starts ranks, and returns the records that they have written."""
    ranks = options.ranks or (1 if options.command == "tensorflow-ops" else 2)
    teams = keras_training.teams(options.peers) if getattr(options, "framework", "") == "keras" else []
    if len(teams) < 2:
        launch.start(ranks, bind, [*for_ranks, "--output", str(file)])
        return _read(file)
    # Ways to average gradients that cannot share a process are measured in alternating jobs. Each job makes one round of the
    # measurements of its ways.
    jobs = []
    seconds = str(options.seconds / _ROUNDS / len(teams))
    for number in range(_ROUNDS):
        for team in teams if number % 2 == 0 else teams[::-1]:
            own = ["--peers", ",".join(team), "--seconds", seconds, "--output", str(file), "--silent"]
            launch.start(ranks, bind, [*for_ranks, *own])
            jobs.append(_read(file))
    records = report.joined(jobs)
    records[0]["arguments"] = " ".join(for_ranks)
    print(tables.tables(records), flush=True)
    return records


def _measure(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Measures on the ranks of the job, and prints on rank 0. Collective.

    Raises:
        WrongSum: a peer's result is wrong. All ranks raise it.
        SystemFailure: rank 0 cannot write the output. All ranks raise it.
    """
    world = World()
    try:
        book = _Book(world, options.output)
        book.add([_run_record(world, words)])
        others = Others(world)
        run = {
            "collectives": cuda_collectives.run if getattr(options, "device", "") == "cuda" else collectives.run,
            "training": keras_training.run if getattr(options, "framework", "") == "keras" else training.run,
            "tensorflow-ops": tensorflow_ops.run,
            "submission": submission.run,
            "messages": messages.run,
        }[options.command]
        run(world, options, book.add)
        book.add([others.record()])
        if world.rank == 0 and not getattr(options, "silent", False):
            print(tables.tables(book.records), flush=True)
            if options.plot:
                _draw(book.records, options.plot)
    finally:
        world.close()


class _Book:
    """Keeps all records. Rank 0 also writes each record to the output file at once, and prints the progress."""

    def __init__(self, world: World, path: Path | None) -> None:
        self.records: list[report.Record] = []
        self._speaks = world.rank == 0
        self._file: TextIO | None = None
        problem = None
        if self._speaks and path is not None:
            try:
                self._file = path.open("w")
            except OSError as error:
                problem = f"the output cannot be written: {error}"
        if problem := world.all_agree(problem):
            raise SystemFailure(problem)

    def add(self, records: Iterable[report.Record]) -> None:
        """Adds the records of one group of comparable measurements, or other records."""
        new = list(records)
        self.records += new
        if self._file is not None:
            self._file.writelines(report.to_line(record) + "\n" for record in new)
            self._file.flush()
        if self._speaks and (line := tables.progress(new)):
            print(line, file=sys.stderr, flush=True)


def _run_record(world: World, words: Sequence[str]) -> report.Record:
    """The record ``run``, which describes the machine, the software and the arguments, so that anybody can repeat the run."""
    knobs = config.from_environment()
    return {
        "record": "run",
        "arguments": " ".join(_launching().parse_known_args(words)[1]),
        "ranks": world.size,
        "hosts": world.hosts,
        "bind": world.bind,
        "cores_per_rank": world.cores,
        "cpus": os.cpu_count(),
        "cpu": cpu_name(),
        "versions": {"hvdlite": __version__, "Python": platform.python_version(), "NumPy": importlib.metadata.version("numpy")},
        "knobs": {name: knobs.values[name] for name in knobs.origins},
    }


# --- files ------------------------------------------------------------------------------------------------------------


def _write(options: argparse.Namespace, records: Sequence[report.Record]) -> None:
    if options.output:
        options.output.write_text("".join(report.to_line(record) + "\n" for record in records))


def _read(path: Path) -> list[report.Record]:
    try:
        records = report.read_lines(path.read_text().splitlines())
        if all(record["record"] for record in records) and records:
            return records
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidArgumentError(f"{path} is no output of the benchmark: name a file that --output has written")


def _draw(records: Sequence[report.Record], picture: Path) -> None:
    if missing := installed("matplotlib", "pip install 'hvdlite[bench]'"):
        raise UnsupportedError(missing)
    from hvdlite.bench.plot import draw

    draw(records, picture)


if __name__ == "__main__":
    sys.exit(main())
