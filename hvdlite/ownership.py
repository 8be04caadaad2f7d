"""Decides which rank owns which parameter, where only one rank updates each parameter (`shard=True` of the optimizers).

Source: the rule "longest processing time first", Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied
Mathematics, 1969.
"""

from collections.abc import Sequence


def owners_of(sizes: Sequence[int], ranks: int) -> list[int]:
    """The owner of each parameter. The parameters are assigned from the largest to the smallest: each goes to the rank whose
    parameters so far have the smallest sum of sizes.
    """
    load = [0] * ranks
    owners = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        owners[place] = owner = load.index(min(load))
        load[owner] += sizes[place]
    return owners
