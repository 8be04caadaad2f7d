"""Ends a process after an uncaught exception, and tells its peers first.

Otherwise the peers of a rank that raises an exception would wait, and the rank would hang in MPI_Finalize. So this module
sends the text of the exception to all peers, and then ends the process without finalising MPI.
"""

import atexit
import contextlib
import logging
import os
import sys
import threading
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdlite.runtime import Runtime

# The cause of a failure begins with this text if an exception has ended the program of the rank.
RAISED = "raised "
# The cause of a failure contains this text if a host is silent. The host's processes may still live.
SILENT = "has heard nothing for "


def install_excepthook(runtime: "Runtime") -> None:
    """Puts a hook of hvdlite in the place of the present ``sys.excepthook``, for exceptions of the main thread.

    hvdlite's hook prints the last operations of this rank and calls the previous hook; then the process tells its peers why it
    fails, and ends, after all hooks that were installed later. (The hook of torch.distributed collects what hvdlite's hook
    prints, and prints it.) In an interactive session, which continues after an exception, hvdlite's hook does nothing but call
    the previous hook; also if a program calls the hook for an exception that the program has caught.
    """
    previous = sys.excepthook
    # `_register_atexit` is not part of threading's public interface. When all hooks have returned, Python first calls the
    # functions that were registered with `_register_atexit`, the last registered function first. Python calls the functions of
    # atexit only after all non-daemon threads have ended, and these threads may wait for ever.
    register = getattr(threading, "_register_atexit", atexit.register)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ends = error is _uncaught() and runtime.is_armed()
        if ends:
            _flush()
            if record := runtime.record(error):
                with contextlib.suppress(Exception):  # as in `_flush`
                    print(f"hvdlite: last operations of this rank:\n{record}", file=sys.stderr)
        try:
            previous(kind, error, trace)
        finally:
            if ends:
                register(partial(_leave, runtime, error))

    sys.excepthook = hook


def _uncaught() -> BaseException | None:
    """The exception with which Python ends. Python sets it before it calls the hook."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))  # last_exc came with Python 3.12


def _leave(runtime: "Runtime", error: BaseException) -> None:
    """Announces the exception and ends the process at once: MPI_Finalize would wait for the peers."""
    try:
        _flush()  # now: when a peer ends because of the announcement, the launcher may kill this process
        kind, text = type(error).__name__, _text_of(error)
        runtime.announce(f"{RAISED}{kind}: {text}" if text else f"{RAISED}{kind}")
    finally:
        end_process()


def _text_of(error: BaseException) -> str:
    """The text of an exception, as a traceback shows it."""
    try:
        return printable(str(error))
    except Exception:
        return "<exception str() failed>"


def printable(text: str) -> str:
    """The text as a traceback shows it: the name of a file may have bytes that are no text, and they become escapes."""
    return text.encode(errors="backslashreplace").decode()


def end_process(code: int = 1) -> None:
    """Ends the process at once, with this exit code. No exit handler runs, so nothing finalises MPI."""
    _flush()
    os._exit(code)


def _flush() -> None:
    # A full disk, a closed stream, or a program's own stream or log handler that cannot be flushed must not prevent that the
    # peers learn why this process ends.
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
