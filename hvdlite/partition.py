"""Divides things among a number of parts as evenly as possible. The engine's function of this name is in csrc/collectives."""

__all__ = ["part_of"]


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
