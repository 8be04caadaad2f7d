"""A parameter that one rank owns, or of which several ranks own parts, and the rules by which parameters are divided."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from hvdlite.ownership import owners_of

# Parameters are cut at multiples of this number of elements. torch's kernels compute whole SIMD vectors of a tensor, and may
# round the elements that remain at its end in another way. If torch computes a tensor in one thread, these cuts have the effect
# that each element is rounded as in the whole parameter. If torch uses several threads, elements remain at the end of each
# thread's share, so some steps of 16-bit parameters give other bits than without sharding.
_ALIGNMENT = 64

# The rank at place p of the process set owns the elements from bounds[p] to bounds[p + 1] (exclusive), in the order of memory.
Bounds = tuple[int, ...]


def cut_evenly(sizes: Sequence[int], ranks: int) -> list[Bounds]:
    """Cuts the sequence of all parameters into about equal parts, one for each rank. For optimizers with elementwise steps.

    `sizes` are the numbers of elements of the parameters.
    """
    total = sum(sizes)
    cuts = [total * rank // ranks for rank in range(ranks + 1)]
    bounds, begin = [], 0
    for size in sizes:
        inside = [min(max(cut - begin, 0), size) for cut in cuts]
        bounds.append(tuple(cut if cut == size else cut // _ALIGNMENT * _ALIGNMENT for cut in inside))
        begin += size
    return bounds


def assign_largest_first(sizes: Sequence[int], ranks: int) -> list[Bounds]:
    """Gives each whole parameter to one rank (`owners_of`). For optimizers whose steps are not known to be elementwise."""
    owners = owners_of(sizes, ranks)
    return [(0,) * (owner + 1) + (size,) * (ranks - owner) for size, owner in zip(sizes, owners, strict=True)]


def order_of(tensor: torch.Tensor) -> list[int]:
    """The tensor's dimensions in the order of memory: the dimension with the largest stride is the first."""
    return sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory, as a view. The elements must lie in memory without gaps and overlaps."""
    return tensor.detach().permute(order_of(tensor)).view(-1)


@dataclass(eq=False)
class Sharded:
    """A parameter, and the part of it that each rank owns.

    Attributes:
        name: the unique name of the parameter, the same on all ranks. Checkpoints contain it.
        param: the parameter. It is whole on every rank, except during a step (`ShardedState`).
        bounds: see `Bounds`.
        place: this rank's place in the process set.
        strides: the parameter's strides when this object was made.
        order: the order of the parameter's dimensions in memory at that time (`order_of`).
        start: the first element of this rank's part, in the order of memory.
        stop: the first element after this rank's part.
        owners: the places of the ranks that own the parameter or a part of it; an empty parameter belongs to place 0.
        is_mine: does this rank own the parameter or a part of it?
        is_split: do several ranks own parts?
    """

    name: str
    param: torch.Tensor
    bounds: Bounds
    place: int

    def __post_init__(self) -> None:
        self.strides, self.order = self.param.stride(), order_of(self.param)
        self.start, self.stop = self.bounds[self.place : self.place + 2]
        ends = pairwise(self.bounds)
        self.owners = [place for place, (start, stop) in enumerate(ends) if start < stop] or [0]
        self.is_mine = self.place in self.owners
        self.is_split = len(self.owners) > 1

    def bytes_of(self, owner: int) -> int:
        """The size in bytes of the part that the rank at the place `owner` owns."""
        return (self.bounds[owner + 1] - self.bounds[owner]) * self.param.element_size()

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of a tensor of the parameter's shape, in one dimension and in the order of the parameter's memory.

        The result is a copy if the tensor's elements are in another order in memory than the parameter's.
        """
        return tensor.detach().permute(self.order).reshape(-1)

    def unflattened(self, flat: torch.Tensor) -> torch.Tensor:
        """The inverse of the method `flat`: a tensor of the parameter's shape and layout with these elements."""
        whole = torch.empty_like(self.param, dtype=flat.dtype, requires_grad=False)
        ordered = whole.permute(self.order)
        ordered.copy_(flat.view(ordered.shape))
        return whole

    def own_part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor of the parameter's shape; a copy if `flat` makes a copy."""
        return self.flat(tensor)[self.start : self.stop]
