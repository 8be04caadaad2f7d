"""``horovod.runner``: `run` starts a function on several ranks. Instead of the command ``horovodrun`` use ``hvdlite run``."""

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
    """Runs a function on several ranks, as `hvdlite.run` does. In the function ``import horovod`` imports hvdlite.

    Args:
        func: the function. It calls ``hvd.init()``.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: number of ranks.
        min_num_proc: not supported, like all arguments for elastic jobs, because `run` starts a job whose ranks do not change.
        max_num_proc: not supported.
        slots: not supported.
        reset_limit: not supported.
        cooldown_range: not supported.
        hosts: the hosts and the number of ranks on each, such as ``"a:2,b:2"``. For other hosts than this one call
            `hvdlite.run`, because other hosts need its argument ``folder``.
        hostfile: path of a file with the hosts, as for `hosts`.
        host_discovery_script: not supported.
        start_timeout: seconds within which all ranks must start.
        ssh_port: port of the ssh servers on other hosts.
        ssh_identity_file: key file for ssh to other hosts.
        disable_cache: True: the response cache is off.
        output_filename: a folder for copies of the output of each rank.
        verbose: True: print the launcher, the reason to choose it, and its command line.
        use_gloo: True: a warning is given, and ranks run over MPI all the same.
        use_mpi: accepted for compatibility with Horovod; ranks always run over MPI.
        mpi_args: further arguments for mpirun.
        network_interface: the older name of `network_interfaces`.
        network_interfaces: names of network interfaces, separated by commas.
        executable: the Python interpreter that runs the ranks.
        np: the older name of `num_proc`.
        min_np: not supported.
        max_np: not supported.

    Returns:
        The results of the function, in the order of ranks.

    Raises:
        InvalidArgumentError: arguments contradict each other, or `hosts` or `hostfile` names another host than this one.
        UnsupportedError: an argument is not supported.
        Exception, PeerLostError, SystemFailure: as for `hvdlite.run`.
    """
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("horovod.run: pass either hosts or hostfile, not both")
    if use_gloo and use_mpi:
        raise InvalidArgumentError("horovod.run: pass either use_gloo or use_mpi, not both")
    if use_gloo:
        warnings.warn("horovod.run(use_gloo=True): hvdlite always runs over MPI; leave the argument out", stacklevel=2)
    elastic = {
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        "min_np": min_np,
        "max_np": max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    asked = [name for name, value in elastic.items() if value is not None]
    if asked:
        raise UnsupportedError(
            f"horovod.run({', '.join(asked)}) is not supported: the ranks of a job of horovod.run do not change. For training "
            "that continues when ranks die, start a script with hvdlite run --elastic (docs/elastic.md)"
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
