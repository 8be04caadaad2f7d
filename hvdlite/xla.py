"""Describes the collectives of an XLA program, as text that csrc/bindings/xla reads when the program runs.

A compiled program passes only buffers to a function. So kinds, names, dtypes and shapes are fixed when the program is traced.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hvdlite.dtypes import code_of_name
from hvdlite.errors import (
    HorovodInternalError,
    HvdliteError,
    InvalidArgumentError,
    MismatchError,
    OperationTimeoutError,
    error_class,
)
from hvdlite.requests import Sum, member_names, tensor_name


@dataclass(frozen=True)
class TensorGroup:
    """Tensors that are agreed on and sent together.

    Attributes:
        kind: `Kind.ALLREDUCE` or `Kind.BROADCAST`: the result has the shape of the tensor.
        name: the name of the group, as for `hvdlite.grouped_allreduce`. It is the same in each run of the program.
        tensors: the name of the dtype and the shape of each tensor, in order.
        names: the names of the tensors in error texts; None numbers them from the group's name.
        op: the reduce operator.
        root: the root of a broadcast, as a rank of the whole job.
        process_set: the id of the process set.
        prescale: multiplies each rank's tensor.
        postscale: multiplies the result.
        weighted: is the operation a weighted mean? Then the call has one more operand after the tensors: this rank's weight.
        codec: the codec of an allreduce, from `hvdlite.compression.Codec.fields`; empty without a codec.

    """

    kind: int
    name: str
    tensors: Sequence[tuple[str, Sequence[int]]] = ()
    names: Sequence[str] | None = None
    op: int = Sum
    root: int = 0
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    weighted: bool = False
    codec: Mapping[str, int] = field(default_factory=dict)


def describe(groups: Sequence[TensorGroup]) -> str:
    """The text for one call with the tensors of all groups, in order.

    Raises:
        InvalidArgumentError: the engine does not know a dtype, a name is empty or has a line break, or the numbers of names
            and of tensors differ.
    """
    return "".join(line for group in groups for line in _lines(group))


def _lines(group: TensorGroup) -> list[str]:
    names = member_names(group.name, len(group.tensors)) if group.names is None else group.names
    if len(names) != len(group.tensors):
        raise InvalidArgumentError(f"group {group.name!r} has {len(group.tensors)} tensors, but {len(names)} names")
    factors = (float(group.prescale), float(group.postscale))
    head = (
        *(group.kind, group.op, group.root, group.process_set, *factors, int(group.weighted)),
        *(*(group.codec.values() or (0, 0, 0)), len(names)),
    )
    lines = [_line(head, group.kind, group.name)]
    for name, (dtype, shape) in zip(names, group.tensors, strict=True):
        lines.append(_line((int(code_of_name(dtype, f"tensor {name!r}")), len(shape), *shape), group.kind, name))
    return lines


def _line(numbers: Sequence[float], kind: int, name: str) -> str:
    if not name or "\n" in name or "\0" in name:
        raise InvalidArgumentError(f"name={name!r}: a collective in a compiled program needs a name, on one line")
    return f"{' '.join(map(repr, numbers))} {tensor_name(kind, name)}\n"


def failure_in(error: BaseException) -> HvdliteError | None:
    """The engine's error in the text of XLA's error, or None if the text contains none."""
    # After the engine's error, the text of the framework follows, on the same line and on further lines.
    found = re.search(r"hvdlite error (\d+): (.*?)(?: \[Op:[^\]]*\])?$", str(error), re.MULTILINE)
    return error_class(int(found[1]))(found[2]) if found else None


def loss_in(error: BaseException) -> HorovodInternalError | None:
    """As `failure_in`, but only for errors after which elastic training continues; not after a deadlock, for example."""
    failure = failure_in(error)
    if isinstance(failure, MismatchError | OperationTimeoutError):
        return None
    return failure if isinstance(failure, HorovodInternalError) else None
