"""In what the ranks' descriptions of something differ, in words."""

from collections.abc import Sequence
from typing import Any

from hvdlite.config import format_ranks

__all__ = ["difference"]


def difference(descriptions: Sequence[Sequence[tuple[str, Any]]], ranks: Sequence[int]) -> str:
    """The first thing in which the ranks' descriptions differ, in words.

    Args:
        descriptions: of each rank, (name, what it is) in order.
        ranks: the ranks' numbers.

    """
    for place in range(max(map(len, descriptions))):
        found: dict[str, list[int]] = {}
        for rank, description in zip(ranks, descriptions, strict=True):
            if place < len(description):
                name, what = description[place]
                text = f"{name} is {what}"
            else:
                text = "missing"
            found.setdefault(text, []).append(rank)
        if len(found) > 1:
            return ", but ".join(f"{text} on {format_ranks(whose)}" for text, whose in found.items())
    return "the ranks differ"
