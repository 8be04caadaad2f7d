"""What a model and its layers hold as attributes, found by what it is."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["held_by"]


def held_by(model: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The attributes of a model and of its layers that are wanted, in lists and dicts too, by where they are.

    The model's own come first, and of each those with public names. The order is the same on all ranks that hold the same.
    """
    found: dict[str, Any] = {}
    known: set[int] = set()  # ids of what has been found and looked through
    for place, layer in enumerate(model._flatten_layers()):
        attributes = sorted(vars(layer).items(), key=lambda entry: (entry[0].startswith("_"), entry[0]))
        found.update(_among(attributes, wanted, known, "" if layer is model else f"layer {place}: "))
    return found


def _among(
    entries: Iterable[tuple[str, Any]], wanted: Callable[[Any], bool], known: set[int], path: str
) -> Iterator[tuple[str, Any]]:
    """What is wanted of (name, value), and of the lists and dicts among them."""
    for name, value in entries:
        found = wanted(value)
        if id(value) in known or not (found or isinstance(value, dict | list | tuple)):
            continue
        known.add(id(value))
        if found:
            yield path + name, value
        else:
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            yield from _among([(f"[{key!r}]", each) for key, each in inside], wanted, known, path + name)
