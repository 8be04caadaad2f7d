"""Runs a training function on a state, and again from the last commit when the job has changed."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from hvdlite.config import launcher_spares_others
from hvdlite.elastic import recovery
from hvdlite.elastic.leaving import LeaveRequest
from hvdlite.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InvalidArgumentError,
    MismatchError,
    OperationTimeoutError,
    PeerLostError,
    UnsupportedError,
)

# A function that finds hvdlite's error behind a framework's error, if a rank is lost; otherwise it returns None.
LossIn = Callable[[Exception], HorovodInternalError | None]


def run(func: Callable[..., Any], loss_in: LossIn | None = None) -> Callable[..., Any]:
    """Decorates a training function whose first argument is a `State`: the state is synchronised before the function runs.

    If ranks are lost (a signal or the kernel's out-of-memory killer ended them), the others restore their last commit, continue
    in a new job, synchronise the state and call the function again. Spares replace lost ranks at a commit. A rank that gets
    SIGTERM leaves at its next commit. For all this the job must be started with ``hvdlite run --elastic`` (which needs Open MPI
    5 or newer) or with Open MPI 5's ``mpirun`` and the options in docs/elastic.md. The function ends on all ranks together.

    Args:
        func: the training function.
        loss_in: for frameworks that raise their own errors: finds hvdlite's error behind such an error. If it finds none, the
            framework's error is raised unchanged.

    Returns:
        A function with the same arguments. Collective over all ranks.

    Raises:
        UnsupportedError: (from the returned function) the job cannot continue; the text says why. After the loss of a rank, the
            state was restored to this rank's last commit, and can be saved to a file.
        InvalidArgumentError: (from the returned function) the first argument is no state.
        MismatchError, OperationTimeoutError: (from the returned function) the ranks ask for different things. The training
            function does not run again, because the error would occur again. All other exceptions come from the training
            function.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not launcher_spares_others():
            return run_fn(func, lambda: _refuse(_cause()), loss_in)(*args, **kwargs)
        results: list[Any] = [None]

        @functools.wraps(func)
        def to_the_end(*args: Any, **kwargs: Any) -> Any:
            results[:] = [func(*args, **kwargs)]
            call.end()
            return results[0]

        try:
            call = recovery.Call()
            with LeaveRequest():
                return run_fn(to_the_end, lambda: _reset(call, _cause()), loss_in)(*args, **kwargs)
        except recovery.Passed:
            return results[0]

    return wrapper


@contextmanager
def _own_errors(loss_in: LossIn | None) -> Iterator[None]:
    """A with statement that raises hvdlite's error in place of a framework's error behind which `loss_in` finds one."""
    try:
        yield
    except Exception as error:
        loss = None if loss_in is None else loss_in(error)
        if loss is None:
            raise
        raise loss from error


def run_fn(func: Callable[..., Any], reset: Callable[[], Any], loss_in: LossIn | None = None) -> Callable[..., Any]:
    """`run` for callers that make the new job themselves.

    The training function is called again whenever an error ended the function itself, `State.sync` or a reset callback: after
    HorovodInternalError the state is restored; after HostsUpdatedInterrupt the state is kept, and not synchronised if the
    interrupt's ``skip_sync`` is true.

    Args:
        func: the training function; its first argument is a `State`.
        reset: called without arguments before the function runs again, to leave the old job and enter the new one;
            `State.on_reset` follows.
        loss_in: as for `run`.

    Returns:
        A function with the same arguments. Collective over all ranks.

    Raises:
        MismatchError, OperationTimeoutError: (from the returned function) the ranks ask for different things. The training
            function does not run again, because the error would occur again. All other exceptions come from the training
            function and from `reset`.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        if not all(hasattr(state, name) for name in ("sync", "restore", "on_reset")):
            raise InvalidArgumentError(
                f"the first argument of {func.__name__}() is a {type(state).__name__}, which has no sync(), restore() and "
                "on_reset(): pass a state, such as hvd.elastic.TorchState(model=model, optimizer=optimizer)"
            )
        is_new_job = skip_sync = False
        while True:
            try:
                with _own_errors(loss_in):
                    if is_new_job:
                        state.on_reset()
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
            except (MismatchError, OperationTimeoutError):
                raise  # the program's error, which would occur again
            except HorovodInternalError:
                state.restore()
                skip_sync = False
                reset()
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                reset()
            is_new_job = True

    return wrapper


def _cause() -> BaseException | None:
    """The exception that is being handled, and makes the reset necessary."""
    return sys.exc_info()[1]


def _reset(call: recovery.Call, cause: BaseException | None) -> None:
    try:
        if isinstance(cause, HostsUpdatedInterrupt) and recovery.awaits_spare():
            call.admit()
            return
        if isinstance(cause, PeerLostError) and not recovery.why_not(cause):
            call.recover(cause)
            return
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}. {_state_after(cause)}") from cause
    _refuse(cause)


_RESTORED = (
    "The state was restored to this rank's last commit: catch UnsupportedError to save it to a file, and start the job again "
    "from there"
)


def _state_after(cause: BaseException | None) -> str:
    return "The state is as it was when the change was noticed" if isinstance(cause, HostsUpdatedInterrupt) else _RESTORED


def _refuse(cause: BaseException | None) -> NoReturn:
    """Ends the training function, because the job cannot go on."""
    why = recovery.why_not(cause)
    raise UnsupportedError(
        f"elastic training cannot go on after this ({type(cause).__name__}: {cause}): {why}. {_state_after(cause)}"
    ) from cause
