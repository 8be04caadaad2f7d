"""The arguments that the tape and the optimizers share. They are checked before a tape or an optimizer is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvdlite.checks import check_predivide, check_type_of_set
from hvdlite.compression import Compression, check_compression
from hvdlite.errors import InvalidArgumentError
from hvdlite.partition import part_of
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import OP_NAMES, Adasum, Average, Sum, resolve_op
from hvdlite.tensorflow.gradients import Gradient, allreduce_gradients
from hvdlite.tensorflow.variables import identity_of


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced: the user's arguments.

    Attributes:
        op: Average (also if None is given), Sum or Adasum.
        gradient_predivide_factor: with Average, a factor that divides the gradients before the sum and multiplies the result.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec, or `Compression.auto`.
        sparse_as_dense: True: make IndexedSlices dense.
        groups: lists of variables whose gradients are reduced together, or a number of groups; None or 0: no groups.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: an argument is wrong, or two arguments exclude each other.
        UnsupportedError: the compression keeps state from one training step to the next.

    """

    op: int = Average
    gradient_predivide_factor: float = 1.0
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", resolve_op(self.op, None))
        if self.op not in (Average, Sum, Adasum):
            raise InvalidArgumentError(f"gradients are reduced with op=Average, op=Sum or op=Adasum, not {OP_NAMES[self.op]}")
        check_predivide(self.gradient_predivide_factor, self.op)
        check_compression(self.compression)
        _check_groups(self.groups)
        check_type_of_set(self.process_set)

    def apply(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], names: Sequence[str], weight: tf.Tensor | None = None
    ) -> list[Gradient]:
        """The reduced gradients of these variables, see `allreduce_gradients`. Collective over `process_set`."""
        return allreduce_gradients(
            gradients,
            names,
            op=self.op,
            prescale_factor=1.0 / self.gradient_predivide_factor,
            postscale_factor=self.gradient_predivide_factor,
            compression=Compression.none if self.compression is None else self.compression,
            sparse_as_dense=self.sparse_as_dense,
            groups=self._places(variables),
            process_set=self.process_set,
            weight=weight,
        )

    def _places(self, variables: Sequence[Any]) -> list[list[int]] | None:
        """The user's groups, as lists of indices of `variables`."""
        if not self.groups:
            return None
        if isinstance(self.groups, int):
            return [list(part_of(len(variables), self.groups, group)) for group in range(self.groups)]
        group_of = {identity_of(member): index for index, members in enumerate(self.groups) for member in members}
        chosen: list[list[int]] = [[] for _ in self.groups]
        for place, variable in enumerate(variables):
            index = group_of.get(identity_of(variable))
            if index is not None:
                chosen[index].append(place)
        return chosen


def _check_groups(groups: Any) -> None:
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0):
        return
    if not isinstance(groups, list | tuple) or not all(isinstance(members, list | tuple) for members in groups):
        raise InvalidArgumentError("groups should be a non-negative integer or a list of lists of tf.Variable")
    seen = [identity_of(member) for members in groups for member in members]
    if len(set(seen)) != len(seen):
        raise InvalidArgumentError("a variable can only appear once in groups")
