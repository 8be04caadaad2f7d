"""``hvdlite tune``: starts ranks as ``hvdlite run`` does, and measures on them which values of knobs suit this machine."""

import argparse
from collections.abc import Callable, Sequence

__all__ = ["EPILOG", "add_flags", "command", "run"]

EPILOG = """\
hvdlite tune compares two settings at a time: it measures them alternately, in one job. It takes a setting only if the
difference is larger than the noise, and if the setting is faster than the defaults in a final comparison; otherwise the
defaults stay. Run it on a machine that does nothing else, with the same ranks and hosts as the jobs that will use the result:

  hvdlite tune -n 4
  HVDLITE_TUNING_FILE=auto hvdlite run -n 4 python train.py

docs/tuning.md explains the search.
"""

# The flags of `hvdlite run` that say how ranks are started, each with its metavar and help.
_STARTING = (
    (("-n", "--num-proc"), "N", "the number of ranks [the number of slots of the hosts]"),
    (("-H", "--hosts"), "HOSTS", "the hosts: host:ranks,host:ranks [this host, or the allocation]"),
    (("--hostfile",), "FILE", "a file that names the hosts"),
    (("--launcher",), "NAME", "auto, mpirun or srun [auto]"),
    (("--mpirun",), "PATH", "the mpirun to start [that of the MPI that mpi4py loads]"),
    (("--mpi-args",), "WORDS", "further arguments for mpirun or srun, in quotes"),
    (("--bind",), "HOW", "auto or none, the same as for the jobs that will use the result [auto]"),
    (("-p", "--ssh-port"), "PORT", "the port that ssh uses"),
    (("-i", "--ssh-identity-file"), "FILE", "the file with the key that ssh uses"),
    (("--network-interfaces",), "NAMES", "the network interfaces to use"),
)
_SWITCHES = (
    (("--oversubscribe",), "allows more ranks than the hosts have slots"),
    (("--dry-run",), "prints the command line and starts nothing"),
    (("--verbose",), "prints the chosen launcher, the reason, and the command line"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``hvdlite tune``."""
    parser.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="the approximate duration [60]")
    parser.add_argument(
        "--output", metavar="FILE", help="the file for the result, on the host of rank 0 [a file in the cache folder]"
    )
    parser.add_argument(
        "--any-bits", action="store_true", help="also tries settings that may change the last bits of sums [without them]"
    )
    group = parser.add_argument_group("starting ranks", "these flags mean the same as for `hvdlite run`")
    for names, metavar, text in _STARTING:
        group.add_argument(*names, metavar=metavar, dest=_dest(names), help=text)
    for names, text in _SWITCHES:
        group.add_argument(*names, action="store_true", dest=_dest(names), help=text)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def _dest(names: Sequence[str]) -> str:
    return names[-1].lstrip("-").replace("-", "_")


def command(arguments: argparse.Namespace) -> list[str]:
    """The arguments of ``hvdlite`` that start the ranks."""
    words = ["run", "--no-tag-output"]
    for names, _, _ in _STARTING:
        value = getattr(arguments, _dest(names))
        words += [f"{names[-1]}={value}"] if value is not None else []  # "=", because the value may begin with a dash
    for names, _ in _SWITCHES:
        words += [names[-1]] if getattr(arguments, _dest(names)) else []
    words += ["python", "-m", "hvdlite.autotune", "--seconds", str(arguments.seconds)]
    words += [f"--output={arguments.output}"] if arguments.output else []
    return [*words, *(["--any-bits"] if arguments.any_bits else [])]


def run(arguments: argparse.Namespace, main: Callable[[Sequence[str]], int]) -> int:
    """Starts the ranks, and returns the exit status.

    Args:
        arguments: the parsed arguments of ``hvdlite tune``.
        main: the function that runs a command line of ``hvdlite``.
    """
    return main(command(arguments))
