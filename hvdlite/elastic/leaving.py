"""A planned leave: after SIGTERM, a rank of elastic training leaves at its next commit, in a ``Job`` after a training step.

Schedulers send SIGTERM some time before they take a host away. The rank tells the others why it leaves, and they continue.
"""

import logging
import os
import signal
import threading
from types import FrameType, TracebackType

from hvdlite._native import load_native
from hvdlite.runtime import RUNTIME

_running: list["LeaveRequest"] = []  # the with statements that this process has entered


class LeaveRequest:
    """A with statement that notes SIGTERM, if the program has no handler for it. Outside of the main thread it notes nothing.

    Attributes:
        asked: has this process received SIGTERM?
    """

    def __init__(self) -> None:
        self.asked = False
        self._installed = False

    def __enter__(self) -> "LeaveRequest":
        # None means a native handler: hvdlite's own, which reports the end of the process.
        unused = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
        if unused and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)
            self._installed = True
        _running.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _running.remove(self)
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self.asked:
                os.kill(os.getpid(), signal.SIGTERM)  # the training is over, or has failed
            if RUNTIME.topology is not None and RUNTIME.topology.size > 1:
                load_native().speak_at_sigterm(RUNTIME.topology.rank, RUNTIME.topology.size)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def leave_if_asked(when: str) -> None:
    """If this process has received SIGTERM in elastic training, tells the other ranks why it leaves, and ends by SIGTERM.

    Args:
        when: a text such as ``after step 7``.
    """
    if not any(request.asked for request in _running):
        return
    logging.getLogger("hvdlite").warning("SIGTERM has asked this rank to leave, and it leaves %s", when)
    RUNTIME.announce(f"left {when}, because SIGTERM had asked it to")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
