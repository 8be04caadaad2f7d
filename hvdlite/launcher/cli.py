"""The command line of ``hvdlite``: a table of subcommands, each with its flags and its function."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hvdlite._version import __version__
from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.launcher import flags, plan
from hvdlite.launcher.command import Wishes
from hvdlite.launcher.job import GRACE_SECONDS, JobOutcome, LaunchedJob, told_to_end
from hvdlite.launcher.output import RankOutput

_EPILOG = """\
examples:
  hvdlite run -n 4 python train.py --epochs 3
  hvdlite run -H node1:8,node2:8 --network-interfaces eth0 python train.py
  hvdlite run -n 2 --mpi-args "--mca btl ^openib" --dry-run python train.py
"""


@dataclass(frozen=True)
class Subcommand:
    """One subcommand: its name, its purpose, its flags, and the function that runs it and returns an exit status."""

    name: str
    help: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    epilog: str = ""


# --- run ----------------------------------------------------------------------------------------------------------------


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hvdlite run [-n N] [flags] program [arguments]"
    add = parser.add_argument
    plan.add_job_flags(parser)
    add("--binding-args", default="", metavar="WORDS", help="arguments for mpirun or srun that bind ranks to cores, in quotes")
    add(
        "--elastic",
        action="store_true",
        help="if a signal ends a rank, the others continue without it in hvdlite.elastic.run (Open MPI 5 or newer)",
    )
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=plan.positive,
        metavar="N",
        help="does the same as --elastic, and ends training with an error if fewer than N ranks remain and no spare comes",
    )
    add(
        "--reset-limit",
        type=plan.positive,
        metavar="N",
        help="does the same as --elastic, and lets training continue after at most N changes of its ranks",
    )
    add(
        "--spares",
        type=plan.positive,
        metavar="N",
        help="does the same as --elastic, and starts N processes in addition to the ranks of -n, to replace lost ranks",
    )
    add(
        "-x",
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable to pass to all ranks, in addition to those that are always passed",
    )
    add("--tcp", action="store_true", help="forbids NCCL to use InfiniBand (NCCL_IB_DISABLE=1)")
    add("--start-timeout", type=plan.seconds, metavar="SECONDS", help="ends the job if a rank has not started after this time")
    add(
        "--grace",
        type=plan.seconds,
        metavar="SECONDS",
        default=GRACE_SECONDS,
        help="how long programs may run after Ctrl-C or SIGTERM, for instance to save their state [30]",
    )
    add("--output-filename", metavar="FOLDER", help="also writes each rank's output to FOLDER/rank.N/stdout and stderr")
    add("--no-tag-output", action="store_true", help="prints no [rank]<stream> in front of lines")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="puts the time in front of each line")
    add("--mpi", action="store_true", help=argparse.SUPPRESS)  # hvdlite does the same as horovodrun here
    add("-cb", "--check-build", action="store_true", help="the same as `hvdlite doctor`")
    flags.add_to(parser)
    add("command", nargs=argparse.REMAINDER, metavar="command", help="the program of each rank, with its arguments")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.check_build:
        return main(["doctor"])
    plan.refuse_nested("hvdlite run")
    command = program_of(arguments.command)
    if not command:
        print("hvdlite run: name the program to start: hvdlite run -n 2 python train.py", file=sys.stderr)
        return 2
    wishes, warnings = _wishes(arguments)
    processes = arguments.np + (arguments.spares or 0) if arguments.np else None
    chosen = plan.make(
        wishes, processes, arguments.hosts, arguments.hostfile, arguments.launcher, arguments.mpirun, arguments.bind
    )
    ranks = chosen.size - (arguments.spares or 0)
    if arguments.min_np is not None and arguments.min_np > ranks:
        raise InvalidArgumentError(f"--min-np {arguments.min_np}: this is more than the {ranks} ranks that the job has")
    for line in [*warnings, *(chosen.notes if arguments.verbose or arguments.dry_run else ())]:
        print(f"hvdlite: {line}", file=sys.stderr)
    if arguments.dry_run or arguments.verbose:
        prefix = "" if arguments.dry_run else "hvdlite: the command line is "
        print(f"{prefix}{chosen.line.shell(command)}", file=sys.stdout if arguments.dry_run else sys.stderr, flush=True)
    if arguments.dry_run:
        return 0
    output = RankOutput(
        chosen.size, not arguments.no_tag_output, arguments.prefix_output_with_timestamp, arguments.output_filename
    )
    job = LaunchedJob(chosen, command, output, arguments.start_timeout, arguments.grace)
    with told_to_end(job) as received:
        outcome = job.run()
    report(outcome, output)
    return 128 + received[0] if received else outcome.status


def _wishes(arguments: argparse.Namespace) -> tuple[Wishes, list[str]]:
    variables, warnings = flags.settings(arguments)
    interfaces = tuple(filter(None, arguments.interfaces.split(",")))
    if interfaces:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    if arguments.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    elastic = {"MIN_RANKS": arguments.min_np, "RESET_LIMIT": arguments.reset_limit, "SPARES": arguments.spares}
    variables |= {f"HVDLITE_ELASTIC_{name}": str(value) for name, value in elastic.items() if value is not None}
    names = []
    for setting in arguments.env:
        name, equals, value = setting.partition("=")
        if not name:
            raise InvalidArgumentError(f"-x {setting} names no variable: write -x NAME or -x NAME=VALUE")
        names.append(name)
        if equals:
            variables[name] = value
    return Wishes(
        oversubscribe=arguments.oversubscribe,
        ssh_port=arguments.ssh_port,
        ssh_identity_file=arguments.ssh_identity_file,
        interfaces=interfaces,
        tcp_streams=arguments.tcp_streams,
        tcp_buffer_bytes=arguments.tcp_buffer_bytes,
        names=tuple(names),
        variables=variables,
        elastic=arguments.elastic or any(elastic.values()),
        mpi_args=(*plan.words_of("--mpi-args", arguments.mpi_args), *plan.words_of("--binding-args", arguments.binding_args)),
    ), warnings


def program_of(words: Sequence[str]) -> list[str]:
    """The command line of the program to start. The Python of this process, which has hvdlite, replaces ``python``, and is put
    in front of a script that is not executable.
    """
    command = list(words[1:] if words[:1] == ["--"] else words)
    if command and command[0] in ("python", "python3"):
        command[0] = sys.executable
    elif command and command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        command.insert(0, sys.executable)
    return command


def report(outcome: JobOutcome, output: RankOutput) -> None:
    """Prints which ranks were lost, and why the job has failed; nothing if neither has happened. The traceback of the rank that
    failed first comes last.
    """
    for lost in outcome.lost:
        output.say(
            f"hvdlite run: rank {lost.rank} (host {lost.host}, pid {lost.pid}) {lost.how}, and the others continued without it"
        )
    if outcome.problem:
        output.say(f"hvdlite run: {outcome.problem}")
    if outcome.failure is None or (outcome.interrupted and outcome.failure.stopped):
        return
    failure = outcome.failure
    place = f"rank {failure.rank} (host {failure.host}, pid {failure.pid})"
    words = "Its last output:" if outcome.words else "It has printed nothing."
    output.say(f"hvdlite run: {place} failed first: it {failure.how}. {words}")
    for line in outcome.words:
        output.say(line)


# --- the table ----------------------------------------------------------------------------------------------------------


def subcommands() -> tuple[Subcommand, ...]:
    """All subcommands of ``hvdlite``."""
    from hvdlite.launcher import completion, doctor, top, tune
    from hvdlite.timeline import __main__ as timeline

    return (
        Subcommand("run", "starts a program on several ranks", _add_run_flags, _run, _EPILOG),
        Subcommand("doctor", "checks on this machine everything that hvdlite needs", doctor.add_flags, doctor.run),
        Subcommand(
            "tune",
            "measures which values of knobs suit this machine, and stores those that are faster than the defaults",
            tune.add_flags,
            lambda arguments: tune.run(arguments, main),
            tune.EPILOG,
        ),
        Subcommand(
            "top",
            "shows a running job: where each rank spends its time, and for which rank the others wait",
            top.add_flags,
            top.run,
            top.EPILOG,
        ),
        Subcommand("timeline", "merges and explains the traces of a job", timeline.add_arguments, timeline.run),
        Subcommand(
            "completion",
            "prints a script that completes this command in a shell",
            completion.add_flags,
            lambda arguments: completion.run(arguments, make_parser()),
        ),
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser("hvdlite", description="Data-parallel training over MPI.", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=f"hvdlite {__version__}")
    choices = parser.add_subparsers(metavar="subcommand", required=True, title="subcommands")
    for subcommand in subcommands():
        sub = choices.add_parser(
            subcommand.name,
            help=subcommand.help,
            description=f"hvdlite {subcommand.name} {subcommand.help}.",
            epilog=subcommand.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subcommand.add_flags(sub)
        sub.set_defaults(run=subcommand.run)
    return parser


_ALONE = ("-h", "--help", "-v", "--version")  # the flags of hvdlite itself


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command line and prints errors. Returns the subcommand's exit status, 2 after an error, 128 + n after signal n."""
    words = sys.argv[1:] if words is None else words
    parser = make_parser()
    if words and (words[0].endswith(("python", "python3", ".py")) or (words[0].startswith("-") and words[0] not in _ALONE)):
        parser.error(f"a subcommand comes first; this starts ranks: {shlex.join(['hvdlite', 'run', *words])}")
    arguments = parser.parse_args(words)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has ended, for example in `hvdlite doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python writes the rest when it ends
        return 128 + signal.SIGPIPE
    except (HvdliteError, OSError) as error:
        print(f"hvdlite: {error}", file=sys.stderr)
        return 2
