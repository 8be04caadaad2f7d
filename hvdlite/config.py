"""Every knob of hvdlite in one typed table, and the only place that reads the environment.

A knob is set by ``HVDLITE_<NAME>``; where Horovod has the same knob its variable is accepted too (``HVDLITE_*`` wins).
A bad value raises when hvdlite is initialised. ``python -m hvdlite.config`` prints docs/knobs.md. Over 400 lines
because the table stays in one piece.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdlite.errors import InvalidArgumentError

__all__ = [
    "KNOBS",
    "MEANINGLESS",
    "Config",
    "Knob",
    "LauncherClaim",
    "disagreements",
    "format_ranks",
    "from_environment",
    "launcher_claim",
    "to_markdown",
    "to_native",
]

Value = int | float | bool | str

_SIZE_SUFFIXES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "off")


@dataclass(frozen=True)
class Knob:
    """One row of the table.

    Attributes:
        name: the Python name; the variable is ``HVDLITE_`` and this in capitals.
        kind: ``bytes``, ``int``, ``float``, ``bool`` or ``choice``.
        default: the value without any variable.
        doc: one sentence.
        unit: of a number; empty for counts.
        low: smallest value allowed, or None.
        choices: what a ``choice`` may be.
        horovod: Horovod's variable for the same thing, or None.
        from_horovod: reads that variable's spelling, where it differs.
        must_agree: must all ranks have one value?
        native: does the engine read it?
    """

    name: str
    kind: str
    default: Value
    doc: str
    unit: str = ""
    low: float | None = None
    choices: tuple[str, ...] = ()
    horovod: str | None = None
    from_horovod: Callable[[str], Value] | None = None
    must_agree: bool = True
    native: bool = True

    @property
    def variable(self) -> str:
        """The environment variable, such as ``HVDLITE_FUSION_THRESHOLD``."""
        return f"HVDLITE_{self.name.upper()}"

    @property
    def accepted(self) -> str:
        """What a value may be, in words."""
        bound = "" if self.low is None else f" of at least {_number(self.low)}"
        unit = f" {self.unit}" if self.unit else ""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "bool":
            return "0 or 1 (also false/true, no/yes, off/on)"
        if self.kind == "bytes":
            return f"a whole number of bytes{bound}, also with the suffix KiB, MiB or GiB"
        return f"a {'whole ' if self.kind == 'int' else ''}number{unit and ' of' + unit}{bound}"

    def parse(self, text: str) -> Value:
        """The value a text stands for.

        Raises:
            ValueError: the text is not of the accepted form (the caller says which variable held it).
        """
        value = _PARSERS[self.kind](text.strip())
        if self.kind == "choice" and value not in self.choices:
            raise ValueError(text)
        if self.low is not None and not self.low <= float(value) < math.inf:
            raise ValueError(text)
        return value


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _parse_bytes(text: str) -> int:
    digits = text.rstrip("BbGgIiKkMm ")
    suffix = text[len(digits) :].strip().lower()
    if suffix not in _SIZE_SUFFIXES:
        raise ValueError(text)
    return int(digits) * _SIZE_SUFFIXES[suffix]


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE + _FALSE:
        raise ValueError(text)
    return lowered in _TRUE


_PARSERS: Mapping[str, Callable[[str], Value]] = {
    "bytes": _parse_bytes,
    "int": int,
    "float": float,
    "bool": _parse_bool,
    "choice": str.lower,
}


def _horovod_bool(text: str) -> bool:
    return int(text) > 0


def _horovod_log_level(text: str) -> str:
    lowered = text.strip().lower()
    level = "error" if lowered == "fatal" else lowered
    if level not in _LOG_LEVELS:
        raise ValueError(text)
    return level


def _algorithm(collective: str, names: str) -> Knob:
    return Knob(
        f"{collective}_algorithm",
        "choice",
        "auto",
        f"Forces one algorithm for every {collective}; auto lets the size decide.",
        choices=("auto", *names.split()),
    )


KNOBS: tuple[Knob, ...] = (
    Knob(
        "fusion_threshold",
        "bytes",
        64 << 20,
        "The most bytes of small tensors that are reduced together as one fused operation; 0 fuses nothing.",
        low=0,
        horovod="HOROVOD_FUSION_THRESHOLD",
    ),
    Knob(
        "cycle_time",
        "float",
        0.2,
        "The longest extra time the engine spends gathering more tensors before it sends a batch.",
        unit="milliseconds",
        low=0,
        horovod="HOROVOD_CYCLE_TIME",
        must_agree=False,
    ),
    Knob(
        "cache_capacity",
        "int",
        1024,
        "How many agreed responses each process set remembers, so that known tensors need one bit; 0 remembers none.",
        low=0,
        horovod="HOROVOD_CACHE_CAPACITY",
    ),
    Knob("segment_bytes", "bytes", 256 << 10, "The pipelined piece that a collective on large data sends at once.", low=1),
    Knob(
        "recursive_doubling_max_bytes",
        "bytes",
        16 << 10,
        "Up to here auto minds latency (recursive doubling; reducescatter: direct), above it bandwidth (ring).",
        low=0,
    ),
    Knob(
        "message_split_bytes",
        "bytes",
        1 << 30,
        "The largest single MPI message; longer ones are sent in pieces (MPI counts are 32-bit).",
        low=1,
    ),
    Knob(
        "remote_message_bytes",
        "bytes",
        32 << 10,
        "The same between hosts: MPI sends messages up to some size (over TCP Open MPI's limit is 64 KiB) without asking the "
        "receiver first, which would take two more latencies.",
        low=1,
    ),
    Knob(
        "spin_us",
        "float",
        -1.0,
        "How long a wait spins before it sleeps; -1 decides from the cores the ranks of this host may use.",
        unit="microseconds",
        low=-1,
        must_agree=False,
    ),
    Knob(
        "deadlock_timeout",
        "float",
        1.0,
        "How long all ranks may wait for each other's different tensors before they all fail; 0 never checks.",
        unit="seconds",
        low=0,
    ),
    Knob(
        "failure_linger",
        "float",
        1.5,
        "The longest time a failing rank stays alive until its peers know the cause.",
        unit="seconds",
        low=0,
    ),
    Knob(
        "flight_recorder_size",
        "int",
        64,
        "How many past operations each rank remembers for the report after a failure.",
        low=0,
        must_agree=False,
    ),
    Knob(
        "output_cache_bytes",
        "bytes",
        256 << 20,
        "How much memory of results that nobody uses any more is kept for later ones; 0 keeps none.",
        low=0,
        must_agree=False,
    ),
    Knob(
        "deterministic",
        "bool",
        False,
        "Uses only algorithms whose bits do not depend on how tensors were fused, so runs repeat exactly.",
    ),
    Knob(
        "dynamic_process_sets",
        "bool",
        False,
        "Allows add_process_set and remove_process_set after initialisation.",
        horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
        from_horovod=_horovod_bool,
        native=False,
    ),
    Knob(
        "log_level",
        "choice",
        "warning",
        "The least severe log line that is written.",
        choices=_LOG_LEVELS,
        horovod="HOROVOD_LOG_LEVEL",
        from_horovod=_horovod_log_level,
        must_agree=False,
    ),
    Knob(
        "log_timestamps",
        "bool",
        True,
        "Starts each log line with date and time.",
        horovod="HOROVOD_LOG_HIDE_TIME",
        from_horovod=lambda text: not _horovod_bool(text),
        must_agree=False,
    ),
    Knob(
        "shared_memory",
        "choice",
        "auto",
        "Where ranks of one host exchange tensors, wake and watch each other: auto tries a memfd, then /dev/shm, "
        "then does without; off takes MPI's messages for all.",
        choices=("auto", "memfd", "shm", "off"),
    ),
    Knob(
        "kernel_isa",
        "choice",
        "auto",
        "Forces the instruction set of the reduction kernels (all give the same bits); auto takes the widest.",
        choices=("auto", "scalar", "avx2", "avx512"),
        must_agree=False,
    ),
    _algorithm("allreduce", "ring direct recursive_doubling shm hierarchical"),
    _algorithm("reducescatter", "ring direct shm"),
    _algorithm("allgatherv", "ring shm"),
    _algorithm("broadcast", "binomial chain shm"),
    _algorithm("alltoallv", "pairwise shm"),
    _algorithm("barrier", "dissemination shm"),
    Knob(
        "bucket_bytes",
        "bytes",
        25 << 20,
        "The size of a fused gradient bucket of torch's DistributedOptimizer.",
        low=1,
        native=False,
    ),
    Knob(
        "first_bucket_bytes",
        "bytes",
        1 << 20,
        "The size of the first gradient bucket, small so that communication starts early in backward.",
        low=1,
        native=False,
    ),
)

_NATIVE_NAMES = {"cycle_time": "cycle_time_ms"}

# Variables of Horovod that are set in real scripts and mean nothing here, with the reason (or what to use).
MEANINGLESS: Mapping[str, str] = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "the algorithm follows from the topology; HVDLITE_ALLREDUCE_ALGORITHM forces one",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "the algorithm follows from the topology",
    "HOROVOD_TORUS_ALLREDUCE": "the algorithm follows from the topology",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "tensors are in host memory",
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL is not used",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is always fused together",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "tensors are in host memory",
    "HOROVOD_ENABLE_XLA_OPS": "there are no XLA operations",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "the transport cuts messages",
    "HOROVOD_AUTOTUNE": "nothing is tuned at run time",
    "HOROVOD_AUTOTUNE_LOG": "nothing is tuned at run time",
    "HOROVOD_TIMELINE": "there is no timeline",
    "HOROVOD_TIMELINE_MARK_CYCLES": "there is no timeline",
    "HOROVOD_STALL_CHECK_DISABLE": "HVDLITE_DEADLOCK_TIMEOUT=0 switches the detection off",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "use HVDLITE_DEADLOCK_TIMEOUT",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "use HVDLITE_DEADLOCK_TIMEOUT",
    "HOROVOD_THREAD_AFFINITY": "the engine thread runs on the cores of its rank; bind ranks with mpirun",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is always asked for MPI_THREAD_MULTIPLE",
    "HOROVOD_CONTROLLER": "MPI is the only controller",
    "HOROVOD_CPU_OPERATIONS": "hvdlite's own algorithms over MPI are the only ones",
    "HOROVOD_CCL_CACHE": "oneCCL is not used",
    "HOROVOD_GLOO_IFACE": "Gloo is not used",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "Gloo is not used",
    "HOROVOD_ELASTIC": "jobs are started by mpirun",
    "HOROVOD_START_TIMEOUT": "jobs are started by mpirun",
}


@dataclass(frozen=True)
class Config:
    """The values of all knobs, by name and as attributes, and what the reader should tell the user.

    Attributes:
        values: knob name to value.
        origins: knob name to the variable that set it, for those that were set.
        notes: lines of level info about variables that have no effect.
        warnings: lines of level warning, about misspelt variables.
    """

    values: Mapping[str, Value]
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def replace(self, **changes: Value) -> "Config":
        """A copy with some knobs changed."""
        return Config({**self.values, **changes}, self.origins, self.notes, self.warnings)


def from_environment(environ: Mapping[str, str] | None = None) -> Config:
    """Reads all knobs.

    Args:
        environ: the variables; by default those of this process.

    Raises:
        InvalidArgumentError: a value is not of the accepted form; names the variable, the value and the form.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for knob in KNOBS:
        values[knob.name] = knob.default
        for variable in (knob.horovod, knob.variable):
            text = environ.get(variable, "").strip() if variable else ""
            if not variable or not text:  # set to nothing is not set
                continue
            parse: Callable[[str], Value] = knob.parse
            accepted = knob.accepted
            if variable == knob.horovod and knob.from_horovod is not None:
                parse = knob.from_horovod
                accepted = "a whole number, above 0 for yes" if knob.kind == "bool" else accepted
            try:
                values[knob.name] = parse(text)
            except ValueError:
                raise InvalidArgumentError(f"{variable}={text!r} cannot be used: {knob.name} is {accepted}") from None
            origins[knob.name] = variable
    return Config(values, origins, _notes(environ), _warnings(environ))


def _notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = [f"{name} ({MEANINGLESS[name]})" for name in sorted(environ) if name in MEANINGLESS]
    return (f"these variables of Horovod have no effect here: {'; '.join(found)}",) if found else ()


def _warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = [knob.variable for knob in KNOBS]
    lines = []
    for name in sorted(environ):
        if name.startswith("HVDLITE_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{name} is no knob of hvdlite" + (f"; did you mean {close[0]}?" if close else ""))
    return tuple(lines)


def to_native(config: Config) -> dict[str, Any]:
    """The knobs of the engine under their names in ``hvdlite_config`` (hvdlite.h)."""
    native: dict[str, Any] = {}
    for knob in KNOBS:
        if knob.native:
            value = config.values[knob.name]
            native[_NATIVE_NAMES.get(knob.name, knob.name)] = (
                _LOG_LEVELS.index(str(value)) if knob.name == "log_level" else value
            )
    return native


def disagreements(configs: Iterable[Mapping[str, Value]]) -> list[str]:
    """Says of each must-agree knob that differs which value which ranks have; configs come in rank order."""
    everyone = list(configs)
    lines = []
    for knob in KNOBS:
        if not knob.must_agree:
            continue
        ranks_of: dict[Value, list[int]] = {}
        for rank, values in enumerate(everyone):
            ranks_of.setdefault(values[knob.name], []).append(rank)
        if len(ranks_of) > 1:
            held = ", ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in ranks_of.items())
            lines.append(f"{knob.name} ({knob.variable}) is {held}")
    return lines


def format_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0, 2``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


@dataclass(frozen=True)
class LauncherClaim:
    """What a launcher's environment says about this job: the variable, its number of processes, the launcher's name."""

    variable: str
    size: int
    launcher: str


# Variable, launcher, and a variable that must be there too. In order of trust: an mpirun inside a Slurm step inherits
# Slurm's variables, which then count hosts, not ranks.
_CLAIMS = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", ""),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun", ""),
    ("PMI_SIZE", "an MPICH-like mpirun (or srun with PMI)", ""),
    ("SLURM_STEP_NUM_TASKS", "Slurm's srun", ""),
    ("HOROVOD_SIZE", "horovodrun without MPI", ""),
    ("WORLD_SIZE", "torchrun", "TORCHELASTIC_RUN_ID"),
)


def launcher_claim(environ: Mapping[str, str] | None = None) -> LauncherClaim | None:
    """How many processes the launcher says it started, or None where no launcher left its mark."""
    environ = os.environ if environ is None else environ
    for variable, launcher, companion in _CLAIMS:
        text = environ.get(variable, "")
        if text.isdigit() and (not companion or companion in environ):
            return LauncherClaim(variable, int(text), launcher)
    return None


def to_markdown() -> str:
    """The page docs/knobs.md."""
    lines = [
        "# Knobs",
        "",
        "Generated by `python -m hvdlite.config`; edit the table in `hvdlite/config.py` instead.",
        "",
        "A knob is an environment variable, read when hvdlite is initialised. Where a Horovod variable is named it is",
        "accepted too; the `HVDLITE_*` one wins. *Agree* says whether all ranks must have the same value; if they do",
        "not, `init()` fails on every rank and says who has which.",
        "",
        "| variable | Horovod's | default | accepted | agree | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for knob in KNOBS:
        default = int(knob.default) if knob.kind == "bool" else knob.default
        lines.append(
            f"| `{knob.variable}` | {f'`{knob.horovod}`' if knob.horovod else ''} | {default} | {knob.accepted} "
            f"| {'yes' if knob.must_agree else 'no'} | {knob.doc} |"
        )
    lines += [
        "",
        "`HOROVOD_LOG_HIDE_TIME=1` is `HVDLITE_LOG_TIMESTAMPS=0`, and Horovod's log level `fatal` is `error`.",
        "",
        "## Variables of Horovod without effect",
        "",
        "hvdlite logs one line of level info that lists those it finds.",
        "",
        "| variable | why |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {reason} |" for name, reason in MEANINGLESS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(to_markdown(), end="")
