"""Ends a process after an uncaught exception: first tells its peers.

Without this, the peers of a rank that raises would wait, and the rank would hang in MPI_Finalize. So this module first sends
the exception's text to all peers, and then ends the process without finalising MPI.
"""

import atexit
import logging
import os
import sys
import threading
from functools import partial
from types import TracebackType
from typing import Protocol

__all__ = ["RAISED", "SILENT", "Announcer", "end_process", "install_excepthook"]

# Every cause that says so begins with it: the program has ended itself.
RAISED = "raised "
# And this is in each that blames the silence of a host, whose processes may still live.
SILENT = "has heard nothing for "


class Announcer(Protocol):
    """The methods of the runtime that the hook needs."""

    def is_armed(self) -> bool:
        """Would peers wait for this process?"""

    def record(self, error: BaseException) -> str:
        """The operations of this process that help to explain this error, unless they have been printed."""

    def announce(self, cause: str) -> None:
        """Tells the peers why this process ends."""


def install_excepthook(announcer: Announcer) -> None:
    """Adds hvdlite's step after the present ``sys.excepthook``, which handles the main thread's exceptions.

    Hooks that are installed later run before the process ends: torch.distributed's collects the output of this step and prints
    it itself. The step does nothing in an interactive session, which continues after an exception, and nothing if a program
    calls the hook for an exception that it has caught.
    """
    previous = sys.excepthook
    # This function is no part of threading's interface. Python calls it first when all hooks have returned, the last one
    # registered before the others. Functions of atexit come after the threads that are not daemons, and these may wait for
    # ever.
    register = getattr(threading, "_register_atexit", atexit.register)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ends = error is _uncaught() and announcer.is_armed()
        if ends:
            _flush()
            if record := announcer.record(error):
                print(f"hvdlite: last operations of this rank:\n{record}", file=sys.stderr)
        previous(kind, error, trace)
        if ends:
            register(partial(_leave, announcer, error))

    sys.excepthook = hook


def _uncaught() -> BaseException | None:
    """The exception with which Python ends. Python sets it before it calls the hook."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))  # last_exc came with Python 3.12


def _leave(announcer: Announcer, error: BaseException) -> None:
    """Announces the exception and ends the process at once: MPI_Finalize would wait for the peers."""
    try:
        _flush()  # now, because the launcher may end this process as soon as one of the told peers ends
        kind, text = type(error).__name__, str(error)
        announcer.announce(f"{RAISED}{kind}: {text}" if text else f"{RAISED}{kind}")
    finally:
        end_process()


def end_process(code: int = 1) -> None:
    """Ends the process at once, with this exit code. Skips everything that would finalise MPI."""
    _flush()
    os._exit(code)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
