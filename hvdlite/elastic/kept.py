"""Objects that an elastic state (`hvdlite.elastic.State`) keeps in place: other objects refer to them and would not see a copy.

For example, a scheduler refers to its optimizer, and a list of schedulers to each scheduler. An object that is kept in place
stays the same object, so references to it stay valid. Only its contents, such as its ``state_dict()``, are copied, restored and
sent.
"""

import copy
import gc
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hvdlite.errors import MismatchError

# Types whose objects are not searched, because a copy of such an object is the object itself, or it refers to no other object.
_SHARED = (type, types.ModuleType, types.FunctionType, types.CodeType, str, bytes, int, float, complex, type(None))


class StateHandler:
    """Keeps one kind of object in place. A subclass defines `save`, `restore` and `sync`; `save` is called first.

    The saved contents are an attribute of the handler. `save` and `sync` give this attribute a new value and do not change the
    old value, to which `all_or_none` may return.

    Args:
        value: the object.

    Attributes:
        value: the object.

    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Replaces the object by another one, and saves the new one. Horovod's handlers have this method, too."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Saves the object's present state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives the object the same state on all ranks, and saves this state. Collective over all ranks."""
        raise NotImplementedError


@contextmanager
def all_or_none(handlers: Sequence[StateHandler]) -> Iterator[None]:
    """A with statement in which handlers save. If an exception leaves it, every handler has again what it had saved before,
    because `restore` must not mix states of two moments.
    """
    before = [dict(vars(handler)) for handler in handlers]
    try:
        yield
    except BaseException:
        for handler, attributes in zip(handlers, before, strict=True):
            vars(handler).clear()
            vars(handler).update(attributes)
        raise


def has_state_dict(value: Any) -> bool:
    """Has the object the methods ``state_dict()`` and ``load_state_dict()``?"""
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict")) and kind is not type


def is_variable(value: Any) -> bool:
    """Is this a variable of TensorFlow or Keras?"""
    kind = type(value)
    return hasattr(kind, "assign") and hasattr(kind, "dtype")


def has_variables(value: Any) -> bool:
    """Is this a variable, or an object of Keras with variables (a model, layer, optimizer or metric)?"""
    kind = type(value)
    return is_variable(value) or (hasattr(kind, "variables") and hasattr(kind, "from_config") and kind is not type)


def _copies_itself(value: Any) -> bool:
    """Does the object's class define in Python how the object is copied? Then a copy may be the object itself, or lack some
    references, so the objects to which it refers are not searched.
    """
    kind = type(value)
    return any(
        isinstance(getattr(kind, name, None), types.FunctionType) for name in ("__deepcopy__", "__reduce__", "__reduce_ex__")
    )


class _Stand:
    """A placeholder, in the state that is sent, for an object that is kept in place."""

    def __getattr__(self, name: str) -> "_Method":
        if name.startswith("__"):  # pickle looks for special methods that do not exist
            raise AttributeError(name)
        return _Method(self, name)


class _Method:
    """A placeholder for a bound method of an object that is kept in place. Its copy is the bound method of the real object."""

    def __init__(self, stand: _Stand, name: str) -> None:
        self._stand = stand
        self._name = name

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(memo[id(self._stand)], self._name)


class Inventory:
    """The attributes of a state, and those objects behind them that are kept in place.

    Args:
        attributes: the attributes by name.
        handler_of: makes the handler of an object, or returns None. An object without a handler is kept in place if it has a
            ``state_dict()``; otherwise it is copied with the object that refers to it.

    Attributes:
        handlers: the handlers, in the order in which their objects were found.

    """

    def __init__(self, attributes: dict[str, Any], handler_of: Callable[[Any], StateHandler | None]) -> None:
        self.handlers: list[StateHandler] = []
        self._stateful: list[Any] = []
        self._tree: tuple[dict[str, Any], list[Any]] = (attributes, [])  # the attributes, and the states of `_stateful`
        self._find(handler_of)

    def _find(self, handler_of: Callable[[Any], StateHandler | None]) -> None:
        """Looks at all objects that a deep copy of the attributes would copy. If two ranks have equal attributes, they find the
        objects in the same order.
        """
        states = self._tree[1]
        pending: list[Any] = [self._tree[0]]
        seen = {id(self._tree[0]): self._tree[0]}  # holds the objects, so that no id is reused
        for tree in pending:
            for value in gc.get_referents(tree):
                if id(value) in seen or isinstance(value, _SHARED):
                    continue
                seen[id(value)] = value
                handler = handler_of(value)
                if handler is not None:
                    self.handlers.append(handler)
                elif has_state_dict(value):
                    self._stateful.append(value)
                    states.append(value.state_dict())
                    pending.append(states[-1])
                elif not _copies_itself(value):
                    pending.append(value)

    @property
    def _kept(self) -> list[Any]:
        return [*(handler.value for handler in self.handlers), *self._stateful]

    def save(self) -> None:
        """Copies the attributes, and the states of objects that are kept in place; all of them or none, see `all_or_none`."""
        with all_or_none(self.handlers):
            for handler in self.handlers:
                handler.save()
            self._tree = _copy(self._tree, self._kept, self._kept)

    def forget(self, name: str) -> None:
        """Drops an attribute whose value was replaced."""
        self._tree[0].pop(name, None)

    def restore(self) -> dict[str, Any]:
        """Restores the objects that are kept in place, and returns copies of the saved attributes."""
        for handler in self.handlers:
            handler.restore()
        return self._load(_copy(self._tree, self._kept, self._kept))

    def _load(self, tree: tuple[dict[str, Any], list[Any]]) -> dict[str, Any]:
        attributes, states = tree
        for value, state in zip(self._stateful, states, strict=True):
            value.load_state_dict(state)
        return attributes

    def sync(self, bcast_object: Callable[[Any], Any], rank: int) -> dict[str, Any]:
        """Gives objects that are kept in place rank 0's state, and returns rank 0's attributes. Collective.

        Raises:
            MismatchError: the names of the attributes, or the kinds of objects that are kept in place, differ from rank 0's.

        """
        kept = self._kept
        kinds = [type(value).__name__ for value in kept]
        stands = [_Stand() for _ in kept]
        names = sorted(self._tree[0])
        theirs = bcast_object((_copy(self._tree, kept, stands) if rank == 0 else None, stands, kinds, names))
        if names != theirs[3]:
            raise MismatchError(
                f"the elastic state has the attributes {theirs[3]} on rank 0, but {names} on rank {rank}; make it with the "
                "same names on every rank"
            )
        if kinds != theirs[2]:
            raise MismatchError(
                f"the elastic state of rank {rank} refers to {_listed(kinds)}, but that of rank 0 to {_listed(theirs[2])}: "
                "sync() replaces no objects that have a state of their own, so make the same ones on every rank"
            )
        with all_or_none(self.handlers):
            for handler in self.handlers:
                handler.sync()
        return self._load(_copy(theirs[0], theirs[1], kept))


def _copy(tree: Any, kept: Sequence[Any], replacements: Sequence[Any]) -> Any:
    """A deep copy, with replacements for the objects that are kept in place."""
    return copy.deepcopy(tree, {id(value): other for value, other in zip(kept, replacements, strict=True)})


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "none with a state of its own"
