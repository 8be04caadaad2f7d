"""How a process ends badly: an uncaught exception is told to the peers before the process leaves.

A rank that raises would otherwise leave its peers waiting and itself hang in MPI_Finalize. So the exception's text goes
to all peers first, and then the process ends without finalising.
"""

import atexit
import logging
import os
import sys
import threading
from functools import partial
from types import TracebackType
from typing import Protocol

__all__ = ["Announcer", "end_process", "install_excepthook"]


class Announcer(Protocol):
    """What the hook needs of the runtime."""

    def is_armed(self) -> bool:
        """Are there peers that would wait for this process?"""

    def record(self, error: BaseException) -> str:
        """The operations of this process that tell more about its end by this error, unless they have been printed."""

    def announce(self, cause: str) -> None:
        """Tells the peers why this process ends."""


def install_excepthook(announcer: Announcer) -> None:
    """Puts hvdlite's step behind the present ``sys.excepthook``; the main thread's exceptions pass through there.

    What others put in front later runs to its end before the process leaves: torch.distributed's collects what is printed here,
    and prints it itself. The step does nothing in an interactive session, which goes on after an exception, nor where a program
    calls the hook for an exception that it has caught.
    """
    previous = sys.excepthook
    # Not part of threading's interface: what Python does first when all hooks have returned, the last one that was registered
    # before the others. What atexit has comes after the threads that are not daemons, and they may wait for what never comes.
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
    """The exception with which Python ends; it says so before it calls the hook."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))  # last_exc came with Python 3.12


def _leave(announcer: Announcer, error: BaseException) -> None:
    """Announces the exception and ends the process at once: MPI_Finalize would wait for the peers."""
    try:
        _flush()  # now, as the launcher may end this process when a peer that has been told goes first
        kind, text = type(error).__name__, str(error)
        announcer.announce(f"raised {kind}: {text}" if text else f"raised {kind}")
    finally:
        end_process()


def end_process() -> None:
    """Ends the process at once, with exit code 1: whatever would finalise MPI does not run."""
    _flush()
    os._exit(1)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
