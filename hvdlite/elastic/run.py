"""Runs a training function on a state, and again from the last commit when the job has changed."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hvdlite.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    OperationTimeoutError,
    UnsupportedError,
)

__all__ = ["LossIn", "run", "run_fn"]

# Finds the error of hvdlite behind one that a framework raises in its place, if it means that a rank is lost.
LossIn = Callable[[Exception], HorovodInternalError | None]


def run(func: Callable[..., Any], loss_in: LossIn | None = None) -> Callable[..., Any]:
    """Decorates a training function whose first argument is a `State`: the state is synchronised before it runs.

    hvdlite cannot yet continue with other ranks than at the start. Where Horovod would, this raises UnsupportedError, and
    the state can be saved to a file for the next job (docs/elastic.md).

    Args:
        func: the training function.
        loss_in: for frameworks that raise errors of their own; all those in which it finds none are raised as they are.

    Returns:
        A function with the same arguments. Collective over all ranks.

    Later, that function can raise:
        UnsupportedError: a rank was lost, or the hosts have changed. In the first case the state was restored to this
            rank's last commit.
        MismatchError, OperationTimeoutError: the ranks ask for different things, which another run would do as well.
        Whatever the training function raises.
    """
    return run_fn(func if loss_in is None else _with_own_errors(func, loss_in), _refuse)


def _with_own_errors(func: Callable[..., Any], loss_in: LossIn) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            loss = loss_in(error)
            if loss is None:
                raise
            raise loss from error

    return wrapper


def run_fn(func: Callable[..., Any], reset: Callable[[], Any]) -> Callable[..., Any]:
    """As `run`, for those who can make a job with other ranks.

    The function is called again whenever it ended with HorovodInternalError (the state is then restored) or
    HostsUpdatedInterrupt (the state is kept, and not synchronised if it says so).

    Args:
        func: the training function; its first argument is a `State`.
        reset: called without arguments before the function runs again, to leave the old job and enter the new one;
            `State.on_reset` follows.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except (MismatchError, OperationTimeoutError):
                raise  # the program's error, which would come again
            except HorovodInternalError:
                state.restore()
                skip_sync = False
                reset()
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                reset()
            state.on_reset()

    return wrapper


def _refuse() -> NoReturn:
    """The reset that does not exist yet. Called while what would make it necessary is handled."""
    cause = sys.exc_info()[1]
    if isinstance(cause, HostsUpdatedInterrupt):
        then = "The state is as it was when the change was noticed"
    else:
        then = "The state was restored to this rank's last commit"
    raise UnsupportedError(
        "hvdlite.elastic cannot yet replace, add or remove ranks of a running job, as it would have to now "
        f"({type(cause).__name__}: {cause}). {then}: catch UnsupportedError to save it to a file, and start the job again from "
        "there, on the hosts that are to take part"
    ) from cause
