"""Divides a list of tensors into buckets: gradients that are reduced together, or small tensors (parameters, or slices that the
caller has cut from parameters) that are sent together. Each tensor of the list stays whole.

The division depends only on the limits, and on the order, the sizes and the kinds of the tensors. All of these are the same on
all ranks, so all ranks make the same buckets. A bucket of gradients is a group for the engine (unless a codec with state
reduces it): its members are negotiated and fused together, always in the same order. So the fused layout, and the order of
every addition, never depends on which gradient was ready first.
"""

from collections.abc import Hashable, Sequence


def cut_buckets(kinds: Sequence[Hashable], sizes: Sequence[int], limit: int, first_limit: int) -> list[list[int]]:
    """Cuts a list of tensors into buckets of one kind each.

    Args:
        kinds: the properties that the members of a bucket must share, such as dtype and device, for each tensor.
        sizes: the size of each tensor in bytes.
        limit: the largest size of a bucket in bytes; a larger tensor has a bucket of its own.
        first_limit: the limit for the bucket of the first tensor, if smaller than `limit`. A small first bucket is complete
            early, so communication starts early.

    Returns:
        For each bucket, its tensors' indices, in ascending order. The buckets are in the order of their first tensors.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    room: dict[Hashable, int] = {}
    for index, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        bucket = open_buckets.get(kind)
        if bucket is None or size > room[kind]:
            bucket = open_buckets[kind] = []
            room[kind] = limit if buckets else min(limit, first_limit)
            buckets.append(bucket)
        bucket.append(index)
        room[kind] -= size
    return buckets
