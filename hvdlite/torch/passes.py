"""Reports to the reducer (`hvdlite.torch.reducer`) which graph task of autograd runs, whether it is nested, and when it ends.

From these reports `Passes` (csrc/bindings/python/passes.h) finds the beginning and the end of a backward pass.

Autograd runs a backward as a *graph task* with a number. Code that a task calls (hvdlite's hooks) can register a callback for
the end of the task. Three cases are not obvious:

- Reentrant checkpointing runs a whole backward, a task of its own, inside a node of an outer task's graph. The end of the inner
  task is not the end of the backward pass. But if the outer task calls no hook of hvdlite, no hook can register a callback for
  the end of the outer task. When the inner task is destroyed, the outer task is current again on this thread. At this moment
  `EndOfTask` reports the end of the inner task to the reducer, and the reducer registers a callback for the end of the outer
  task.
- A task that raises never calls the callback. The task still destroys the callback, and the callback then reports that it was
  not called.
- A task of compiled autograd can accept a callback and never call it. The reducer treats such a task as one that has raised.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType

import torch
from torch.autograd import Variable

from hvdlite._engine import PassDriver
from hvdlite.errors import HvdliteError

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)

current_task: Callable[[], int] = torch._C._current_graph_task_id  # -1 outside of backward

# The code of the functions that start a graph task, and of the function through which a task calls a Python autograd Function.
_ENTRANCES: frozenset[CodeType] = frozenset({torch.autograd.backward.__code__, torch.autograd.grad.__code__})
_CALLED_BY_TASK: CodeType = torch.autograd.function.BackwardCFunction.apply.__code__


def is_nested(leaving: bool = False) -> bool:
    """Does the current graph task run inside a node of another graph task?

    The answer comes from the Python frames on the stack. A task that was started from C++ has no such frames, and counts as a
    separate backward pass. Its gradients are correct, too, but their reduction takes longer.

    Args:
        leaving: is an inner task of the current task being destroyed? If so, the inner task's frames are still on the stack.
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
    """Registers a callback for the end of the current graph task. Returns False if there is no current task.

    True does not promise the call: a task that raises never calls the callback, and a task of compiled autograd can omit it.
    """
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


class EndOfTask:
    """The callback of one graph task.

    After `register` in a task it reports exactly one of three events to the reducer: the backward pass is over (`task_ended`),
    a nested task is over (`task_left`), or the task has ended without a call of this object (`task_lost`).
    """

    __slots__ = ("_nested", "_number", "_owed", "_reducer")

    def __init__(self, reducer: PassDriver, number: int, nested: bool) -> None:
        self._owed: Callable[[int], None] | None = None  # the report to make when this object is destroyed
        self._reducer = reducer
        self._number = number  # the number of the pass to which the task belongs
        self._nested = nested

    def register(self) -> None:
        """Registers this callback for the end of the current task. Does nothing outside of a task."""
        if when_task_ends(self):
            self._owed = self._reducer.task_lost

    def __call__(self) -> None:
        """Called by the task when it is over and all its hooks have run. An error of the reducer is raised by backward()."""
        self._owed = self._reducer.task_left if self._nested else None
        if not self._nested:
            self._reducer.task_ended(self._number)

    def __del__(self) -> None:
        owed = getattr(self, "_owed", None)  # no attribute exists if Ctrl-C came before __init__
        # Python only prints an error that __del__ raises, so an error of the reducer is dropped here. PassDriver.settle() later
        # does what the reducer could not do now, and raises the error.
        with suppress(HvdliteError):
            if owed is not None:
                owed(self._number)
