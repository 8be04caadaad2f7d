"""``horovod.runner.util.threads``: functions in threads of their own."""

import contextlib
import queue
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
    """Starts a function in a thread.

    Args:
        target: the function.
        args: its arguments, a tuple.
        name: of the thread.
        daemon: may the process end before the function does?
        silent: are exceptions of the function dropped?

    Returns:
        The thread, which runs.

    Raises:
        InvalidArgumentError: args is no tuple.
    """
    if not isinstance(args, tuple):
        raise InvalidArgumentError(f"in_thread: args must be a tuple, got {type(args).__name__}; one argument is (argument,)")

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
        event: what it waits for.
        func: the function.
        args: its arguments, a tuple.
        stop: an event after which the function is not called any more.
        check_stop_interval_s: how often the thread looks at it.
        daemon: may the process end before the thread does? Otherwise ``stop`` is needed.
        silent: are exceptions of the function dropped?

    Returns:
        The thread, which waits.

    Raises:
        InvalidArgumentError: there is no event, args is no tuple, or nothing could end a thread that is no daemon.
    """
    if event is None:
        raise InvalidArgumentError("on_event: event is None; pass the threading.Event to wait for")
    if stop is None and not daemon:
        raise InvalidArgumentError("on_event: a thread that is no daemon needs an event stop, or the process might not end")
    if not isinstance(args, tuple):
        raise InvalidArgumentError(f"on_event: args must be a tuple, got {type(args).__name__}; one argument is (argument,)")

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
        args_list: the arguments of each call.
        block_until_all_done: waits for all calls.
        max_concurrent_executions: the most threads.

    Returns:
        What each call has returned, by its place in ``args_list``; None if it does not wait.

    Raises:
        Exception: what a call has raised, where it waits for them; the first of them by their places.
    """
    if block_until_all_done:
        with ThreadPoolExecutor(max(1, min(max_concurrent_executions, len(args_list)))) as pool:
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
            fn(*args)

    for _ in range(min(max_concurrent_executions, len(args_list))):
        in_thread(work)
    return None
