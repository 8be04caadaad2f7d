"""How long things may take in tests: the promise, times what a machine that other jobs share may be slower.

A limit only tells what is late from what never comes. Who comes first is settled by messages and events, never by sleeping.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

BUSY = 10.0
SANITIZED = "libasan" in Path("/proc/self/maps").read_text()  # under the address sanitizer native code takes ten times as long


def limit(promised: float) -> float:
    """Seconds to allow for what takes at most `promised` on a machine that has nothing else to do."""
    return BUSY * promised


def eventually(condition: Callable[[], bool], promised: float = 5.0) -> bool:
    """Does the condition come true, within the limit for so many seconds?"""
    deadline = time.monotonic() + limit(promised)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def interrupted(call: Callable[[], object], begun: Callable[[], bool] = lambda: True) -> None:
    """Runs a call that waits for ever in the main thread, and sees it end with KeyboardInterrupt soon after a signal.

    Args:
        call: what waits.
        begun: asked in another thread; the signal is sent a moment after it first said yes.
    """
    sent: list[float] = []
    over = threading.Event()

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        while not begun() and not over.is_set():
            time.sleep(0.001)
        if not over.wait(0.2):  # most likely it waits by now; if not, it is interrupted all the same
            sent.append(time.monotonic())
            signal.pthread_kill(main, signal.SIGALRM)

    def waits() -> None:
        thread.start()
        call()

    main = threading.main_thread().ident or 0
    before = signal.signal(signal.SIGALRM, handler)
    thread = threading.Thread(target=send)
    try:
        with pytest.raises(KeyboardInterrupt):
            waits()
        assert time.monotonic() - sent[0] < limit(0.5)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)
