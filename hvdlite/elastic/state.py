"""The state of a training function: a program can save and restore it, and make it equal on all ranks."""

import queue
from collections.abc import Callable, Iterable, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from hvdlite.elastic.kept import Inventory, StateHandler, has_state_dict
from hvdlite.elastic.leaving import leave_if_asked
from hvdlite.elastic.recovery import spare_has_news
from hvdlite.errors import HostsUpdatedInterrupt, InvalidArgumentError

__all__ = ["HostUpdateResult", "ObjectState", "State"]


class HostUpdateResult(IntFlag):
    """The changes of a job's hosts; Horovod's numbers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The interface of a state. Subclasses define by `save`, `restore` and `sync` what the state keeps.

    Args:
        bcast_object: a function that gives all ranks an object of rank 0, such as `hvdlite.broadcast_object`.
        get_rank: a function that returns this process's rank, such as `hvdlite.rank`.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments, which `on_reset` calls, to change what depends on the number of ranks.

        These functions must not call collectives, because a spare that becomes a rank does not call these functions.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks of the job have changed, before the training function runs again."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Records that the hosts have changed. Any thread may call this method. Only calls on rank 0 count, because rank 0
        decides for all ranks in `check_host_updates`.

        Args:
            timestamp: a number that grows with each call.
            update_res: a `HostUpdateResult`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then calls `check_host_updates`. Collective over all ranks.

        A rank that has got SIGTERM in elastic training ends here, after it has saved the state.

        Raises:
            HostsUpdatedInterrupt: as for `check_host_updates`.
        """
        self.save()
        leave_if_asked("after a commit")
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends the training function if rank 0 knows of changed hosts, or of a spare that is ready. Collective over all ranks.

        Raises:
            HostsUpdatedInterrupt: (on all ranks) rank 0 knows of changed hosts, or a spare is ready.
        """
        before = latest = self._last_updated
        result = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                result |= HostUpdateResult(update)
        before, self._last_updated, result, spare = self._bcast_object((before, latest, result, spare_has_news()))
        if spare or self._last_updated > before:
            raise HostsUpdatedInterrupt(skip_sync=result == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves the present state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves this state. Collective over all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: renews what depends on the ranks, after the ranks have changed."""


class ObjectState(State):
    """Keeps Python objects, which are its attributes.

    An object with ``state_dict()`` and ``load_state_dict()`` is kept in place, even if an attribute refers to it only
    through other objects: its ``state_dict()`` is saved, restored and sent, and references to the object stay valid. Everything
    else is copied (``copy.deepcopy``) by `save` and `restore`, and pickled by `sync`.

    Args:
        bcast_object: as for `State`.
        get_rank: as for `State`.
        **kwargs: names and first values of the attributes.

    Raises:
        InvalidArgumentError: a name is one of the state's own methods.
    """

    _saved: Sequence[Inventory] = ()
    _names: Sequence[str] = ()

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        for name in kwargs:
            if hasattr(ObjectState, name):
                raise InvalidArgumentError(f"a {type(self).__name__} has a method {name!r}: give the attribute another name")
        self._set_attributes(kwargs)
        self._names = tuple(kwargs)
        ObjectState.save(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute. If the new value is an object that is kept in place, its state is saved at once."""
        super().__setattr__(name, value)
        if name in self._names and (has_state_dict(value) or self._handler_of(value) is not None):
            added = self._inventory([name])
            added.save()
            for inventory in self._saved:
                inventory.forget(name)
            self._saved = [*self._saved, added]

    def save(self) -> None:
        """Copies the attributes, for `restore`."""
        inventory = self._inventory(self._names)
        inventory.save()
        self._saved = [inventory]

    def restore(self) -> None:
        """Sets the attributes to copies of the last saved values."""
        for inventory in self._saved:
            self._set_attributes(inventory.restore())

    def sync(self) -> None:
        """Sets the attributes to rank 0's present values, and saves them. Collective over all ranks.

        Raises:
            MismatchError: the names of this rank's attributes, or the kinds of objects that are kept in place, differ from
                rank 0's. Ranks that do not differ from rank 0 go on, and learn of the error when this rank ends.
            Whatever `bcast_object` raises.

        """
        self._set_attributes(self._inventory(self._names).sync(self._bcast_object, self._rank()))
        ObjectState.save(self)

    def _handler_of(self, value: Any) -> StateHandler | None:
        """For subclasses: the handler of an object, if not ``state_dict()`` is to keep it in place; otherwise None."""
        return None

    def _inventory(self, names: Iterable[str]) -> Inventory:
        known = {id(handler.value): handler for inventory in self._saved for handler in inventory.handlers}
        attributes = {name: getattr(self, name) for name in sorted(names)}  # in one order on all ranks
        return Inventory(attributes, lambda value: known.get(id(value)) or self._handler_of(value))

    def _set_attributes(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            super().__setattr__(name, value)
