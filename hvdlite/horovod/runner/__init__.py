"""``horovod.runner``: `run` starts a function on several ranks. The command ``horovodrun`` is ``hvdlite run`` here."""

import warnings
from collections.abc import Callable
from typing import Any

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.launcher import functions

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Any = (),
    kwargs: Any = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs a function on several ranks and gives what it returned on each, as `hvdlite.run` does.

    ``horovod`` means hvdlite in the function, too.

    Args:
        func: the function, which calls ``hvd.init()``.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of ranks; also ``np``.
        min_num_proc: refused, as are the other arguments of elastic jobs: ranks of a job stay the same.
        max_num_proc: refused.
        slots: refused.
        reset_limit: refused.
        cooldown_range: refused.
        hosts: where, as ``"a:2,b:2"``.
        hostfile: the same in a file.
        host_discovery_script: refused.
        start_timeout: seconds until all ranks must have started.
        ssh_port: for logging in to other hosts.
        ssh_identity_file: likewise.
        disable_cache: switches the response cache off.
        output_filename: a folder for copies of what each rank prints.
        verbose: says how ranks are started.
        use_gloo: has no effect but a warning: ranks run over MPI.
        use_mpi: is the case in any case.
        mpi_args: further arguments for mpirun.
        network_interface: the older name of the next.
        network_interfaces: names with commas between.
        executable: the Python that ranks run.
        np: the older name of num_proc.
        min_np: refused.
        max_np: refused.

    Raises:
        InvalidArgumentError: arguments contradict each other.
        UnsupportedError: an argument asks for what hvdlite does not do.
    """
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("horovod.run: hosts and hostfile both say where ranks run: give one of them")
    if use_gloo and use_mpi:
        raise InvalidArgumentError("horovod.run: use_gloo and use_mpi cannot both be given")
    if use_gloo:
        warnings.warn(
            "horovod.run(use_gloo=True): hvdlite runs over MPI, and does so here; leave the argument out", stacklevel=2
        )
    elastic = {
        "min_num_proc": min_num_proc if min_num_proc is not None else min_np,
        "max_num_proc": max_num_proc if max_num_proc is not None else max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    asked = [name for name, value in elastic.items() if value is not None]
    if asked:
        raise UnsupportedError(
            f"horovod.run({', '.join(asked)}) is not offered: the ranks of a job stay the same; start it again from its last "
            "commit (docs/elastic.md)"
        )
    return functions.run(
        func,
        args,
        kwargs,
        np if np is not None else num_proc,
        hosts=hosts,
        hostfile=hostfile,
        env={"HVDLITE_CACHE_CAPACITY": "0"} if disable_cache else None,
        mpi_args=mpi_args,
        network_interfaces=network_interfaces or network_interface,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        start_timeout=start_timeout,
        output_filename=output_filename,
        verbose=bool(verbose),
        executable=executable,
        preload=["hvdlite.horovod.install"],
    )
