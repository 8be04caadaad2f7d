"""``hvdlite tune``: measures, on ranks that it starts as ``hvdlite run`` does, which knobs suit this machine."""

import argparse
from collections.abc import Callable, Sequence

__all__ = ["EPILOG", "add_flags", "command", "run"]

EPILOG = """\
Two settings are always measured in turn, in one job. A setting is taken only if that shows more than noise, and only if the
winner beats the defaults once more at the end; otherwise the defaults stay. Run it on a machine that does nothing else, with
the ranks and hosts of the jobs that are to use it:

  hvdlite tune -n 4
  HVDLITE_TUNING_FILE=auto hvdlite run -n 4 python train.py

docs/tuning.md says more.
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


def _dest(names: Sequence[str]) -> str:
    return names[-1].lstrip("-").replace("-", "_")


def command(arguments: argparse.Namespace) -> list[str]:
    """The words of the command line that starts the ranks."""
    words = ["run", "--no-tag-output"]
    for names, _, _ in _STARTING:
        value = getattr(arguments, _dest(names))
        words += [f"{names[-1]}={value}"] if value is not None else []  # it may begin with a dash
    for names, _ in _SWITCHES:
        words += [names[-1]] if getattr(arguments, _dest(names)) else []
    words += ["python", "-m", "hvdlite.autotune", "--seconds", str(arguments.seconds)]
    words += [f"--output={arguments.output}"] if arguments.output else []
    return [*words, *(["--any-bits"] if arguments.any_bits else [])]


def run(arguments: argparse.Namespace, main: Callable[[Sequence[str]], int]) -> int:
    """Starts the ranks; main: of the whole command line."""
    return main(command(arguments))
