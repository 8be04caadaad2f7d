"""Waiting in tests: for what can be observed, and at most until a deadline that no working machine reaches.

The deadline only turns a hang into a failure. Who comes first is settled by messages, events and what can be observed of a
thread or an engine, never by sleeping.
"""

import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

DEADLINE = 90.0  # seconds; less than the watchdog of a test under mpirun has
SANITIZED = "libasan" in Path("/proc/self/maps").read_text()  # under the address sanitizer native code takes ten times as long

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
_WAIT_AND_FLAGS = 0x80 | 0x100  # FUTEX_WAIT is 0


def eventually(condition: Callable[[], object]) -> bool:
    """Does the condition come true?"""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def waits_in_engine(thread: int) -> bool:
    """Does this thread (its native id) of this process sleep in a wait of the engine?

    It waits by FUTEX_WAIT; Python's locks wait by FUTEX_WAIT_BITSET.
    """
    try:
        call = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    except OSError:  # it has ended
        return False
    return call[0] == _FUTEX and int(call[2], 16) & ~_WAIT_AND_FLAGS == 0


def when_waiting(tell: Callable[[], object]) -> None:
    """Calls this in another thread as soon as the calling one waits in the engine."""
    waiter = threading.get_native_id()

    def look() -> None:
        if eventually(lambda: waits_in_engine(waiter)):
            tell()

    threading.Thread(target=look, daemon=True).start()


def interrupted(call: Callable[[], object], begun: Callable[[], bool] = lambda: True) -> None:
    """Runs a call that waits for ever in the main thread, and sees it end with KeyboardInterrupt at a signal.

    Args:
        call: what waits.
        begun: asked in another thread; the signal is sent when the call waits in the engine and this says yes.
    """
    over = threading.Event()
    seen: list[bool] = []

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        seen.append(eventually(lambda: over.is_set() or (begun() and waits_in_engine(main.native_id))))
        if not over.is_set():
            signal.pthread_kill(main.ident, signal.SIGALRM)

    def waits() -> None:
        thread.start()
        call()

    main = threading.main_thread()
    before = signal.signal(signal.SIGALRM, handler)
    thread = threading.Thread(target=send)
    try:
        with pytest.raises(KeyboardInterrupt):
            waits()
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)
    assert seen == [True], "the call was never seen to wait in the engine after it had begun"


def dawdle(turns: int) -> None:
    """Lets other threads and processes go before, so many times."""
    for _ in range(turns):
        os.sched_yield()
