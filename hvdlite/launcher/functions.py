"""``hvdlite.run``: runs a function on several ranks, from a script or a notebook, and returns each rank's result.

The function and the results travel in files of a private folder. The launcher prints the ranks' output.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hvdlite.errors import InvalidArgumentError, PeerLostError, SystemFailure
from hvdlite.launcher import plan
from hvdlite.launcher.command import Wishes
from hvdlite.launcher.folder import private_folder
from hvdlite.launcher.function_rank import CALL, load_outcome, pickler
from hvdlite.launcher.job import JobOutcome, LaunchedJob, told_to_end
from hvdlite.launcher.output import RankOutput

__all__ = ["RankTraceback", "run"]

Value = TypeVar("Value")

# The program of the ranks. It imports the same hvdlite as this process, even if Python would find another hvdlite or none.
_START = (
    "import importlib.util, sys; place, root = sys.argv[1:]; spec = importlib.util.find_spec('hvdlite'); "
    "spec and spec.origin and spec.origin.startswith(root) or sys.path.insert(0, root); "
    "from hvdlite.launcher.function_rank import main; main(place)"
)


class RankTraceback(Exception):
    """The traceback of an exception that a rank has raised. It is the ``__cause__`` of the exception that `run` raises."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def run(
    fn: Callable[..., Value],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    env: Mapping[str, str] | None = None,
    mpi_args: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    tag_output: bool = True,
    verbose: bool = False,
    folder: str | None = None,
    executable: str | None = None,
    preload: Sequence[str] = (),
) -> list[Value]:
    """Starts ranks, runs a function on each, and returns their results.

    The function must call `hvdlite.init` itself. This process prints the ranks' output with the rank in front of each line. If
    the package ``cloudpickle`` is installed, any function works; otherwise the function must be at the top level of a module
    that ranks can import.

    Args:
        fn: the function.
        args: its positional arguments, the same on all ranks.
        kwargs: its keyword arguments.
        np: the number of ranks; by default the number of slots of the hosts or the allocation.
        hosts: the hosts and their slots, such as ``"a:2,b:2"``; by default this host, or the hosts of the allocation.
        hostfile: the path of a file that names the hosts.
        env: variables for the ranks, such as knobs.
        mpi_args: further arguments for mpirun or srun, quoted as in a shell.
        network_interfaces: the names of the network interfaces to use, as a list, or as a text with commas.
        ssh_port: the port that ssh uses to log in to other hosts.
        ssh_identity_file: the path of the key that ssh uses.
        start_timeout: the time in seconds after which the job is ended if a rank has not started.
        output_filename: a folder for copies of each rank's output.
        tag_output: print lines with their rank in front?
        verbose: print the launcher, the reason to choose it, and its command line?
        folder: the parent of the private folder for the function and the results. With several hosts it must be on a file
            system that all hosts share.
        executable: the path of the Python that ranks run; by default the Python of this process.
        preload: modules that ranks import before they read the function.

    Returns:
        The results in the order of the ranks.

    Raises:
        Exception: the exception of the rank that failed first, with that rank's traceback as its cause.
        PeerLostError: a rank was killed, or ended without a result for another reason.
        InvalidArgumentError: the function cannot be sent, or the arguments contradict each other.
        SystemFailure: the job cannot be started.
    """
    _check_call(fn, args, kwargs)
    plan.refuse_nested("hvdlite.run")
    variables = {name: str(value) for name, value in (env or {}).items()}
    nics = _names(network_interfaces)
    if nics:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(nics)
    wishes = Wishes(
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file or "",
        interfaces=nics,
        variables=variables,
        mpi_args=plan.words_of("mpi_args", mpi_args or ""),
    )
    sent = _packed(fn, tuple(args), dict(kwargs or {}), tuple(preload))
    chosen = plan.make(wishes, np, hosts or "", hostfile or "")
    if chosen.remote and folder is None:
        raise InvalidArgumentError(
            "run() on other hosts sends the function in a file: call hvdlite.run with folder=, a folder on a file system that "
            "all hosts share"
        )
    if verbose:
        for line in (*chosen.notes, chosen.line.shell(["..."])):
            print(f"hvdlite: {line}", file=sys.stderr)
    with private_folder("call", folder) as private:
        Path(private, CALL).write_bytes(sent)
        root = str(Path(__file__).parents[2])
        command = [executable or sys.executable, "-c", _START, private, root]
        output = RankOutput(chosen.size, tag_output, folder=output_filename)
        job = LaunchedJob(chosen, command, output, start_timeout)
        # Ctrl-C raises KeyboardInterrupt, and the caller may continue. SIGTERM or SIGHUP, if the program has no handler for it,
        # ends first the job, and then this process.
        ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
        with told_to_end(job, ends) as received:
            outcome = job.run()
        if not received:
            return _results(private, chosen.size, outcome)
    os.kill(os.getpid(), received[0])
    raise SystemFailure(f"run(): signal {signal.Signals(received[0]).name} has ended the job")


def _check_call(fn: object, args: object, kwargs: object) -> None:
    if not callable(fn):
        raise InvalidArgumentError(
            f"run() calls a function on every rank, but got {fn!r} of type {type(fn).__name__}: pass the function itself and "
            "its arguments, as in hvdlite.run(train, args=(0.1,), np=2) for train(0.1)"
        )
    name = getattr(fn, "__qualname__", repr(fn))
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidArgumentError(
            f"run({name}): args={args!r} is no tuple of the function's arguments; for one argument write args=({args!r},)"
        )
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise InvalidArgumentError(f"run({name}): kwargs={kwargs!r} is no dict of the function's arguments by name")


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(filter(None, given.split(",") if isinstance(given, str) else given or ()))


def _packed(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], preload: tuple[str, ...]) -> bytes:
    """The pickled call.

    Raises:
        InvalidArgumentError: the function or its arguments cannot be pickled. The error names the remedy.
    """
    dumps, by_value = pickler()
    name = getattr(fn, "__qualname__", repr(fn))
    home = getattr(fn, "__module__", "")
    if not by_value and (home == "__main__" or "<" in name):
        kind = "a lambda or a function inside another" if "<" in name else "a function of the program itself"
        raise InvalidArgumentError(
            f"run({name}): {kind} can be sent to the ranks only with the package cloudpickle: pip install cloudpickle, or put "
            "the function at the top of a module that ranks can import"
        )
    # The call is pickled by itself, and its bytes are pickled again with the rest, because ranks can unpickle the call only
    # after they have imported the modules in `preload`.
    try:
        return pickle.dumps((list(sys.path), list(preload), dumps((fn, args, kwargs))))
    except Exception as error:
        raise InvalidArgumentError(f"run({name}): the function or its arguments cannot be pickled: {error}") from error


def _results(folder: str, size: int, outcome: JobOutcome) -> list[Any]:
    if outcome.failure is not None:
        raise _error(folder, outcome)
    if outcome.problem or outcome.status:
        raise SystemFailure(f"run(): {outcome.problem or f'the launcher ended with {outcome.status}'}")
    results = []
    for rank in range(size):
        try:
            failure, value = load_outcome(folder, rank)
        except FileNotFoundError:
            raise PeerLostError(f"run(): rank {rank} ended with exit code 0 but without a result (os._exit?)") from None
        except Exception as error:
            raise SystemFailure(f"run(): the result of rank {rank} cannot be unpickled here: {error!r}") from error
        if failure is not None:  # a thread or an exit handler has hidden the failure
            raise SystemFailure(f"run(): rank {rank} has raised {failure}")
        results.append(value)
    return results


def _error(folder: str, outcome: JobOutcome) -> BaseException:
    """The exception of the rank that failed first, with the rank's traceback as the cause."""
    failure = outcome.failure
    assert failure is not None
    place = f"rank {failure.rank} (host {failure.host}, pid {failure.pid})"
    try:
        text, error = load_outcome(folder, failure.rank)
    except Exception:
        words = "\n".join(outcome.words)
        return PeerLostError(f"run(): {place} {failure.how}. Its last output: {words or 'none'}")
    if text is None:
        return PeerLostError(f"run(): {place} {failure.how} after it had returned")
    summary = text.rstrip().splitlines()[-1]
    if not isinstance(error, Exception):  # it could not be pickled, or is SystemExit, which would end the caller
        error = PeerLostError(f"run(): {place} raised {summary}")
    raised: BaseException = error
    raised.__cause__ = RankTraceback(f"{place} raised:\n{text}")
    return raised
