"""Every knob of hvdlite in one typed table, and the only place that reads the environment.

A knob is set by ``HVDLITE_<NAME>``; where Horovod has the same knob its variable is accepted too (``HVDLITE_*`` wins).
A bad value raises when hvdlite is initialised. ``python -m hvdlite.config`` prints docs/knobs.md. Over 400 lines
because the table stays in one piece.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from hvdlite.errors import InvalidArgumentError

__all__ = [
    "KNOBS",
    "MEANINGLESS",
    "Config",
    "Knob",
    "LauncherClaim",
    "cache_folder",
    "child_environment",
    "cuda_toolkits",
    "disagreements",
    "environment",
    "format_ranks",
    "from_environment",
    "is_first_process",
    "lacks_torch_variables",
    "launcher_claim",
    "oneccl_folders",
    "outside_of_jobs",
    "rank_by_launcher",
    "set_unless_set",
    "to_markdown",
    "to_native",
    "uses_legacy_keras",
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
        kind: ``bytes``, ``int``, ``float``, ``bool``, ``str`` or ``choice``.
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
        if self.kind == "str":
            return "text"
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
    "str": str,
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
    sized = ", and by the size where they send messages" if collective in ("allreduce", "reducescatter", "broadcast") else ""
    return Knob(
        f"{collective}_algorithm",
        "choice",
        "auto",
        f"Forces one algorithm for every {collective}; auto goes by where the ranks are{sized}.",
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
        "tile_bytes",
        "bytes",
        512 << 10,
        "The most that passes at once through a rank's part of shared memory; less where many ranks share a host, whose parts "
        "together take 32 MiB.",
        low=16 << 10,
    ),
    Knob(
        "streaming_bytes",
        "bytes",
        64 << 20,
        "From so many bytes on, on all ranks together, what an operation among ranks of one host returns (unless it was "
        "reduced in place), and gradients that move into their arena, are written past the caches; 0: never.",
        low=0,
        must_agree=False,
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
        "The largest single MPI message between hosts: MPI sends messages up to some size (over TCP Open MPI's limit is 64 "
        "KiB) without asking the receiver first, which would take two more latencies.",
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
        "stall_check_time_seconds",
        "float",
        60.0,
        "How long a rank waits for an operation before one log line names the ranks that are missing, and where each of them "
        "is; 0 never warns.",
        unit="seconds",
        low=0,
        horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
        must_agree=False,
    ),
    Knob(
        "stall_shutdown_time_seconds",
        "float",
        1800.0,
        "How long a rank waits for an operation before all ranks give up with an error; 0 waits for ever. stall_limit() makes "
        "them wait longer for one rank.",
        unit="seconds",
        low=0,
        horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        must_agree=False,
    ),
    Knob(
        "stall_check_disable",
        "bool",
        False,
        "Switches the stall check off: no rank is warned of, and none is given up.",
        horovod="HOROVOD_STALL_CHECK_DISABLE",
        from_horovod=_horovod_bool,
        must_agree=False,
        native=False,
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
        "peer_timeout",
        "float",
        10.0,
        "How long a host of the job may be silent before it counts as lost, and the job as failed; 0 never checks.",
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
        "flight_recorder_folder",
        "str",
        "",
        "The folder of the file in which a rank lists them after a failure, where they are more than it prints. Empty: the "
        "folder for temporary files. off: no file.",
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
        "shared_outputs",
        "bool",
        True,
        "Results of allreduces from 1 MiB up to where HVDLITE_STREAMING_BYTES begins lie in memory that all ranks of the host "
        "map, so that each stores what it has reduced straight into the others'.",
    ),
    Knob(
        "gpu_route",
        "choice",
        "auto",
        "How tensors in GPU memory get from rank to rank: auto takes NCCL where every rank of the process set has it and a "
        "GPU of its own, and otherwise goes through host memory (staged).",
        choices=("auto", "nccl", "staged"),
    ),
    Knob(
        "gpu_cache_bytes",
        "bytes",
        1 << 30,
        "How much memory of the engine's buffers on a GPU is kept for later ones, for each GPU; 0 keeps none.",
        low=0,
        must_agree=False,
    ),
    Knob(
        "nccl_float32_sums",
        "bool",
        False,
        "Sends float16 and bfloat16 as float32 through NCCL, which otherwise rounds each partial sum to 16 bits.",
    ),
    Knob(
        "tensorflow_gpu_streams",
        "bool",
        False,
        "Reduces TensorFlow's tensors on GPUs where they are, in the order of TensorFlow's own stream, if a test shows that it "
        "can be found; otherwise, and without this knob, they go through host memory.",
        native=False,
    ),
    Knob(
        "check_finite",
        "bool",
        False,
        "Looks for infinities and NaNs in the results of allreduces on GPUs, and names their tensors in the log.",
        must_agree=False,
    ),
    Knob(
        "cuda_library",
        "str",
        "libcuda.so.1",
        "Where the CUDA driver is looked for: names or paths, separated by colons.",
        must_agree=False,
    ),
    Knob(
        "nccl_library",
        "str",
        "",
        "Where NCCL is looked for, as cuda_library; a + in front: only if the process has loaded it already. Empty: in the "
        "process, in NVIDIA's wheel, on the system.",
        must_agree=False,
    ),
    Knob(
        "nvrtc_library",
        "str",
        "",
        "Where NVIDIA's run-time compiler is looked for, as nccl_library; empty: also in a CUDA toolkit.",
        must_agree=False,
    ),
    Knob(
        "kernel_cache",
        "str",
        "auto",
        "The folder in which kernels compiled for a GPU are kept; auto: hvdlite in the user's cache folder; off keeps none.",
        must_agree=False,
    ),
    Knob(
        "start_check",
        "choice",
        "auto",
        "What an optimizer does where the ranks' parameters differ after its first update, as they do if nobody has broadcast "
        "them. error: raise MismatchError; warn: log a warning; broadcast: log one, and give all ranks the first rank's; off: "
        "do not compare them; auto: error, or warn where horovod_rules is on.",
        choices=("auto", "error", "broadcast", "warn", "off"),
        native=False,
    ),
    Knob(
        "tuning_file",
        "str",
        "",
        "What `hvdlite tune` has found: knobs that no variable sets take the values in this file, which rank 0 reads, where it "
        "was made for this machine and shape of job. auto: the file for them in the user's cache folder. Empty: none.",
        native=False,
    ),
    Knob(
        "autotune",
        "bool",
        False,
        "Where there is no tuning for this machine and job, init() measures one first, keeps it in the file of tuning_file "
        "(auto, if none is named), and takes it.",
        horovod="HOROVOD_AUTOTUNE",
        from_horovod=_horovod_bool,
        native=False,
    ),
    Knob(
        "autotune_seconds",
        "float",
        30.0,
        "About how long init() measures if HVDLITE_AUTOTUNE is set.",
        unit="seconds",
        low=1,
        native=False,
    ),
    Knob(
        "autotune_warmup_samples",
        "int",
        2,
        "How many samples of each setting are thrown away before a comparison.",
        low=0,
        horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        native=False,
    ),
    Knob(
        "autotune_log",
        "str",
        "",
        "The file into which rank 0 writes a line of CSV for each comparison that it has measured.",
        horovod="HOROVOD_AUTOTUNE_LOG",
        native=False,
    ),
    Knob(
        "timeline",
        "str",
        "",
        "The file into which a rank traces its operations, for Chrome's and Perfetto's viewers; where several ranks are given "
        "the same, rank 3 takes the name with .rank3 before its ending. Empty traces nothing until start_timeline().",
        horovod="HOROVOD_TIMELINE",
        from_horovod=lambda text: "" if text == "DYNAMIC" else text,
        must_agree=False,
        native=False,
    ),
    Knob(
        "timeline_mark_cycles",
        "bool",
        False,
        "Marks in the timeline whenever the rank announces operations.",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES",
        from_horovod=_horovod_bool,
        must_agree=False,
        native=False,
    ),
    Knob(
        "timeline_max_bytes",
        "bytes",
        64 << 20,
        "The most that one rank's timeline takes on the disk; beyond it the oldest half is dropped.",
        low=4096,
        must_agree=False,
        native=False,
    ),
    Knob(
        "metrics_file",
        "str",
        "",
        "The file into which each rank writes hvdlite.stats() for Prometheus's node_exporter; {rank} stands for the rank, and "
        "without it rank 3 takes the name with .rank3 before its ending. Empty writes none.",
        must_agree=False,
        native=False,
    ),
    Knob(
        "metrics_interval",
        "float",
        15.0,
        "The time from one writing of metrics_file to the next.",
        unit="seconds",
        low=0.1,
        must_agree=False,
        native=False,
    ),
    Knob(
        "deterministic",
        "bool",
        False,
        "Uses only algorithms whose bits do not depend on how tensors were fused, so sums in host memory repeat exactly from "
        "run to run. It does not reach NCCL.",
    ),
    Knob(
        "dynamic_process_sets",
        "bool",
        False,
        "Allows add_process_set and remove_process_set after initialisation where horovod_rules forbids them.",
        horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
        from_horovod=_horovod_bool,
        native=False,
    ),
    Knob(
        "horovod_rules",
        "bool",
        False,
        "Refuses what Horovod refuses though hvdlite can do it: to add or remove process sets after initialisation without "
        "dynamic_process_sets, to make a second set of the same ranks, and to run anything but allreduce while ranks have "
        "joined; and warns of a step() after synchronize() outside of skip_synchronize(). 1 where programs import horovod "
        "(docs/shim.md), so that they meet the errors they know.",
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
        "tile_stores",
        "choice",
        "auto",
        "How ranks of one host write to the memory that they share: with ordinary stores, which leave data in the writer's "
        "cache, or streaming ones, which are faster between cores that share none; auto tries both now and then.",
        choices=("auto", "ordinary", "streaming"),
        must_agree=False,
    ),
    Knob(
        "kernel_isa",
        "choice",
        "auto",
        "Forces the instruction set of the reduction kernels (all give the same bits); auto takes the widest.",
        choices=("auto", "scalar", "avx2", "avx512"),
        must_agree=False,
    ),
    _algorithm("allreduce", "ring direct recursive_doubling shm inline hierarchical"),
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

_NATIVE_NAMES = {"cycle_time": "cycle_time_ms", "horovod_rules": "join_refuses_others"}

# What the module horovod, which programs of Horovod import, has taken for defaults in this process.
_PREFERRED: dict[str, Value] = {}


def prefer(**defaults: Value) -> None:
    """Gives knobs other defaults in this process; variables still count."""
    _PREFERRED.update(defaults)


_BY_TOPOLOGY = "the algorithm follows from the topology"
_NO_MODEL = "settings are compared with each other, no model of their cost is made"
_NO_GLOO = "Gloo is not used"
_BY_MPIRUN = "jobs are started by mpirun, and their ranks stay the same"
_NO_SPARK = "there are no Spark estimators; start the job with mpirun"

# Variables of Horovod that mean nothing here, with the reason (or what to use).
MEANINGLESS: Mapping[str, str] = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": f"{_BY_TOPOLOGY}; HVDLITE_ALLREDUCE_ALGORITHM forces one",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "allgather exchanges messages between all ranks of several hosts",
    "HOROVOD_TORUS_ALLREDUCE": _BY_TOPOLOGY,
    "HOROVOD_BATCH_D2D_MEMCOPIES": "the tensors of a fused operation on GPUs are always packed in one launch",
    "HOROVOD_NUM_NCCL_STREAMS": "each process set has one stream for NCCL, in which that takes as much of the GPU as it likes",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is fused with nothing else, in pieces of at most HVDLITE_FUSION_THRESHOLD",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "an operation on GPUs is over once it is in a stream, and nobody waits for the GPU",
    "HOROVOD_ENABLE_XLA_OPS": "allreduce works under XLA without it",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "HVDLITE_MESSAGE_SPLIT_BYTES bounds the messages of all operations",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "nothing is measured while a job trains",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _NO_MODEL,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _NO_MODEL,
    "HOROVOD_DISABLE_NVTX_RANGES": "there are no NVTX ranges",
    "HOROVOD_THREAD_AFFINITY": "the engine thread runs on the cores of its rank; bind ranks with mpirun",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is always asked for MPI_THREAD_MULTIPLE",
    "HOROVOD_CONTROLLER": "MPI is the only controller",
    "HOROVOD_CPU_OPERATIONS": "hvdlite's own algorithms over MPI are the only ones",
    "HOROVOD_CCL_CACHE": "oneCCL is not used",
    "HOROVOD_GLOO_IFACE": _NO_GLOO,
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": _NO_GLOO,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": _NO_GLOO,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": _NO_GLOO,
    "HOROVOD_ELASTIC": _BY_MPIRUN,
    "HOROVOD_ELASTIC_TIMEOUT": _BY_MPIRUN,
    "HOROVOD_START_TIMEOUT": _BY_MPIRUN,
    "HOROVOD_SPARK_PYTHONPATH": _NO_SPARK,
    "HOROVOD_SPARK_START_TIMEOUT": _NO_SPARK,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": _NO_SPARK,
    "HOROVOD_SPARK_WORK_DIR": _NO_SPARK,
}

# Values of these that ask for what hvdlite does anyway. Of all others that is 0.
_AS_IT_IS: Mapping[str, str] = {
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}

# Patterns of variables that ask for nothing: a launcher says by them who is who (here MPI does), or they were meant for the
# build of Horovod and are still set in its images.
NOT_ASKING = tuple(
    f"HOROVOD_{name}"
    for name in (
        *("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "SECRET_KEY"),
        *("WITH_*", "WITHOUT_*", "GPU", "GPU_*", "ALLOW_MIXED_GPU_IMPL", "CUDA_HOME", "NCCL_*", "ROCM_HOME", "BUILD_*"),
        *("CMAKE", "SKIP_COMPILE", "DEBUG", "NVTX_INCLUDE", "VERSION"),
    )
)


@dataclass(frozen=True)
class Config:
    """The values of all knobs, by name and as attributes, and what the reader should tell the user.

    Attributes:
        values: knob name to value.
        origins: knob name to the variable that set it, for those that were set.
        notes: lines for rank 0, about variables of Horovod that have no effect.
        warnings: lines for each rank, about misspelt variables.
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
        values[knob.name] = _PREFERRED.get(knob.name, knob.default)
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
    known = [*MEANINGLESS, *(knob.horovod for knob in KNOBS if knob.horovod)]
    found = []
    for name in sorted(environ):
        text = environ[name].strip().lower()
        if not name.startswith("HOROVOD_") or text in ("", "0", _AS_IT_IS.get(name)):
            continue
        if name in MEANINGLESS:
            found.append(f"{name} ({MEANINGLESS[name]})")
        elif name not in known and not any(fnmatchcase(name, pattern) for pattern in NOT_ASKING):
            found.append(f"{name} ({_unknown(name, known)})")
    return (f"these variables of Horovod have no effect here: {'; '.join(found)}",) if found else ()


def _warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = [knob.variable for knob in KNOBS]
    mine = [name for name in sorted(environ) if name.startswith("HVDLITE_")]
    return tuple(f"{name} is {_unknown(name, known)}" for name in mine if name not in known)


def _unknown(name: str, known: Sequence[str]) -> str:
    prefix, _, rest = name.partition("_")
    close = difflib.get_close_matches(rest, [other.partition("_")[2] for other in known], n=1)
    return "no knob of hvdlite" + (f"; did you mean {prefix}_{close[0]}?" if close else "")


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Sets environment variables for the time of a with statement; those given as None stay as they are."""
    changes = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def to_native(config: Config) -> dict[str, Any]:
    """The knobs of the engine under their names in ``hvdlite_config`` (hvdlite.h)."""
    native: dict[str, Any] = {}
    for knob in KNOBS:
        if knob.native:
            value = config.values[knob.name]
            native[_NATIVE_NAMES.get(knob.name, knob.name)] = (
                _LOG_LEVELS.index(str(value)) if knob.name == "log_level" else value
            )
    if config.values["stall_check_disable"]:
        native.update(stall_check_time_seconds=0.0, stall_shutdown_time_seconds=0.0)
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


# What Open MPI 4 gives to ranks, by the ends of the names; others of this kind are settings, as the MPI operator makes them.
_LEFT_BY_ORTE = (
    *("app_num", "bound_at_launch", "ess_", "hnp_uri", "jobid", "jobfam_session_dir", "launch", "local_daemon_uri"),
    *("num_nodes", "num_restarts", "precondition_transports", "tmpdir_base", "top_session_dir", "output_filename"),
)
_LEFT_BY_MPI = (
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "OMPI_WORLD_", "OMPI_FILE_LOCATION", "OMPI_MCA_num_procs", "OMPI_MCA_ess_"),
    *("OMPI_MCA_initial_wdir", "OMPI_APP_CTX", "OMPI_NUM_APP_CTX", "OMPI_FIRST_RANKS"),
    *(f"OMPI_MCA_orte_{name}" for name in _LEFT_BY_ORTE),
    *("PMIX_", "PMI_", "PRTE_LAUNCHED", "HYDI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_"),
)
_LEFT_BY_OTHERS = (
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_SRUN", "TORCHELASTIC_RUN_ID"),
    *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
)


def outside_of_jobs(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what an mpirun or a single process of MPI has left in it, which would confuse the next mpirun."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith(_LEFT_BY_MPI)}


def child_environment() -> dict[str, str]:
    """The environment for a program that a rank starts and that is to be no rank: without the launcher's variables.

    A program that inherits those passes for its rank a second time, and `hvdlite.init` refuses it; with this one it is a job of
    one process: ``subprocess.run([...], env=hvdlite.child_environment())``.
    """
    return {name: value for name, value in outside_of_jobs().items() if not name.startswith(_LEFT_BY_OTHERS)}


def rank_by_launcher() -> str | None:
    """What is the same for all processes that have this rank's variables, and for no others; None where nothing tells it.

    Hydra (MPICH) gives each rank an open socket. Programs that a rank starts have its number in their variables, but most do
    not have the socket: empty for those.
    """
    environ = os.environ
    if "PMIX_NAMESPACE" in environ and "PMIX_RANK" in environ:
        return f"{environ['PMIX_NAMESPACE']}.{environ['PMIX_RANK']}"
    if all(name in environ for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")):
        return ".".join(environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"))
    if "PMI_FD" in environ:
        try:
            opened = os.readlink(f"/proc/self/fd/{environ['PMI_FD']}")
        except OSError:
            return ""
        return opened if opened.startswith("socket:") else ""
    return None


_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def is_first_process(environ: Mapping[str, str] | None = None) -> bool:
    """Is this rank 0 by its launcher's word, or without a launcher? For what one rank says before MPI is initialised."""
    environ = os.environ if environ is None else environ
    return next((environ[name] for name in _RANK_VARIABLES if name in environ), "0") == "0"


def rank_and_size_by_launcher(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank and the number of ranks by the launcher's word, before or without `hvdlite.init`; ``(0, 1)`` without a launcher.

    Raises:
        InvalidArgumentError: one of the two variables is set and the other is not.
    """
    environ = os.environ if environ is None else environ
    for launcher in ("HOROVOD_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "PMI_"):
        names = [launcher + "RANK", launcher + "SIZE"]
        found = [name for name in names if name in environ]
        if len(found) == 1:
            lacking = next(name for name in names if name not in environ)
            raise InvalidArgumentError(f"{found[0]} is set and {lacking} is not: unset it, or let one launcher set both")
        if found:
            return int(environ[names[0]]), int(environ[names[1]])
    return 0, 1


def cache_folder(environ: Mapping[str, str] | None = None) -> str:
    """Where the user's programs keep what they can make again; empty where there is no home."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # as the standard wants it: others do not count
        return chosen
    home = environ.get("HOME", "")
    return os.path.join(home, ".cache") if home else ""


def cuda_toolkits(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The folders where a CUDA toolkit may be installed."""
    environ = os.environ if environ is None else environ
    named = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    return tuple(dict.fromkeys([*named, "/usr/local/cuda"]))


def oneccl_folders(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The folders in which the user says that oneCCL's libraries are, as oneAPI's setvars.sh does."""
    environ = os.environ if environ is None else environ
    root = environ.get("CCL_ROOT")
    folders = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return ((os.path.join(root, "lib"),) if root else ()) + tuple(folder for folder in folders if folder)


def set_unless_set(variables: Mapping[str, str]) -> None:
    """Gives environment variables of this process a value if they have none, for libraries that read them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def lacks_torch_variables(knows_rank: bool, knows_size: bool) -> bool:
    """Would torch.distributed's ``env://`` miss a variable, its caller knowing the rank, the size, or neither?"""
    needed = ["MASTER_ADDR", "MASTER_PORT"] + ["RANK"] * (not knows_rank) + ["WORLD_SIZE"] * (not knows_size)
    return not all(os.environ.get(variable) for variable in needed)


def uses_legacy_keras() -> bool:
    """Is ``tf.keras`` the package tf_keras? TensorFlow reads the variable just so."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


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
        "Rank 0 logs one warning that lists those it finds, together with any `HOROVOD_*` that Horovod does not know either.",
        "Nothing is said of a variable that is 0 or empty, nor where it asks for what hvdlite does anyway "
        f"({', '.join(f'`{name}={value}`' for name, value in _AS_IT_IS.items())}).",
        "Variables for Horovod's build and those set by its launcher are not looked at: "
        f"{', '.join(f'`{pattern}`' for pattern in NOT_ASKING)}.",
        "",
        "| variable | why |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {reason} |" for name, reason in MEANINGLESS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(to_markdown(), end="")
