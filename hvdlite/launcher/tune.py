"""``hvdlite tune``: starts ranks as ``hvdlite run`` does, and measures on them which values of knobs suit this machine.

With ``--link`` it measures which compression suits the link between hosts.
"""

import argparse
import re
from collections.abc import Callable, Sequence

from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher import plan

EPILOG = """\
hvdlite tune compares two settings at a time: it measures both alternately, in one job. It takes a setting only if the
setting's gain is larger than the noise, and if the setting is faster than the defaults in a final comparison; otherwise the
defaults stay. Run the command on a machine that does nothing else, with the same ranks, hosts and --bind as the jobs that
will use the result:

  hvdlite tune -n 4
  HVDLITE_TUNING_FILE=auto hvdlite run -n 4 python train.py

docs/tuning.md explains the search. With --link the command measures the link between hosts instead. It takes the number of
parameters of a model, and the time of a training step on one rank. It predicts and measures the time of a training step with
each compression, and names the compression that pays:

  hvdlite tune --link -H node1:1,node2:1 --parameters 11.2M --step-time 30ms

docs/slow_links.md explains the figures.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``hvdlite tune``."""
    parser.add_argument("--seconds", type=plan.seconds, default=60.0, metavar="S", help="the approximate duration [60]")
    parser.add_argument(
        "--output", metavar="FILE", help="the file for the result, on the host of rank 0 [a file in the cache folder]"
    )
    parser.add_argument(
        "--any-bits", action="store_true", help="also tries settings that may change the last bits of sums [without them]"
    )
    link = parser.add_argument_group("the link between hosts")
    link.add_argument("--link", action="store_true", help="measures the link, and a training step with each compression")
    link.add_argument("--parameters", type=_count, metavar="N", help="the number of the model's parameters, such as 11.2M")
    link.add_argument(
        "--step-time", type=_duration, metavar="T", help="the time of a training step without communication, as 30ms or 0.5s"
    )
    group = parser.add_argument_group("starting ranks", "these flags mean the same as for `hvdlite run`")
    plan.add_job_flags(group)


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGB]?)", text)
    number = round(float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}[found[2].upper()]) if found else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters: write it as 11200000, 11200K or 11.2M")
    return number


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write it with its unit, as 30ms or 0.5s")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def command(arguments: argparse.Namespace) -> list[str]:
    """The arguments of ``hvdlite`` that start the ranks.

    Raises:
        InvalidArgumentError: a flag that another flag needs is missing, or two flags exclude each other.
    """
    program, *others = _link_program(arguments) if arguments.link else _knobs_program(arguments)
    start = ["run", "--no-tag-output", *plan.job_words(arguments)]
    return [*start, "python", "-m", program, "--seconds", str(arguments.seconds), *others]


def _knobs_program(arguments: argparse.Namespace) -> list[str]:
    if arguments.parameters is not None or arguments.step_time is not None:
        raise InvalidArgumentError("tune: --parameters and --step-time need --link: add --link, or leave them out")
    words = ["hvdlite.autotune", *([f"--output={arguments.output}"] if arguments.output else [])]
    return [*words, *(["--any-bits"] if arguments.any_bits else [])]


def _link_program(arguments: argparse.Namespace) -> list[str]:
    if arguments.parameters is None or arguments.step_time is None:
        raise InvalidArgumentError(
            "tune --link: give the size of the model and the time of a step without communication, as in "
            "--parameters 11.2M --step-time 30ms"
        )
    if arguments.output or arguments.any_bits:
        raise InvalidArgumentError("tune --link writes no file and changes no knob: leave out --output and --any-bits")
    return ["hvdlite.link_tuning", "--parameters", str(arguments.parameters), "--step-time", str(arguments.step_time)]


def run(arguments: argparse.Namespace, main: Callable[[Sequence[str]], int]) -> int:
    """Starts the ranks, and returns the exit status.

    Args:
        arguments: the parsed arguments of ``hvdlite tune``.
        main: the function that runs a command line of ``hvdlite``.
    """
    return main(command(arguments))
