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

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        interactive = hasattr(sys, "ps1") or sys.flags.interactive
        ends = _nobody_catches(error) and announcer.is_armed() and not interactive
        if ends:
            _flush()
            if record := announcer.record(error):
                print(f"hvdlite: last operations of this rank:\n{record}", file=sys.stderr)
        previous(kind, error, trace)
        if ends:
            # Not part of threading's interface: the first thing that Python does when all hooks have returned. What atexit has
            # comes after the threads that are not daemons, and they may wait for what never comes.
            leave = partial(_leave, announcer, kind, error)
            getattr(threading, "_register_atexit", atexit.register)(leave)

    sys.excepthook = hook


def _nobody_catches(error: BaseException) -> bool:
    """Is it the one with which Python ends? It says so before it calls the hook."""
    return error is getattr(sys, "last_exc", getattr(sys, "last_value", None))  # last_exc came with Python 3.12


def _leave(announcer: Announcer, kind: type[BaseException], error: BaseException) -> None:
    """Announces the exception and ends the process at once: MPI_Finalize would wait for the peers."""
    try:
        _flush()  # now, as the launcher may end this process when a peer that has been told goes first
        text = str(error)
        announcer.announce(f"raised {kind.__name__}: {text}" if text else f"raised {kind.__name__}")
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
