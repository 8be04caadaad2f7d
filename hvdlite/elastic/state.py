"""What a training function works on, so that it can be put back to an earlier point and be the same on all ranks."""

import copy
import queue
from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from hvdlite.errors import HostsUpdatedInterrupt, InvalidArgumentError, MismatchError

__all__ = ["HostUpdateResult", "ObjectState", "State"]


class HostUpdateResult(IntFlag):
    """What has become of the hosts of a job; Horovod's numbers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The interface. Subclasses say what is kept: `save`, `restore` and `sync`.

    Args:
        bcast_object: gives all ranks an object of rank 0, such as `hvdlite.broadcast_object`.
        get_rank: tells this process's rank, such as `hvdlite.rank`.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments that `on_reset` calls: for what depends on the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks of the job have changed, before the training function runs again."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Takes a note that the hosts have changed, from any thread; on rank 0, which decides for all in
        `check_host_updates`.

        Args:
            timestamp: grows with each note.
            update_res: a `HostUpdateResult`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then sees to `check_host_updates`. Collective over all ranks."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends the training function if rank 0 knows of changed hosts. Collective over all ranks.

        Raises:
            HostsUpdatedInterrupt: it does; on all ranks.
        """
        before = latest = self._last_updated
        result = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                result |= HostUpdateResult(update)
        before, self._last_updated, result = self._bcast_object((before, latest, result))
        if self._last_updated > before:
            raise HostsUpdatedInterrupt(skip_sync=result == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the present state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it. Collective over all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: what has to be made anew when the ranks have changed."""


class ObjectState(State):
    """Keeps Python objects, which are its attributes.

    They are copied (``copy.deepcopy``) when they are saved and restored, and pickled by `sync`.

    Args:
        bcast_object: as for `State`.
        get_rank: as for `State`.
        **kwargs: names and first values of the attributes.

    Raises:
        InvalidArgumentError: a name is one of the state's own methods.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        for name in kwargs:
            if hasattr(ObjectState, name):
                raise InvalidArgumentError(f"a {type(self).__name__} has a method {name!r}: give the attribute another name")
        self._saved_state = kwargs
        self._set_attributes()
        ObjectState.save(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def save(self) -> None:
        """Copies the attributes, for `restore`."""
        self._saved_state = copy.deepcopy(self._present())

    def restore(self) -> None:
        """Sets the attributes to copies of what was saved last."""
        self._set_attributes()
        self._saved_state = copy.deepcopy(self._saved_state)

    def sync(self) -> None:
        """Sets the attributes to what they are on rank 0 at present, and saves them. Collective over all ranks.

        Raises:
            MismatchError: (on ranks that differ from rank 0) the state has other attributes there.
        """
        mine, self._saved_state = sorted(self._saved_state), self._bcast_object(self._present())
        if mine != sorted(self._saved_state):
            raise MismatchError(
                f"{type(self).__name__}.sync(): the state has the attributes {sorted(self._saved_state)} on rank 0, but {mine} "
                f"on rank {self._rank()}; make it with the same names on every rank"
            )
        self._set_attributes()
        ObjectState.save(self)

    def _present(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)
