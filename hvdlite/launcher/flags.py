"""The flags of ``hvdlite run`` that set knobs: one for each row of the table in `hvdlite.knobs`, and the flags of horovodrun.

A flag of horovodrun stands for one of Horovod's variables, and sets the knob that reads this variable. A flag whose variable no
knob reads has no effect; if such a flag turns a feature on, a warning says why it has no effect. The flags in `REFUSED`, for
features that hvdlite lacks, end the command with an error.
"""

import argparse
from dataclasses import dataclass

from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import KNOBS, MEANINGLESS, Knob


@dataclass(frozen=True)
class CommandFlag:
    """A flag of horovodrun that stands for a variable.

    Attributes:
        names: the names of the flag.
        variable: Horovod's variable.
        value: the value that a flag without an argument sets; None for a flag with an argument.
        scale: the factor from the flag's number to the knob's value.
        asks: does the flag turn a feature on? False if it turns one off.
    """

    names: tuple[str, ...]
    variable: str
    value: str | None = None
    scale: int = 1
    asks: bool = True

    @property
    def dest(self) -> str:
        """The name of the flag's attribute in the parsed arguments."""
        return "horovodrun_" + self.names[0].lstrip("-").replace("-", "_")


def _pair(name: str, variable: str) -> tuple[CommandFlag, CommandFlag]:
    return CommandFlag((f"--{name}",), variable, "1"), CommandFlag((f"--no-{name}",), variable, "0", asks=False)


HOROVODRUN: tuple[CommandFlag, ...] = (
    CommandFlag(("--fusion-threshold-mb",), "HOROVOD_FUSION_THRESHOLD", scale=1 << 20),
    CommandFlag(("--cycle-time-ms",), "HOROVOD_CYCLE_TIME"),
    CommandFlag(("--cache-capacity",), "HOROVOD_CACHE_CAPACITY"),
    CommandFlag(("--disable-cache",), "HOROVOD_CACHE_CAPACITY", "0"),
    *_pair("hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
    *_pair("hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER"),
    *_pair("torus-allreduce", "HOROVOD_TORUS_ALLREDUCE"),
    *_pair("autotune", "HOROVOD_AUTOTUNE"),
    CommandFlag(("--autotune-log-file",), "HOROVOD_AUTOTUNE_LOG"),
    CommandFlag(("--autotune-warmup-samples",), "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"),
    CommandFlag(("--autotune-steps-per-sample",), "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"),
    CommandFlag(("--autotune-bayes-opt-max-samples",), "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"),
    CommandFlag(("--autotune-gaussian-process-noise",), "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"),
    CommandFlag(("--timeline-filename",), "HOROVOD_TIMELINE"),
    *_pair("timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES"),
    CommandFlag(("--no-stall-check",), "HOROVOD_STALL_CHECK_DISABLE", "1", asks=False),
    CommandFlag(("--stall-check",), "HOROVOD_STALL_CHECK_DISABLE", "0"),
    CommandFlag(("--stall-check-warning-time-seconds",), "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    CommandFlag(("--stall-check-shutdown-time-seconds",), "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    *_pair("mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE"),
    CommandFlag(("--num-nccl-streams",), "HOROVOD_NUM_NCCL_STREAMS"),
    CommandFlag(("--thread-affinity",), "HOROVOD_THREAD_AFFINITY"),
    CommandFlag(("--gloo-timeout-seconds",), "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    CommandFlag(("--elastic-timeout",), "HOROVOD_ELASTIC_TIMEOUT"),
    CommandFlag(("--log-level",), "HOROVOD_LOG_LEVEL"),
    CommandFlag(("--log-with-timestamp", "--no-log-hide-timestamp"), "HOROVOD_LOG_HIDE_TIME", "0"),
    CommandFlag(("--log-without-timestamp", "--log-hide-timestamp"), "HOROVOD_LOG_HIDE_TIME", "1"),
)

_FIXED = (
    "no hosts are added to a running job; --elastic lets it continue without lost ranks, and --spares replaces lost ranks "
    "(docs/elastic.md)"
)

# Flags of horovodrun that are refused, with the number of their arguments and the reason.
REFUSED: dict[tuple[str, ...], tuple[int, str]] = {
    ("--max-np", "--max-num-proc"): (1, _FIXED),
    ("--slots-per-host",): (1, _FIXED),
    ("--blacklist-cooldown-range",): (2, _FIXED),
    ("--host-discovery-script",): (1, _FIXED),
    ("--gloo",): (0, "hvdlite runs over MPI only; leave the flag out"),
    ("--jsrun",): (0, "hvdlite does not support LSF's jsrun; in an allocation of LSF, use the mpirun of your MPI"),
    ("--config-file",): (
        1,
        "hvdlite reads no YAML; give each setting as a flag (hvdlite run --help) or as a variable (docs/knobs.md)",
    ),
}


class _RefuseFlag(argparse.Action):
    """Refuses a flag, and prints the reason, which is the action's `const`."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        parser.error(f"{rest[-1]} is not offered: {self.const}")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds all flags of this module to the parser of ``hvdlite run``."""
    group = parser.add_argument_group(
        "knobs", "each flag sets its variable HVDLITE_... on all ranks; docs/knobs.md describes the variables"
    )
    # If horovodrun has a flag without a value under a knob's name (--autotune), hvdlite run has the same flag, and none with a
    # value for this knob.
    switches = {name for flag in HOROVODRUN if flag.value is not None for name in flag.names}
    taken = {name: knob for knob in KNOBS if (name := f"--{knob.name.replace('_', '-')}") not in switches}
    for name, knob in taken.items():
        text = knob.doc.replace("%", "%%")
        group.add_argument(name, dest=f"knob_{knob.name}", metavar=_metavar(knob), help=f"{text} [{_default(knob)}]")
    group = parser.add_argument_group("flags of horovodrun", "these flags have the same names and meanings in horovodrun")
    for flag in HOROVODRUN:
        names = [name for name in flag.names if name not in taken]
        if names:
            setting = {"action": "store_const", "const": flag.value} if flag.value is not None else {"metavar": "VALUE"}
            group.add_argument(*names, dest=flag.dest, help=_help(flag), **setting)  # type: ignore[arg-type]
    for names_, (count, reason) in REFUSED.items():
        group.add_argument(*names_, action=_RefuseFlag, const=reason, nargs=count, help=argparse.SUPPRESS)


def _metavar(knob: Knob) -> str:
    words = {"bytes": "BYTES", "int": "N", "float": "X", "bool": "0|1", "str": "TEXT"}
    return "|".join(knob.choices) if knob.kind == "choice" and len(knob.choices) <= 4 else words.get(knob.kind, "NAME")


def _default(knob: Knob) -> str:
    return str(int(knob.default) if knob.kind == "bool" else knob.default) or "empty"


def _knob(variable: str) -> Knob | None:
    return next((knob for knob in KNOBS if knob.horovod == variable), None)


def _help(flag: CommandFlag) -> str:
    knob = _knob(flag.variable)
    if knob is None:
        return f"no effect: {MEANINGLESS[flag.variable]}" if flag.asks else "no effect: hvdlite always works like this"
    unit = ", in MiB" if flag.scale == 1 << 20 else ""
    return f"sets {knob.variable}{unit if flag.value is None else f' to {_own_spelling(knob, flag, flag.value)}'}"


def settings(arguments: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """The values of the variables that the flags set, and warnings about flags that have no effect.

    Raises:
        InvalidArgumentError: a knob does not accept the value of a flag.
    """
    variables: dict[str, str] = {}
    warnings = []
    for flag in HOROVODRUN:
        given = getattr(arguments, flag.dest, None)
        if given is None:
            continue
        knob = _knob(flag.variable)
        if knob is not None:
            variables[knob.variable] = _own_spelling(knob, flag, given)
        elif flag.asks and str(given) != "0":
            warnings.append(f"{flag.names[0]} has no effect: {MEANINGLESS[flag.variable]}")
    for knob in KNOBS:
        given = getattr(arguments, f"knob_{knob.name}", None)
        if given is not None:
            variables[knob.variable] = given
    _check(variables)
    return variables, warnings


def _own_spelling(knob: Knob, flag: CommandFlag, given: str) -> str:
    """The value of the knob's variable for a value that the user gave to horovodrun's flag."""
    try:
        if flag.scale != 1:
            return str(round(float(given) * flag.scale))
        value = given if knob.from_horovod is None else knob.from_horovod(given)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"{flag.names[0]} {given}: {knob.name} is {knob.accepted}") from None
    return str(int(value)) if isinstance(value, bool) else str(value)


def _check(variables: dict[str, str]) -> None:
    """Raises InvalidArgumentError for a value that init() would refuse on every rank. Replaces Horovod's names of choices in
    `variables` by hvdlite's.
    """
    for knob in KNOBS:
        text = variables.get(knob.variable)
        if text is None:
            continue
        try:
            knob.parse(text)
        except ValueError:
            if knob.from_horovod is not None and knob.kind == "choice":
                try:
                    variables[knob.variable] = str(knob.from_horovod(text))
                    continue
                except ValueError:
                    pass
            flag = f"--{knob.name.replace('_', '-')}"
            raise InvalidArgumentError(f"{flag} {text}: {knob.name} is {knob.accepted}") from None
