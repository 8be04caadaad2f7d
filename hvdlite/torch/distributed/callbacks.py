"""Numbers the collectives that the callbacks of a future start. For example, a communication hook of DDP with two collectives
starts the second one in a callback.

torch's collectives have no names, so a group numbers them in the order of the calls. A callback has no fixed place in that
order: it runs in the thread that completes the future, or, if the future is complete already, in the thread that attaches
the callback. So each callback has its own count of collectives, and a *path* with which the numbers of these collectives begin.
For example, the second callback of collective 7's future has the path "7t2", and the first collective of this callback has the
number "7t2.1". If ``then`` attached this callback, ``then`` returned another future, whose callbacks have the paths "7t2t1",
"7t2t2", ... So ranks with the same program give a collective the same number, in whatever order their threads run.

torch's C++ code makes most futures, such as those that ``then`` returns. It uses torch's class for them, and never a class that
derives from torch's class. So this module replaces the methods of torch's class, for all futures of the process. For a future
that does not come from a collective of hvdlite, such as a future of ``torch.futures.collect_all``, the new methods only call
the methods of torch. If a callback of such a future starts collectives, they are counted with the collectives of the program,
or with those of the numbered callback that the thread runs at this moment.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch


class CallCounter:
    """Counts collectives and callbacks, so that each gets a number.

    A program has one counter for each group, which counts the group's collectives outside of numbered callbacks. The counter of
    a collective's future counts the callbacks of this future. The counter of a callback counts both: the collectives that the
    callback starts, and the callbacks of the future that ``then`` returned when it attached the callback.

    Args:
        group: the key of the group. The counter of a future or a callback has the group of the future's collective.
        path: the number of the collective, such as "7", or the path of the callback, such as "7t2"; empty for a program.
    """

    def __init__(self, group: str, path: str = "") -> None:
        self.lock = threading.Lock()  # for the counts; held from `next` until the engine has accepted the collective
        self._group = group
        self._path = path
        self._counts: dict[str, int] = {}  # the number of collectives, by group
        self._callbacks = 0  # the number of callbacks of the future: see `callback`

    def next(self, group: str) -> str:
        """Returns the number of the group's next collective. The caller must hold `lock`.

        Until `use` is called, all calls for a group return the same number. The number of a callback's collective begins with
        the callback's path. If the callback belongs to another group than the collective, the key of the callback's group
        stands before the path.
        """
        number = str(self._counts.get(group, 0) + 1)
        if not self._path:
            return number
        return f"{self._path}.{number}" if group == self._group else f"{self._group}:{self._path}.{number}"

    def use(self, group: str) -> None:
        """Notes that a collective has taken the number from `next`. The caller must hold `lock`.

        Do not call this method if the engine refused the collective: the program may call the collective again, and then the
        collective needs the same number.
        """
        self._counts[group] = self._counts.get(group, 0) + 1

    def callback(self) -> "CallCounter":
        """Makes the counter of a new callback of a future. Call this method on the future's counter.

        The future must come from a collective of hvdlite, or from ``then``.
        """
        with self.lock:
            self._callbacks += 1
            return CallCounter(self._group, f"{self._path}t{self._callbacks}")


_RUNNING = threading.local()
_COUNTERS: "weakref.WeakKeyDictionary[Any, CallCounter]" = weakref.WeakKeyDictionary()  # of futures


def current_counter() -> CallCounter | None:
    """The counter of the callback that this thread runs; None outside of callbacks."""
    return getattr(_RUNNING, "counter", None)


def origin(future: Any, group: str, path: str) -> None:
    """Notes that `future` belongs to the group's collective with the number `path`."""
    _COUNTERS[future] = CallCounter(group, path)


def unnumbered(_future: Any) -> None:
    """Does nothing. Sends and receives use it in place of `origin`. So the collectives that their callbacks start are counted
    with the collectives of the program, or with those of the numbered callback that the thread runs at this moment.
    """


def install() -> None:
    """Replaces the methods of torch's futures by methods that number callbacks."""
    future_type: Any = torch._C.Future
    if getattr(future_type.then, "__module__", None) == __name__:
        return
    torch_then, torch_add = future_type.then, future_type.add_done_callback

    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        counter = _COUNTERS.get(self)
        if counter is None:
            return torch_then(self, callback)
        own = counter.callback()
        future = torch_then(self, _counting(own, callback))
        _COUNTERS[future] = own
        return future

    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        counter = _COUNTERS.get(self)
        torch_add(self, callback if counter is None else _counting(counter.callback(), callback))

    future_type.then, future_type.add_done_callback = then, add_done_callback


def _counting(counter: CallCounter, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(future: Any) -> Any:
        before, _RUNNING.counter = current_counter(), counter
        try:
            return callback(future)
        finally:
            _RUNNING.counter = before

    return run
