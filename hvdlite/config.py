"""The only module that reads the environment: knobs, launchers' variables about the job, folders of the user.

In this file a *variable* is an environment variable. The table of `hvdlite.knobs` lists the knobs. The variable
``HVDLITE_<NAME>`` sets the knob of that name. If Horovod has the same knob, Horovod's variable sets the knob too, unless the
``HVDLITE_*`` variable is set. A bad value raises an error when hvdlite is initialised.
(Over 400 lines, because no other module may read the environment.)
"""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import AS_IT_IS, ENGINE_KNOBS, KNOBS, LOG_LEVELS, MEANINGLESS, NOT_ASKING, Value

# Defaults that the module horovod (docs/shim.md) has set in this process.
_PREFERRED: dict[str, Value] = {}


def prefer(**defaults: Value) -> None:
    """Changes the defaults of knobs in this process. A variable that sets the knob takes precedence."""
    _PREFERRED.update(defaults)


@dataclass(frozen=True)
class Config:
    """The values of all knobs, by name and as attributes, and notes and warnings for the user.

    Attributes:
        values: knob name to value.
        origins: knob name to the variable that set the knob, for knobs that were set.
        notes: lines about variables of Horovod that have no effect; rank 0 logs them.
        warnings: lines about misspelt variables; each rank logs its own.
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


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The values of all knobs.

    Args:
        environ: the variables; by default those of this process.

    Raises:
        InvalidArgumentError: a value does not have the accepted form. The text names the variable, the value and the form.
    """
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for knob in KNOBS:
        values[knob.name] = _PREFERRED.get(knob.name, knob.default)
        for variable in (knob.horovod, knob.variable):
            text = environ.get(variable, "").strip() if variable else ""
            if not variable or not text:  # an empty variable counts as not set
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
        if not name.startswith("HOROVOD_") or text in ("", "0", AS_IT_IS.get(name)):
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
    """A with statement during which environment variables are set. A variable given as None stays as it is."""
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
    """The knobs that the engine reads, by the names of the fields of ``hvdlite_config`` (hvdlite.h)."""
    native = {knob.name: config.values[knob.name] for knob in ENGINE_KNOBS}
    native["log_level"] = LOG_LEVELS.index(str(native["log_level"]))
    if config.values["stall_check_disable"]:
        native.update(stall_check_time_seconds=0.0, stall_shutdown_time_seconds=0.0)
    return native


def disagreements(configs: Iterable[Mapping[str, Value]]) -> list[str]:
    """A line for each knob with `must_agree` that differs: which ranks have which value. `configs` are in rank order."""
    everyone = list(configs)
    lines = []
    for knob in filter(lambda knob: knob.must_agree, KNOBS):
        values = [values[knob.name] for values in everyone]
        if len(set(values)) > 1:
            lines.append(f"{knob.name} ({knob.variable}) is {who_has(enumerate(values))}")
    return lines


def who_has(values: Iterable[tuple[int, object]]) -> str:
    """Which ranks have which value, such as ``7 on ranks 0, 2, but 8 on rank 1``, from pairs of a rank and its value."""
    ranks_of: dict[object, list[int]] = {}
    for rank, value in values:
        ranks_of.setdefault(value, []).append(rank)
    return ", but ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in ranks_of.items())


def format_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0, 2``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


@dataclass(frozen=True)
class LauncherClaim:
    """What a launcher says about this job: the variable that it has set, the number of processes, and the launcher's name."""

    variable: str
    size: int
    launcher: str


_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"  # without it, hvdlite ignores torchrun's other variables
# The variable with the number of processes, the launcher, and a variable that must also be set (or ""). The most trusted
# launcher comes first, because an mpirun inside a Slurm step inherits Slurm's variables, which then count hosts, not ranks.
_CLAIMS = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", ""),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun", ""),
    ("PMI_SIZE", "an MPICH-like mpirun (or srun with PMI)", ""),
    ("SLURM_STEP_NUM_TASKS", "Slurm's srun", ""),
    ("HOROVOD_SIZE", "horovodrun without MPI", ""),
    ("WORLD_SIZE", "torchrun", _OF_TORCHRUN),
)


def launcher_claim(environ: Mapping[str, str] = os.environ) -> LauncherClaim | None:
    """What the launcher says about this job; None without a launcher's variable."""
    for variable, launcher, companion in _CLAIMS:
        text = environ.get(variable, "")
        if text.isdigit() and (not companion or companion in environ):
            return LauncherClaim(variable, int(text), launcher)
    return None


# What comes after OMPI_MCA_orte_ in the names of variables that Open MPI 4 sets for its ranks. Other variables with this prefix
# are settings of the user, such as those that Kubernetes' MPI operator sets.
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
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_SRUN"),
    *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
)


def outside_of_jobs(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without the variables that mpirun, torchrun, or MPI in a process without mpirun has set.

    An mpirun that inherits those variables would use them as its own, and its processes would have torchrun's ranks.
    """
    return {name: value for name, value in environ.items() if not name.startswith((*_LEFT_BY_MPI, _OF_TORCHRUN))}


def child_environment() -> dict[str, str]:
    """The environment, without the launcher's variables, for a program that a rank starts and that is not a rank.

    A program that inherits those variables would claim the rank of its parent, and `hvdlite.init` would raise an error. With
    this environment the program is a job of one process: ``subprocess.run([...], env=hvdlite.child_environment())``.
    """
    return {name: value for name, value in outside_of_jobs().items() if not name.startswith(_LEFT_BY_OTHERS)}


def rank_by_launcher() -> str | None:
    """A text that identifies this rank: only processes with the rank's variables get it. None without a launcher's variables.

    Hydra (MPICH's launcher) gives each rank an open socket, and a variable with the number of the socket. A program that a rank
    starts inherits the variable, but most such programs do not inherit the socket. Without the socket the text is empty.
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


@dataclass(frozen=True)
class TorchrunPlace:
    """The place that torchrun has given this process.

    Attributes:
        rank, size: the rank of this process, and the number of processes.
        local_rank, local_size: the same within the node of this process. Two torchruns on one machine are two nodes.
        node, nodes: the number of this process's node, and the number of nodes.
        run: the id of the run.
        restart: how often torchrun has started the processes again.
        master_address, master_port: the address of torchrun's store, on the machine of node 0.
        has_store: has torchrun itself made the store? Otherwise the process of rank 0 makes it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    run: str
    restart: int
    master_address: str
    master_port: int
    has_store: bool


TORCHRUN_JOB = "hvdlite-torchrun-"  # the name of an MPI job of torchrun's processes begins with this
_RANK_AND_SIZE = tuple((f"{prefix}RANK", f"{prefix}SIZE") for prefix in ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "PMI_"))
_BY_SLURM = ("PMIX_RANK", "SLURM_STEP_NUM_TASKS")  # for ranks that `srun --mpi=pmix` has started


def torchrun_place(environ: Mapping[str, str] = os.environ) -> TorchrunPlace | None:
    """This process's place, or None if torchrun has not started this process.

    Also None if an MPI's launcher gives the same rank and the same number of ranks as torchrun, because mpirun has then started
    one torchrun for each rank. If MPI's launcher and torchrun give different numbers, torchrun's count, because the numbers of
    MPI's launcher belong to the torchrun itself, which passes them on to its processes.

    Raises:
        InvalidArgumentError: a variable of torchrun is missing, or is no number.
    """
    if _OF_TORCHRUN not in environ:
        return None

    def number(name: str) -> int:
        if not environ.get(name, "").isdigit():
            raise InvalidArgumentError(
                f"{_OF_TORCHRUN} is set, as torchrun does, but {name} is {environ.get(name, 'not set')!r} and not a number: "
                f"start the program with torchrun or mpirun, or unset {_OF_TORCHRUN}"
            )
        return int(environ[name])

    ours = [str(number("RANK")), str(number("WORLD_SIZE"))]
    if any([environ.get(name) for name in names] == ours for names in (*_RANK_AND_SIZE, _BY_SLURM)):
        return None
    return TorchrunPlace(
        rank=number("RANK"),
        size=number("WORLD_SIZE"),
        local_rank=number("LOCAL_RANK"),
        local_size=number("LOCAL_WORLD_SIZE"),
        node=number("GROUP_RANK"),
        nodes=number("GROUP_WORLD_SIZE"),
        run=environ[_OF_TORCHRUN],
        restart=number("TORCHELASTIC_RESTART_COUNT"),
        master_address=environ.get("MASTER_ADDR", ""),
        master_port=number("MASTER_PORT"),
        has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def inherits_torchrun_job() -> bool:
    """Has this process, or a process from which it inherits its variables, entered an MPI job of torchrun's processes?"""
    return os.environ.get("PMIX_NAMESPACE", "").startswith(TORCHRUN_JOB)


def folder_of_torchrun_job() -> str | None:
    """The private folder of this node's PMIx server, which removes the folder when the node's ranks have ended; None in jobs
    that torchrun has not started.
    """
    return os.environ.get("PMIX_SERVER_TMPDIR") if inherits_torchrun_job() else None


OPEN_MPI_FOLDER = "OMPI_MCA_btl_sm_backing_directory"  # the folder in which Open MPI makes its files of shared memory


def has_open_mpi_folder(environ: Mapping[str, str] = os.environ) -> bool:
    """Has the user chosen the folder in which Open MPI makes its files of shared memory?"""
    return bool(environ.get(OPEN_MPI_FOLDER))


def open_mpi_place(environ: Mapping[str, str] = os.environ) -> tuple[str, str, int] | None:
    """The job's name, the host's name, and this rank's number among the ranks of its host, by which Open MPI 5 names its files.

    None if the launcher does not tell them.
    """
    job, host = environ.get("PMIX_NAMESPACE"), environ.get("PMIX_HOSTNAME")
    numbers = (environ.get(name, "") for name in ("OMPI_COMM_WORLD_NODE_RANK", "SLURM_LOCALID", "LOCAL_RANK"))
    number = next(filter(str.isdigit, numbers), "")
    return (job, host, int(number)) if job and host and number else None


def enter_job(variables: Mapping[str, str]) -> None:
    """Sets the variables by which MPI finds its job, in place of those that another launcher has set."""
    for name in [name for name in os.environ if name.startswith(_LEFT_BY_MPI) and not name.startswith("PMIX_MCA_")]:
        del os.environ[name]
    os.environ.update(variables)


def server_environment(folder: str) -> dict[str, str]:
    """The environment of the PMIx server that a process of torchrun starts.

    Args:
        folder: the folder that has the package hvdlite.
    """
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    # PMIx's other ways to keep data leave files behind if ranks are killed.
    return {**child_environment(), "PYTHONPATH": path, "PMIX_MCA_gds": "hash"}


def launcher_spares_others(environ: Mapping[str, str] = os.environ) -> bool:
    """Does the launcher let the job continue when a process is lost? Open MPI's mpirun does so with ``--with-ft ulfm``."""
    return environ.get("OMPI_MCA_mpi_ft_enable", "0") not in ("0", "false")


def is_first_process(environ: Mapping[str, str] = os.environ) -> bool:
    """Is this process rank 0 according to the launcher, or without a launcher? For output before MPI is initialised.

    Raises:
        InvalidArgumentError: as for `torchrun_place`.
    """
    names = [*(rank for rank, _ in _RANK_AND_SIZE), "SLURM_PROCID"]
    place = torchrun_place(environ)
    return (str(place.rank) if place else next((environ[name] for name in names if name in environ), "0")) == "0"


def rank_and_size_by_launcher(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank and the number of ranks according to the launcher; ``(0, 1)`` without a launcher. It needs no `hvdlite.init`.

    It reads the variables of horovodrun, torchrun and MPIs, not those of Slurm.

    Raises:
        InvalidArgumentError: only one of the launcher's two variables is set; or as for `torchrun_place`.
    """
    place = torchrun_place(environ)
    if place is not None:
        return place.rank, place.size
    for names in (("HOROVOD_RANK", "HOROVOD_SIZE"), *_RANK_AND_SIZE):
        found = [name for name in names if name in environ]
        if len(found) == 1:
            lacking = next(name for name in names if name not in environ)
            raise InvalidArgumentError(f"{found[0]} is set, but {lacking} is not: unset it, or let one launcher set both")
        if found:
            return int(environ[names[0]]), int(environ[names[1]])
    return 0, 1


def rank_and_size_by_mpi() -> tuple[int, int]:
    """The rank and the number of ranks by MPI's launcher, for log lines before MPI is initialised; else ``(0, 1)``."""
    for rank, size in (*_RANK_AND_SIZE, _BY_SLURM):
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def cache_folder(environ: Mapping[str, str] = os.environ) -> str:
    """The user's cache folder, by the XDG standard; empty if the user has no home folder."""
    chosen = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # the standard requires that a relative path is ignored
        return chosen
    home = environ.get("HOME", "")
    return os.path.join(home, ".cache") if home else ""


def cuda_toolkits(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The folders where a CUDA toolkit may be installed."""
    named = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    return tuple(dict.fromkeys([*named, "/usr/local/cuda"]))


def oneccl_folders(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The folders of oneCCL's libraries, from the variables that oneAPI's setvars.sh sets."""
    root = environ.get("CCL_ROOT")
    folders = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return ((os.path.join(root, "lib"),) if root else ()) + tuple(folder for folder in folders if folder)


def set_unless_set(variables: Mapping[str, str]) -> None:
    """Sets those of these environment variables that are not set yet, for libraries that read them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def lacks_torch_variables(knows_rank: bool, knows_size: bool) -> bool:
    """Does torch.distributed's ``env://`` lack a variable? It needs none for a rank or size that its caller knows already."""
    needed = ["MASTER_ADDR", "MASTER_PORT"] + ["RANK"] * (not knows_rank) + ["WORLD_SIZE"] * (not knows_size)
    return not all(os.environ.get(variable) for variable in needed)


def uses_legacy_keras() -> bool:
    """Is ``tf.keras`` the package tf_keras? TensorFlow reads TF_USE_LEGACY_KERAS in the same way."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
