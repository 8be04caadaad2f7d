"""Numbers for the collectives that a future's callbacks start, as those of a communication hook of two steps do.

torch's collectives have no names, so a group numbers them in the order of the calls. A callback has no place in that order: it
runs in whichever thread completes its operation, or at once in the thread that attaches it if the operation has ended by then.
So each callback counts for itself. "7t2.1" is the first collective of the second callback (``then``) of collective 7's future,
and what ``then`` returns is a future with callbacks "7t2t1", "7t2t2", ... Ranks whose program is the same thus give a
collective the same number, whatever threads do.

torch's futures are not made to be derived from, so that their methods are replaced here, for all futures of the process; those
that do not come from a collective of ours go to torch's own at once. A future of ``torch.futures.collect_all`` is one of these:
what its callbacks start is numbered where they run.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Place", "current_place", "install", "origin", "unnumbered"]


class Place:
    """What counts collectives: a group's program, or one callback of a future.

    Args:
        group: whose future the callback is attached to.
        path: of the callback; empty for a program.
    """

    def __init__(self, group: str, path: str = "") -> None:
        self.lock = threading.Lock()  # held until the engine has accepted what has the number
        self._group = group
        self._path = path
        self._counts: dict[str, int] = {}  # by group
        self._callbacks = 0  # of the callback's own future

    def next(self, group: str) -> str:
        """With the lock: the number of the next collective of a group, which `use` takes."""
        number = str(self._counts.get(group, 0) + 1)
        if not self._path:
            return number
        return f"{self._path}.{number}" if group == self._group else f"{self._group}:{self._path}.{number}"

    def use(self, group: str) -> None:
        """With the lock: takes the number. A refused call does not use up one that the other ranks need."""
        self._counts[group] = self._counts.get(group, 0) + 1

    def callback(self) -> "Place":
        """The place of one more callback of this one's future."""
        with self.lock:
            self._callbacks += 1
            return Place(self._group, f"{self._path}t{self._callbacks}")


_RUNNING = threading.local()
_PLACES: "weakref.WeakKeyDictionary[Any, Place]" = weakref.WeakKeyDictionary()  # of futures


def current_place() -> Place | None:
    """Of the callback in which this thread is, if it is in one."""
    return getattr(_RUNNING, "place", None)


def origin(future: Any, group: str, path: str) -> None:
    """Says that a future is that of a group's collective with this number."""
    _PLACES[future] = Place(group, path)


def unnumbered(_future: Any) -> None:
    """The same of a future of two ranks alone: collectives that its callbacks start are numbered where they run."""


def install() -> None:
    """Puts the numbering of callbacks before the methods of torch's futures."""
    torchs: Any = torch._C.Future
    if getattr(torchs.then, "__module__", None) == __name__:
        return
    torchs_then, torchs_add = torchs.then, torchs.add_done_callback

    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        place = _PLACES.get(self)
        if place is None:
            return torchs_then(self, callback)
        own = place.callback()
        future = torchs_then(self, _at(own, callback))
        _PLACES[future] = own
        return future

    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        place = _PLACES.get(self)
        torchs_add(self, callback if place is None else _at(place.callback(), callback))

    torchs.then, torchs.add_done_callback = then, add_done_callback


def _at(place: Place, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(future: Any) -> Any:
        before, _RUNNING.place = current_place(), place
        try:
            return callback(future)
        finally:
            _RUNNING.place = before

    return run
