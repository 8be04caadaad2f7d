"""``hvdlite tune``: measures, on ranks that it starts as ``hvdlite run`` does, which knobs suit this machine.

With ``--link`` it measures which compression suits the link between hosts.
"""

import argparse
import re
from collections.abc import Callable, Sequence

from hvdlite.errors import InvalidArgumentError

__all__ = ["EPILOG", "add_flags", "command", "run"]

EPILOG = """\
Two settings are always measured in turn, in one job. A setting is taken only if that shows more than noise, and only if the
winner beats the defaults once more at the end; otherwise the defaults stay. Run it on a machine that does nothing else, with
the ranks and hosts of the jobs that are to use it:

  hvdlite tune -n 4
  HVDLITE_TUNING_FILE=auto hvdlite run -n 4 python train.py

docs/tuning.md says more. With --link it measures the link between hosts instead. For a model of so many parameters, whose step
takes so long on one rank, it predicts and measures the time of a step with each compression, and names the one that pays:

  hvdlite tune --link -H node1:1,node2:1 --parameters 11.2M --step-time 30ms

docs/slow_links.md says more.
"""

# Flags of `hvdlite run` that say how ranks are started, with their metavar and help.
_STARTING = (
    (("-n", "--num-proc"), "N", "how many ranks [as many as the hosts take]"),
    (("-H", "--hosts"), "HOSTS", "the hosts: host:ranks,host:ranks [this host, or the allocation]"),
    (("--hostfile",), "FILE", "the same in a file"),
    (("--launcher",), "NAME", "auto, mpirun or srun [auto]"),
    (("--mpirun",), "PATH", "the mpirun to take [the one of the MPI that mpi4py loads]"),
    (("--mpi-args",), "WORDS", "further arguments for mpirun or srun, in one word of the shell"),
    (("--bind",), "HOW", "auto or none, as the jobs that will use the tuning [auto]"),
    (("-p", "--ssh-port"), "PORT", "for logging in to other hosts"),
    (("-i", "--ssh-identity-file"), "FILE", "likewise"),
    (("--network-interfaces",), "NAMES", "the network interfaces to use"),
)
_SWITCHES = (
    (("--oversubscribe",), "allows more ranks than the hosts have slots"),
    (("--dry-run",), "prints the command line and starts nothing"),
    (("--verbose",), "says which launcher was taken, why, and the command line"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``hvdlite tune``."""
    parser.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="the approximate duration [60]")
    parser.add_argument("--output", metavar="FILE", help="where the result goes, on the host of rank 0 [the cache folder]")
    parser.add_argument(
        "--any-bits", action="store_true", help="also tries what may change the last bits of sums [it does not]"
    )
    link = parser.add_argument_group("the link between hosts")
    link.add_argument("--link", action="store_true", help="measures the link, and the time of a step with each compression")
    link.add_argument("--parameters", type=_count, metavar="N", help="of the model, such as 11.2M")
    link.add_argument("--step-time", type=_duration, metavar="T", help="of a step without communication, such as 30ms or 0.5s")
    group = parser.add_argument_group("starting ranks", "as `hvdlite run` has them")
    for names, metavar, text in _STARTING:
        group.add_argument(*names, metavar=metavar, dest=_dest(names), help=text)
    for names, text in _SWITCHES:
        group.add_argument(*names, action="store_true", dest=_dest(names), help=text)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGB]?)", text)
    number = round(float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}[found[2].upper()]) if found else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters: write it as 11200000, 11200K or 11.2M")
    return number


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write it with its unit, as 30ms or 0.5s")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def _dest(names: Sequence[str]) -> str:
    return names[-1].lstrip("-").replace("-", "_")


def command(arguments: argparse.Namespace) -> list[str]:
    """The words of the command line that starts the ranks.

    Raises:
        InvalidArgumentError: flags that belong together are not all given, or others that do not.
    """
    words = ["run", "--no-tag-output"]
    for names, _, _ in _STARTING:
        value = getattr(arguments, _dest(names))
        words += [f"{names[-1]}={value}"] if value is not None else []  # it may begin with a dash
    for names, _ in _SWITCHES:
        words += [names[-1]] if getattr(arguments, _dest(names)) else []
    program, *others = _link_program(arguments) if arguments.link else _knobs_program(arguments)
    return [*words, "python", "-m", program, "--seconds", str(arguments.seconds), *others]


def _knobs_program(arguments: argparse.Namespace) -> list[str]:
    if arguments.parameters is not None or arguments.step_time is not None:
        raise InvalidArgumentError("tune: --parameters and --step-time go with --link: add it, or leave them out")
    words = ["hvdlite.autotune", *([f"--output={arguments.output}"] if arguments.output else [])]
    return [*words, *(["--any-bits"] if arguments.any_bits else [])]


def _link_program(arguments: argparse.Namespace) -> list[str]:
    if arguments.parameters is None or arguments.step_time is None:
        raise InvalidArgumentError(
            "tune --link: give the size of the model and the time of a step without communication, as in "
            "--parameters 11.2M --step-time 30ms"
        )
    if arguments.output or arguments.any_bits:
        raise InvalidArgumentError("tune --link: it writes no file and changes no knob: leave --output and --any-bits out")
    return ["hvdlite.link_tuning", "--parameters", str(arguments.parameters), "--step-time", str(arguments.step_time)]


def run(arguments: argparse.Namespace, main: Callable[[Sequence[str]], int]) -> int:
    """Starts the ranks; main: of the whole command line."""
    return main(command(arguments))
