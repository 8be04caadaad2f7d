"""The table of knobs: name, kind, default and meaning of each, and the variables of Horovod that have no effect here.

`hvdlite.config` reads the knobs from the environment. ``python -m hvdlite.knobs`` prints docs/knobs.md, and
``python -m hvdlite.knobs native`` prints the engine's list (csrc/include/hvdlite/knobs.inc), from which the C struct, its
defaults and the bindings' fields follow; `make knobs` writes both files. Over 400 lines, because the table is in one piece.
"""

import math
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
_MOST = (1 << 63) - 1  # the engine's whole numbers have 64 bits
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "off")


@dataclass(frozen=True)
class Knob:
    """One row of the table.

    Attributes:
        name: the name in Python; the environment variable is ``HVDLITE_`` and this name in capitals.
        default: the value if no environment variable sets the knob.
        doc: the meaning of the knob, for docs/knobs.md and the help of ``hvdlite run``.
        unit: the unit of a number; empty for counts.
        low: for a number, the smallest allowed value.
        zero: is 0 allowed as well, though it is below ``low``?
        choices: for a text, the allowed values; empty: any text.
        horovod: Horovod's variable for the same knob, or None.
        from_horovod: translates a value of Horovod's variable, if its form differs.
        must_agree: must all ranks have the same value?
    """

    name: str
    default: Value
    doc: str
    unit: str = ""
    low: float = 0
    zero: bool = False
    choices: tuple[str, ...] = ()
    horovod: str | None = None
    from_horovod: Callable[[str], Value] | None = None
    must_agree: bool = True

    @property
    def kind(self) -> str:
        """``choice``, ``bytes``, or the type of the default: ``int``, ``float``, ``bool`` or ``str``."""
        if self.choices:
            return "choice"
        return "bytes" if self.unit == "bytes" else type(self.default).__name__

    @property
    def variable(self) -> str:
        """The environment variable, such as ``HVDLITE_FUSION_THRESHOLD``."""
        return f"HVDLITE_{self.name.upper()}"

    @property
    def accepted(self) -> str:
        """The allowed values, in words."""
        bound = f" of at least {self.low:g}"
        unit = f" {self.unit}" if self.unit else ""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "bool":
            return "0 or 1 (also false/true, no/yes, off/on)"
        if self.kind == "str":
            return "text"
        if self.kind == "bytes":
            return f"a whole number of bytes{bound}, also with the suffix KiB, MiB or GiB"
        number = f"a {'whole ' if self.kind == 'int' else ''}number{unit and ' of' + unit}{bound}"
        return f"0, or {number}" if self.zero else number

    def parse(self, text: str) -> Value:
        """The value of a text.

        Raises:
            ValueError: the text does not have the accepted form. The caller adds the name of the variable.
        """
        value = _PARSERS[self.kind](text.strip())
        if self.choices and value not in self.choices:
            raise ValueError(text)
        is_zero = self.zero and value == 0
        if not isinstance(value, str) and not is_zero and not self.low <= value < math.inf:
            raise ValueError(text)
        if isinstance(value, int) and value > _MOST:
            raise ValueError(text)
        return value


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
    if level not in LOG_LEVELS:
        raise ValueError(text)
    return level


def _algorithm(collective: str, names: str) -> Knob:
    sized = ", and by the size if they send messages" if collective in ("allreduce", "reducescatter", "broadcast") else ""
    return Knob(
        f"{collective}_algorithm",
        "auto",
        f"Forces one algorithm for every {collective}; auto chooses by the hosts of the ranks{sized}. If a process set cannot "
        "run the forced algorithm, the operation fails, and so does the whole job.",
        choices=("auto", *names.split()),
    )


ENGINE_KNOBS: tuple[Knob, ...] = (
    Knob(
        "fusion_threshold",
        64 << 20,
        "The largest size of a fused operation, which reduces several small tensors together; 0 fuses nothing.",
        unit="bytes",
        horovod="HOROVOD_FUSION_THRESHOLD",
    ),
    Knob(
        "cycle_time",
        0.2,
        "While no caller waits, the longest time for which the engine gathers tensors before it announces them together.",
        unit="milliseconds",
        horovod="HOROVOD_CYCLE_TIME",
        must_agree=False,
    ),
    Knob(
        "cache_capacity",
        1024,
        "How many responses the response cache of each process set holds; a known tensor needs one bit in the negotiation. 0 "
        "holds none.",
        horovod="HOROVOD_CACHE_CAPACITY",
    ),
    Knob(
        "ledger_copies",
        16,
        "Process sets of at most this many ranks (32 at most) that cannot share a ledger in memory agree without a "
        "coordinator: each rank keeps a copy of the ledger. 0: never.",
    ),
    Knob("segment_bytes", 256 << 10, "A collective sends large data in segments of this size.", unit="bytes", low=1),
    Knob(
        "recursive_doubling_max_bytes",
        512 << 10,
        "Among ranks that send messages, auto takes an algorithm with few delays up to this size, and for larger sizes an "
        "algorithm that sends fewer bytes. docs/algorithms.md names both algorithms.",
        unit="bytes",
    ),
    Knob(
        "tile_bytes",
        512 << 10,
        "The largest piece that a rank moves at once through its part of shared memory; less if many ranks share a host, "
        "because their parts together take at most 32 MiB.",
        unit="bytes",
        low=16 << 10,
    ),
    Knob(
        "streaming_bytes",
        64 << 20,
        "Results of an operation among ranks of one host are written to memory past the caches if they have at least this many "
        "bytes on all ranks together, unless the operation is in place. The limit also holds for gradients that move into "
        "their arena. 0: never.",
        unit="bytes",
        must_agree=False,
    ),
    Knob(
        "message_split_bytes",
        1 << 30,
        "The largest single MPI message; longer ones are sent in pieces (MPI counts are 32-bit).",
        unit="bytes",
        low=1,
    ),
    Knob(
        "remote_message_bytes",
        32 << 10,
        "The largest single MPI message between hosts. MPI sends a message up to some size (Open MPI over TCP: 64 KiB) at "
        "once, and for a larger one it first asks the receiver, which takes two more latencies.",
        unit="bytes",
        low=1,
    ),
    Knob(
        "spin_us",
        -1.0,
        "How long a wait spins before it sleeps; -1 decides from the cores the ranks of this host may use.",
        unit="microseconds",
        low=-1,
        must_agree=False,
    ),
    Knob(
        "deadlock_timeout",
        1.0,
        "How long ranks may wait for each other in different operations before these operations fail; 0 never checks.",
        unit="seconds",
    ),
    Knob(
        "stall_check_time_seconds",
        60.0,
        "How long a rank waits for an operation before one log line names the missing ranks, and says where the program of "
        "each is; 0 never warns.",
        unit="seconds",
        horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
        must_agree=False,
    ),
    Knob(
        "stall_shutdown_time_seconds",
        1800.0,
        "How long a rank waits for an operation before all ranks give up with an error; 0 waits for ever. stall_limit() makes "
        "ranks wait longer for one rank. The limit also holds for the wait for other processes in init(), once all ranks have "
        "called it, and in elastic training, after the loss of a rank.",
        unit="seconds",
        horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        must_agree=False,
    ),
    Knob(
        "failure_linger",
        1.5,
        "The longest time for which a failing rank waits until its peers know the cause. shutdown() waits for operations that "
        "are agreed on, but ends the wait if no data have moved for this time.",
        unit="seconds",
    ),
    Knob(
        "peer_timeout",
        10.0,
        "How long a host of the job may be silent before it counts as lost, and the job as failed; 0 never checks.",
        unit="seconds",
        low=0.2,  # an engine without work looks at the silence every 0.05 s; two looks must fit into half of the time
        zero=True,
    ),
    Knob(
        "flight_recorder_size",
        64,
        "How many past operations each rank remembers for the report after a failure.",
        must_agree=False,
    ),
    Knob(
        "flight_recorder_folder",
        "",
        "The folder in which a rank writes its past operations to a file after a failure, if it does not print all of them. "
        "Empty: the folder for temporary files. off: no file.",
        must_agree=False,
    ),
    Knob(
        "output_cache_bytes",
        256 << 20,
        "How much unused memory of earlier results is kept for later ones; 0 keeps none.",
        unit="bytes",
        must_agree=False,
    ),
    Knob(
        "shared_outputs",
        True,
        "Results of allreduces from 1 MiB up to the size at which HVDLITE_STREAMING_BYTES begins lie in memory that all ranks "
        "of the host map, so that each rank stores what it has reduced directly into the results of the other ranks. This "
        "needs memfds, and HVDLITE_OUTPUT_CACHE_BYTES above 0.",
    ),
    Knob(
        "gpu_route",
        "auto",
        "How tensors in GPU memory get from rank to rank. auto: by NCCL if every rank of the process set has it and a GPU of "
        "its own, otherwise through host memory. nccl: by NCCL, or the operations fail. staged: through host memory.",
        choices=("auto", "nccl", "staged"),
    ),
    Knob(
        "gpu_cache_bytes",
        1 << 30,
        "How much unused memory of the engine's buffers is kept for later ones, on each GPU; 0 keeps none.",
        unit="bytes",
        must_agree=False,
    ),
    Knob(
        "nccl_float32_sums",
        False,
        "Sends float16 and bfloat16 as float32 through NCCL, which otherwise rounds each partial sum to 16 bits.",
    ),
    Knob(
        "check_finite",
        False,
        "Looks for infinities and NaNs in the results of allreduces on GPUs, and logs the names of tensors that have any.",
        must_agree=False,
    ),
    Knob(
        "cuda_library",
        "libcuda.so.1",
        "The CUDA driver's library: names or paths to try in order, separated by colons.",
        must_agree=False,
    ),
    Knob(
        "nccl_library",
        "",
        "NCCL's library: names or paths as for HVDLITE_CUDA_LIBRARY; + before a name: only if the process has loaded it "
        "already. Empty: the one that the process has loaded, else that of NVIDIA's wheel, else the system's.",
        must_agree=False,
    ),
    Knob(
        "nvrtc_library",
        "",
        "The library of NVIDIA's run-time compiler, as for HVDLITE_NCCL_LIBRARY; if empty, also a CUDA toolkit's library.",
        must_agree=False,
    ),
    Knob(
        "kernel_cache",
        "auto",
        "The folder in which kernels compiled for a GPU are kept; auto: hvdlite in the user's cache folder; off keeps none.",
        must_agree=False,
    ),
    Knob(
        "deterministic",
        False,
        "Uses only algorithms whose results do not depend on how tensors were fused, so that sums in host memory have the same "
        "bits in each run. It does not affect NCCL.",
    ),
    Knob(
        "horovod_rules",
        False,
        "Raises the errors that Horovod raises, where hvdlite itself needs none: for process sets that are added or removed "
        "after initialisation without HVDLITE_DYNAMIC_PROCESS_SETS, for a second set of the same ranks, and for operations "
        "other than allreduce while ranks have joined. It also warns of a step() after synchronize() outside of "
        "skip_synchronize(). The default is 1 in programs that import horovod (docs/shim.md).",
    ),
    Knob(
        "log_level",
        "warning",
        "The least severe log line that is written.",
        choices=LOG_LEVELS,
        horovod="HOROVOD_LOG_LEVEL",
        from_horovod=_horovod_log_level,
        must_agree=False,
    ),
    Knob(
        "log_timestamps",
        True,
        "Starts each log line with date and time.",
        horovod="HOROVOD_LOG_HIDE_TIME",
        from_horovod=lambda text: not _horovod_bool(text),
        must_agree=False,
    ),
    Knob(
        "shared_memory",
        "auto",
        "The memory through which ranks of one host exchange tensors, and wake and watch each other: auto tries a memfd, then "
        "/dev/shm, and otherwise uses MPI's messages; off uses only MPI's messages.",
        choices=("auto", "memfd", "shm", "off"),
    ),
    Knob(
        "tile_stores",
        "auto",
        "How ranks of one host write to the memory that they share: with ordinary stores, which leave the data in the writer's "
        "cache, or with streaming stores, which are faster between cores that share no cache; auto measures both from time to "
        "time.",
        choices=("auto", "ordinary", "streaming"),
        must_agree=False,
    ),
    Knob(
        "kernel_isa",
        "auto",
        "Forces the instruction set of the reduction kernels (all give the same bits); auto takes the widest.",
        choices=("auto", "scalar", "avx2", "avx512"),
        must_agree=False,
    ),
    _algorithm("allreduce", "ring direct recursive_doubling shm inline hierarchical"),
    _algorithm("reducescatter", "ring direct shm"),
    _algorithm("allgatherv", "ring direct shm"),
    _algorithm("broadcast", "binomial chain shm"),
    _algorithm("alltoallv", "pairwise shm"),
    _algorithm("barrier", "dissemination shm"),
)

# All knobs: those that the engine reads, and those that only Python reads.
KNOBS: tuple[Knob, ...] = (
    *ENGINE_KNOBS,
    Knob(
        "stall_check_disable",
        False,
        "Switches the stall check off: there are no warnings, and ranks wait without a limit.",
        horovod="HOROVOD_STALL_CHECK_DISABLE",
        from_horovod=_horovod_bool,
        must_agree=False,
    ),
    Knob(
        "elastic_min_ranks",
        1,
        "If fewer ranks than this number live, elastic training waits for a spare, and ends with an error if no spare comes in "
        "time.",
        low=1,
    ),
    Knob(
        "elastic_reset_limit",
        0,
        "After this number of changes of the ranks (by losses and by spares), elastic training ends with an error at the next "
        "loss; 0: no limit.",
    ),
    Knob(
        "elastic_spares",
        0,
        "How many of an elastic job's processes, the last ones, are spares: a spare waits until it replaces a lost rank.",
    ),
    Knob(
        "elastic_timeout",
        600.0,
        "How long elastic training waits for a spare if fewer ranks live than HVDLITE_ELASTIC_MIN_RANKS.",
        unit="seconds",
        horovod="HOROVOD_ELASTIC_TIMEOUT",
    ),
    Knob(
        "tensorflow_gpu_streams",
        False,
        "Reduces TensorFlow's tensors in GPU memory, in the order of TensorFlow's stream, if a test at the first use finds "
        "that stream. Otherwise, and without this knob, the tensors go through host memory.",
    ),
    Knob(
        "start_check",
        "auto",
        "What an optimizer does if the ranks' parameters differ after its first update, because they were not broadcast. "
        "error: it raises MismatchError; warn: it logs a warning; broadcast: it logs a warning and gives all ranks the "
        "parameters of the first rank; off: it does not compare parameters; auto: error, or warn if HVDLITE_HOROVOD_RULES is "
        "on.",
        choices=("auto", "error", "broadcast", "warn", "off"),
    ),
    Knob(
        "tuning_file",
        "",
        "The file with the results of `hvdlite tune`. Rank 0 reads it. If it was made for this machine and this shape of job, "
        "knobs that no variable sets take their values from it. auto: the file for this machine and shape of job in the user's "
        "cache folder. Empty: none.",
    ),
    Knob(
        "autotune",
        False,
        "If there is no tuning file for this machine and job, init() measures which knobs are best, uses them, and writes the "
        "file that HVDLITE_TUNING_FILE names (auto, if it is empty).",
        horovod="HOROVOD_AUTOTUNE",
        from_horovod=_horovod_bool,
    ),
    Knob(
        "autotune_seconds",
        30.0,
        "About how long init() measures if HVDLITE_AUTOTUNE is set.",
        unit="seconds",
        low=1,
    ),
    Knob(
        "autotune_warmup_samples",
        2,
        "How many first samples of each setting are not used in a comparison.",
        horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    ),
    Knob(
        "autotune_log",
        "",
        "The file into which rank 0 writes a line of CSV for each comparison that it has measured.",
        horovod="HOROVOD_AUTOTUNE_LOG",
    ),
    Knob(
        "timeline",
        "",
        "The file into which a rank traces its operations, for Chrome's and Perfetto's viewers. If several ranks have the same "
        "path, rank 3 takes the name with .rank3 before its ending. Empty: no trace before start_timeline().",
        horovod="HOROVOD_TIMELINE",
        from_horovod=lambda text: "" if text == "DYNAMIC" else text,
        must_agree=False,
    ),
    Knob(
        "timeline_mark_cycles",
        False,
        "Marks in the timeline whenever the rank announces operations.",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES",
        from_horovod=_horovod_bool,
        must_agree=False,
    ),
    Knob(
        "timeline_max_bytes",
        64 << 20,
        "The most that one rank's timeline takes on the disk; then the oldest half is dropped. The samples of the main "
        "thread's stack take up to an eighth of this size in addition.",
        unit="bytes",
        low=4096,
        must_agree=False,
    ),
    Knob(
        "metrics_file",
        "",
        "The file into which each rank writes hvdlite.stats() for Prometheus's node_exporter; {rank} stands for the rank, and "
        "without {rank} rank 3 takes the name with .rank3 before its ending. Empty writes none.",
        must_agree=False,
    ),
    Knob(
        "metrics_interval",
        15.0,
        "The time from one writing of HVDLITE_METRICS_FILE to the next.",
        unit="seconds",
        low=0.1,
        must_agree=False,
    ),
    Knob(
        "live_view",
        True,
        "Lets `hvdlite top` look at this rank, through a unix socket that answers only this user and root.",
        must_agree=False,
    ),
    Knob(
        "dynamic_process_sets",
        False,
        "Allows add_process_set and remove_process_set after initialisation where HVDLITE_HOROVOD_RULES forbids them.",
        horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
        from_horovod=_horovod_bool,
    ),
    Knob(
        "bucket_bytes",
        25 << 20,
        "The largest size of a gradient bucket of torch's DistributedOptimizer; a larger gradient has a bucket of its own.",
        unit="bytes",
        low=1,
    ),
    Knob(
        "first_bucket_bytes",
        1 << 20,
        "The largest size of the first gradient bucket, which is small so that communication starts early in the backward "
        "pass.",
        unit="bytes",
        low=1,
    ),
)

_BY_TOPOLOGY = "the algorithm follows from the topology"
_NO_MODEL = "the search compares settings with each other, and makes no model of their cost"
_NO_GLOO = "Gloo is not used"
_NO_SPARK = "there are no Spark estimators; start the job with mpirun"

# Variables of Horovod that have no effect here, with the reason or the replacement.
MEANINGLESS: Mapping[str, str] = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": f"{_BY_TOPOLOGY}; HVDLITE_ALLREDUCE_ALGORITHM forces one",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "allgather exchanges messages between all ranks of several hosts",
    "HOROVOD_TORUS_ALLREDUCE": _BY_TOPOLOGY,
    "HOROVOD_BATCH_D2D_MEMCOPIES": "the tensors of a fused operation on GPUs are always packed in one launch",
    "HOROVOD_NUM_NCCL_STREAMS": "each process set has one stream for NCCL, and NCCL decides how much of the GPU it uses",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is never fused with other operations, and is cut at HVDLITE_FUSION_THRESHOLD",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "an operation on GPUs ends once it is in a stream, and no thread waits for the GPU",
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
    "HOROVOD_ELASTIC": "`hvdlite run --elastic` starts an elastic job (docs/elastic.md has mpirun's options)",
    "HOROVOD_START_TIMEOUT": "`hvdlite run --start-timeout SECONDS` sets this limit; without it there is none",
    "HOROVOD_SPARK_PYTHONPATH": _NO_SPARK,
    "HOROVOD_SPARK_START_TIMEOUT": _NO_SPARK,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": _NO_SPARK,
    "HOROVOD_SPARK_WORK_DIR": _NO_SPARK,
}

# For these variables, the value that asks for what hvdlite does anyway. For all others that value is 0.
AS_IT_IS: Mapping[str, str] = {
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}

# Patterns of variables that need no note. A launcher of Horovod describes the job with these variables (hvdlite asks MPI
# instead), or they configure the build of Horovod and are still set in Horovod's container images.
NOT_ASKING = tuple(
    f"HOROVOD_{name}"
    for name in (
        *("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "SECRET_KEY"),
        *("WITH_*", "WITHOUT_*", "GPU", "GPU_*", "ALLOW_MIXED_GPU_IMPL", "CUDA_HOME", "NCCL_*", "ROCM_HOME", "BUILD_*"),
        *("CMAKE", "SKIP_COMPILE", "DEBUG", "NVTX_INCLUDE", "VERSION"),
    )
)


def to_markdown() -> str:
    """The page docs/knobs.md."""
    lines = [
        "# Knobs",
        "",
        "Generated by `python -m hvdlite.knobs`; edit the table in `hvdlite/knobs.py` instead.",
        "",
        "A knob is an environment variable, which hvdlite reads when it is initialised. If the table names a variable of",
        "Horovod, hvdlite accepts that variable, too. If both are set, hvdlite uses `HVDLITE_*`. *Agree* says whether all",
        "ranks must have the same value. If they do not, `init()` fails on every rank, and the error says which rank has which",
        "value.",
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
        "Rank 0 logs one warning that lists those that are set, and any `HOROVOD_*` that not even Horovod knows.",
        "hvdlite ignores such a variable without a warning if it is 0 or empty, or asks for what hvdlite does in any case "
        f"({', '.join(f'`{name}={value}`' for name, value in AS_IT_IS.items())}).",
        "There is no warning about variables for Horovod's build, nor about those that Horovod's launcher sets: "
        f"{', '.join(f'`{pattern}`' for pattern in NOT_ASKING)}.",
        "",
        "| variable | why |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {reason} |" for name, reason in MEANINGLESS.items()]
    return "\n".join(lines) + "\n"


_NATIVE_TYPES = {"bytes": "count", "int": "count", "float": "number", "bool": "flag", "str": "text", "choice": "text"}


def to_inc() -> str:
    """The file csrc/include/hvdlite/knobs.inc: the knobs that the engine reads, with their defaults."""
    levels = ", ".join(f"{number} {name}" for number, name in enumerate(LOG_LEVELS))
    lines = _comment(
        "Generated by `python -m hvdlite.knobs native`; edit the table in hvdlite/knobs.py instead. HVDLITE_KNOB(type, name, "
        f"default): a type is count (int64_t), number (double), flag (0 or 1), text, or level (of the log: {levels})."
    )
    for knob in ENGINE_KNOBS:
        lines += ["", *_comment(f"{knob.unit}: {knob.doc}" if knob.unit else knob.doc), _native_line(knob)]
    return "\n".join(lines) + "\n"


def _native_line(knob: Knob) -> str:
    kind, default = _NATIVE_TYPES[knob.kind], knob.default
    if knob.name == "log_level":
        kind, default = "level", LOG_LEVELS.index(str(default))
    elif isinstance(default, str):
        default = f'"{default}"'
    return f"HVDLITE_KNOB({kind}, {knob.name}, {int(default) if kind == 'flag' else default})"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text + " */", 120, initial_indent="/* ", subsequent_indent=" * ")


if __name__ == "__main__":
    print(to_inc() if sys.argv[1:] == ["native"] else to_markdown(), end="")
