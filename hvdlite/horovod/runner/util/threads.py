"""``horovod.runner.util.threads``: runs functions in threads."""

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdlite.errors import InvalidArgumentError

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Runs a function in a new thread.

    Args:
        target: the function.
        args: its arguments, a tuple.
        name: name of the thread; None: Python chooses it.
        daemon: True: the process may end before the function ends.
        silent: True: exceptions of the function are dropped.

    Returns:
        The running thread.

    Raises:
        InvalidArgumentError: `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise InvalidArgumentError(
            f"in_thread: args must be a tuple, got {type(args).__name__}; pass one argument as (argument,)"
        )

    def quiet() -> None:
        with contextlib.suppress(Exception):
            target(*args)

    thread = threading.Thread(target=quiet if silent else target, args=() if silent else args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a thread that waits for an event and then calls a function.

    Args:
        event: the event to wait for.
        func: the function.
        args: its arguments, a tuple.
        stop: an event that ends the thread without a call of the function; None: there is none.
        check_stop_interval_s: seconds from one check of `stop` to the next.
        daemon: True: the process may end before the thread ends. False needs `stop`.
        silent: True: exceptions of the function are dropped.

    Returns:
        The waiting thread.

    Raises:
        InvalidArgumentError: `event` is None, `args` is no tuple, or `daemon` is False and `stop` is None.
    """
    if event is None:
        raise InvalidArgumentError("on_event: event is None; pass the threading.Event to wait for")
    if stop is None and not daemon:
        raise InvalidArgumentError(
            "on_event: with daemon=False pass an event as stop, because otherwise the process might not end"
        )
    if not isinstance(args, tuple):
        raise InvalidArgumentError(
            f"on_event: args must be a tuple, got {type(args).__name__}; pass one argument as (argument,)"
        )

    def wait_and_call() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait_and_call, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls a function once for each of several lists of arguments, in threads.

    Args:
        fn: the function.
        args_list: a list of arguments for each call.
        block_until_all_done: True: wait for all calls. False: the process may end before the calls end, and an exception of a
            call goes to ``threading.excepthook``, which prints it.
        max_concurrent_executions: largest number of threads; a number below 1 counts as 1.

    Returns:
        The result of each call, by its index in `args_list`; None if `block_until_all_done` is False.

    Raises:
        Exception: (if `block_until_all_done` is True) a call failed; all calls have ended. If several calls fail, it is the
            exception of the failed call that is first in `args_list`.
    """
    threads = max(1, min(max_concurrent_executions, len(args_list)))
    if block_until_all_done:
        with ThreadPoolExecutor(threads) as pool:
            calls = [pool.submit(fn, *args) for args in args_list]
        return {place: call.result() for place, call in enumerate(calls)}
    waiting: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
    for args in args_list:
        waiting.put(args)

    def work() -> None:
        while True:
            try:
                args = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                fn(*args)
            except Exception:  # the other calls must still run
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    for _ in range(threads):
        in_thread(work)
    return None
