"""Divides things among a number of parts as evenly as possible, and gradients into groups.

The engine's function `part_of` is in csrc/collectives.
"""

from collections.abc import Sequence


def part_of(count: int, parts: int, number: int) -> range:
    """Part `number` of the indices 0 to ``count - 1``, if they are divided into `parts` runs of consecutive indices.

    The lengths of the runs differ by one at most, and the longer runs come first. This is also Horovod's rule.

    >>> [list(part_of(5, 3, number)) for number in range(3)]
    [[0, 1], [2, 3], [4]]
    >>> part_of(1, 2, 1)
    range(1, 1)
    """
    each, longer = divmod(count, parts)
    begin = number * each + min(number, longer)
    return range(begin, begin + each + (number < longer))


def partition(groups: Sequence[Sequence[int]] | None, present: Sequence[int]) -> list[list[int]]:
    """Divides the indices of gradients into the groups that are reduced together.

    Args:
        groups: lists of indices; None: all gradients are in one group.
        present: the indices of the gradients that are reduced, in order.

    Returns:
        The groups that are not empty. An index in no list is a group of its own.

    """
    if groups is None:
        return [list(present)] if present else []
    chosen = [[place for place in members if place in present] for members in groups]
    grouped = {place for members in chosen for place in members}
    return [members for members in chosen if members] + [[place] for place in present if place not in grouped]
