"""Finds objects of one kind among the attributes of a model and of its layers."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def held_by(model: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """Finds the objects for which `wanted` is true in attributes of a model and of its layers, also in lists and dicts there.

    Returns:
        The objects by path, such as ``"layer 2: heads[0]"``. Attributes of the model come before attributes of its layers. In
        the model and in each layer the attribute ``optimizer``, which `compile` sets, comes first, then the other public
        attributes, then the rest. So ranks with the same model get the same order. An object in several attributes has the
        path that comes first.

    """
    found: dict[str, Any] = {}
    known: set[int] = set()  # ids of the objects that have been found or searched
    for place, layer in enumerate(model._flatten_layers()):
        attributes = sorted(vars(layer).items(), key=lambda entry: _place(entry[0]))
        found.update(_among(attributes, wanted, known, "" if layer is model else f"layer {place}: "))
    return found


def _place(name: str) -> tuple[bool, bool, str]:
    return name != "optimizer", name.startswith("_"), name


def _among(
    entries: Iterable[tuple[str, Any]], wanted: Callable[[Any], bool], known: set[int], path: str
) -> Iterator[tuple[str, Any]]:
    """The wanted values of these entries (name, value), and of lists and dicts in the entries; each as (path, value)."""
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
