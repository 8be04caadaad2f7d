"""The fixed fusion plan: it says which gradients are reduced together. It depends only on the parameters.

A bucket is a group for the engine: its members are negotiated and fused together, always in the same order. So the fused
layout, and the order of every addition, never depends on which gradient was ready first. This file has pure functions, and does
not import torch.
"""

from collections.abc import Hashable, Sequence

__all__ = ["cut_buckets"]


def cut_buckets(kinds: Sequence[Hashable], sizes: Sequence[int], limit: int, first_limit: int) -> list[list[int]]:
    """Cuts a sequence of tensors into buckets of one kind each.

    Args:
        kinds: the properties that the members of a bucket must share (dtype, device), for each tensor.
        sizes: bytes of each tensor.
        limit: the largest size of a bucket in bytes; a larger tensor has a bucket of its own.
        first_limit: the limit for the bucket of the first tensor; it is small so that communication starts early.

    Returns:
        The tensors' indices by bucket. Each bucket keeps their order, and buckets are ordered by their first tensor.
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
