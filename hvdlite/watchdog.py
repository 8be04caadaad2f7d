"""Tells ranks that wait for this rank where this rank's program is: sends them the Python stack of its main thread.

The engine answers other ranks at any time, but it may not run Python. So a thread waits in native code, and takes
the GIL only when another rank asks.
"""

import functools
import sys
import sysconfig
import threading
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING

from hvdlite.failures import printable

if TYPE_CHECKING:
    from hvdlite._engine import Engine

# The largest number of frames in an answer (the innermost ones), and the largest number of characters.
_MOST_FRAMES = 20
_MOST_TEXT = 3500


def start(engine: "Engine") -> threading.Thread:
    """Starts the thread and returns it. The thread ends when the engine shuts down."""
    thread = threading.Thread(target=_serve, args=(engine,), name="hvdlite-watchdog", daemon=True)
    thread.start()
    return thread


def _serve(engine: "Engine") -> None:
    while engine.await_question():
        engine.answer_question(where_is_main())


def where_is_main() -> str:
    """One line with the stack of this process's main thread, from the outermost call to the innermost."""
    frame = main_frame()
    if frame is None:
        return "its main thread has ended"
    calls = _calls_of(frame)
    text = " > ".join(calls)
    if len(text) > _MOST_TEXT:
        text = "... " + text[-_MOST_TEXT:]
    return f"its main thread is at {text}"


@functools.lru_cache(1024)
def _shortened(file: str) -> str:
    return printable("/".join(PurePath(file).parts[-2:]))


def main_frame() -> FrameType | None:
    """The innermost frame of the main thread; None if the main thread has ended."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def own_calls_of(frame: FrameType | None) -> list[str]:
    """The calls of a stack, such as ``job/train.py:30 main``, from the outermost to the innermost, without those of libraries.

    The innermost call is always in the list. If no call is the program's own, the list has all calls. Of a deep stack the list
    has only the innermost calls.
    """
    inner, own = frame, False
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_FRAMES:
        mine = not _is_library(frame.f_code.co_filename)
        own = own or mine
        if mine or frame is inner:
            calls.append(_text_of(frame))
        frame = frame.f_back
    return calls[::-1] if own else _calls_of(inner)


@functools.lru_cache(1024)
def _is_library(file: str) -> bool:
    return file.startswith(("<frozen ", *_libraries()))


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of Python's own modules, of installed packages, and of hvdlite."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*{f"{sysconfig.get_path(name)}/" for name in names}, f"{PurePath(__file__).parent}/")


def _text_of(frame: FrameType) -> str:
    return f"{_shortened(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def _calls_of(frame: FrameType | None) -> list[str]:
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_FRAMES:
        calls.append(_text_of(frame))
        frame = frame.f_back
    if frame is not None:
        calls.append("...")
    return calls[::-1]
