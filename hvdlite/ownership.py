"""Which rank owns which parameter, where each is stepped by one rank (`shard=True` of the optimizers)."""

from collections.abc import Sequence

__all__ = ["owners_of"]


def owners_of(sizes: Sequence[int], ranks: int) -> list[int]:
    """Gives each parameter to one rank: the largest first, always to the rank that has the least."""
    load = [0] * ranks
    owners = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        owners[place] = owner = load.index(min(load))
        load[owner] += sizes[place]
    return owners
