"""Where one backward pass begins and ends, as autograd tells it.

Autograd runs a backward as a *graph task* with a number. Code that it calls (our hooks) can ask it to call something back
when the task is over. Three things make this less than obvious:

- Reentrant checkpointing runs a whole backward, a task of its own, inside a node of the outer one. The end of the inner task
  is not the end of the pass, and the outer task may never call a hook of ours. But when the inner task is destroyed, the
  outer one is current again on this thread: that is where `EndOfTask` moves on to it.
- A task that raises never calls back. It still destroys the callback, which therefore knows that it was not called.
- Compiled autograd may accept a callback and never call it. To us that looks like a task that raised.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType

import torch
from torch.autograd import Variable

from hvdlite._engine import PassDriver
from hvdlite.errors import HvdliteError

__all__ = ["TOO_MANY_PASSES", "EndOfTask", "current_task", "is_nested", "when_task_ends"]

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)

current_task: Callable[[], int] = torch._C._current_graph_task_id  # -1 outside of backward

# Python frames that start a graph task, and the frame through which a task calls a Python autograd Function.
_ENTRANCES: frozenset[CodeType] = frozenset({torch.autograd.backward.__code__, torch.autograd.grad.__code__})
_CALLED_BY_TASK: CodeType = torch.autograd.function.BackwardCFunction.apply.__code__


def is_nested(leaving: bool = False) -> bool:
    """Does the current graph task run inside a node of another one?

    A task that this cannot see through (one started from C++) counts as a pass of its own, which is right, only slower.

    Args:
        leaving: the current task's inner task is just being destroyed, and its frames are still on the stack.
    """
    frame = sys._getframe()
    entrances = 0
    needed = 2 if leaving else 1
    while frame is not None:
        code = frame.f_code
        if code in _ENTRANCES:
            entrances += 1
            if entrances > needed:
                return True
        elif entrances >= needed and code is _CALLED_BY_TASK:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def when_task_ends(callback: Callable[[], None]) -> bool:
    """Asks the current graph task to call back at its end; False if there is no task that would."""
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


class EndOfTask:
    """The callback given to one graph task. Once it waits it tells the reducer exactly one of three things."""

    __slots__ = ("_nested", "_over", "_reducer", "_stamp", "_waiting")

    def __init__(self, reducer: PassDriver, stamp: int, nested: bool) -> None:
        self._waiting = self._over = False
        self._reducer = reducer
        self._stamp = stamp  # of the pass it belongs to
        self._nested = nested

    def wait(self) -> None:
        """Waits for the end of the current task, if that tells of it; otherwise nothing is told."""
        if when_task_ends(self):
            self._waiting = True

    def __call__(self) -> None:
        """The task is over, and all its hooks have run. What the reducer raises, backward() raises."""
        self._waiting = False
        self._over = True
        if not self._nested:
            self._reducer.task_ended(self._stamp)

    def __del__(self) -> None:
        with suppress(HvdliteError):  # settle() meets the same error where it can be raised
            if getattr(self, "_waiting", False):  # nothing is there if Ctrl-C came before __init__
                self._reducer.task_lost(self._stamp)
            elif getattr(self, "_over", False) and self._nested:
                self._reducer.task_left(self._stamp)
