"""Waits in tests: for a state that can be observed, and at most until a deadline that no working machine reaches.

The deadline only turns a hang into a failure. Tests order threads and processes by messages, events and the observed states of
a thread or an engine, never by sleeping.
"""

import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

DEADLINE = 90.0  # seconds; it is shorter than the watchdog of a test under mpirun
SANITIZED = "libasan" in Path("/proc/self/maps").read_text()  # under the address sanitizer native code takes ten times as long

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
_WAIT_AND_FLAGS = 0x80 | 0x100  # FUTEX_WAIT is 0


def eventually(condition: Callable[[], object]) -> bool:
    """Waits until the condition holds. Returns false if it does not hold before the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def waits_in_engine(thread: int) -> bool:
    """Does the thread with this native id sleep in a wait of the engine?

    The engine waits by FUTEX_WAIT, while Python's locks wait by FUTEX_WAIT_BITSET.
    """
    try:
        call = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    except OSError:  # the thread has ended
        return False
    return call[0] == _FUTEX and int(call[2], 16) & ~_WAIT_AND_FLAGS == 0


def when_waiting(tell: Callable[[], object]) -> None:
    """Calls `tell` in another thread as soon as the calling thread waits in the engine."""
    waiter = threading.get_native_id()

    def look() -> None:
        if eventually(lambda: waits_in_engine(waiter)):
            tell()

    threading.Thread(target=look, daemon=True).start()


def interrupted(call: Callable[[], object], begun: Callable[[], bool] = lambda: True) -> None:
    """Runs a call in the main thread that would wait forever, sends a signal, and checks that the call raises
    KeyboardInterrupt.

    Args:
        call: the function that waits.
        begun: a function that is called in another thread. The signal is sent when `call` waits in the engine and this function
            returns true.
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
    """Lets other threads and processes run first, `turns` times."""
    for _ in range(turns):
        os.sched_yield()
