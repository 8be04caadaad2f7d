"""The vocabulary of a request: kinds, reduce operators, names. Pure functions, no engine.

Ranks find each other's tensors by name. Named tensors may be submitted in any order. A counter names unnamed tensors, so all
ranks must make their unnamed calls of one kind on one process set in the same order.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from hvdlite.errors import InvalidArgumentError

# Plain ints with the same values as in Horovod.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Kind:
    """Operation kinds: the numbers of hvdlite.h."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ADD_PROCESS_SET = 7
    REMOVE_PROCESS_SET = 8
    SEND = 9
    RECV = 10


KIND_NAMES = tuple(name.lower() for name in vars(Kind) if name.isupper())


class Flag:
    """Bits of a request's flags: those of csrc/include/hvdlite/hvdlite.h."""

    ABSENT = 1
    WIRE_FLOAT16 = 2
    WIRE_BFLOAT16 = 4
    WEIGHTED = 8
    NOTICE = 16


class Request(NamedTuple):
    """One request, as the engine's ``submit`` takes it: a tuple in this order."""

    kind: int
    name: str | None  # None: the engine numbers it among the unnamed requests of its kind on its process set
    dtype: int = 0
    shape: Sequence[int] = ()
    input_ptr: int = 0
    output_ptr: int = 0
    op: int = Sum
    root: int = 0
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    group: str = ""
    group_size: int = 0
    group_index: int = 0
    splits: Sequence[int] = ()
    device: int = -1
    layout: int = 0
    flags: int = 0
    arena: int = 0
    stream: int = 0  # the CUDA stream in whose order GPU memory is ready
    tag: int = 0  # the tag of a send or a receive; `root` is then the other rank
    weight: float = 0.0  # this rank's weight, with Flag.WEIGHTED
    codec: int = 0  # this and the next two: `hvdlite.compression.Codec.fields`
    codec_between: int = 0
    codec_block: int = 0


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduce operator that ``op`` and the older ``average`` mean together.

    Args:
        op: one of the constants of this module, or None.
        average: Horovod's older spelling of Average (true) and Sum (false), or None. A deprecation warning names the line of
            the program that has called hvdlite.

    Raises:
        InvalidArgumentError: both are given, op is not an operator, or average is a text.
    """
    if type(op) is int and average is None and Average <= op <= Product:
        return op
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
        if isinstance(average, str):
            raise InvalidArgumentError(
                f"average={average!r} is neither True nor False; write name={average!r} to name the tensor"
            )
        warnings.warn(
            "Parameter `average` has been replaced with `op`: pass op=hvdlite.Average or op=hvdlite.Sum.",
            DeprecationWarning,
            stacklevel=_level_of_program(),
        )
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, bool) or not isinstance(op, int) or not Average <= op <= Product:
        raise InvalidArgumentError(f"op={op!r} is no reduce operator: pass hvdlite.Average, Sum, Adasum, Min, Max or Product")
    return op


def _level_of_program() -> int:
    """The `stacklevel` with which a warning of the calling function names the innermost line outside of hvdlite."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


_PACKAGE = os.path.dirname(__file__) + os.sep


def tensor_name(kind: int, name: str) -> str:
    """The key of negotiation: ``allreduce.<name>``. For a call without a name, ``<name>`` is ``noname.<number>``."""
    return f"{KIND_NAMES[kind]}.{name}"


def member_names(group: str, count: int) -> list[str]:
    """Names for the members of a group from the group's own name: ``<group>_1of3``, ``<group>_2of3``, ..."""
    return [f"{group}_{index + 1}of{count}" for index in range(count)]


def row_counts(splits: Sequence[int] | None, rows: int, ranks: int) -> list[int]:
    """The number of rows that an alltoall sends to each rank.

    Args:
        splits: the user's choice, one entry per rank of the process set, or None for equal parts.
        rows: the tensor's first dimension. If the splits add up to less, the last rows are not sent.
        ranks: size of the process set.

    Raises:
        InvalidArgumentError: the splits do not fit the rows or the ranks; or they are None, and equal parts are impossible.
    """
    if splits is None:
        if rows % ranks:
            raise InvalidArgumentError(
                f"splits not provided, but first dimension of tensor is not an even multiple of the number of workers. "
                f"({rows} rows, {ranks} ranks: pass splits with the rows for each rank)"
            )
        return [rows // ranks] * ranks
    counts = list(splits)
    if len(counts) != ranks:
        raise InvalidArgumentError(
            f"Number of entries in splits does not equal number of workers. ({len(counts)} entries, {ranks} ranks)"
        )
    if any(count < 0 for count in counts):
        raise InvalidArgumentError(f"splits={counts} has a negative entry; each is a number of rows to send")
    if sum(counts) > rows:
        raise InvalidArgumentError(
            f"Sum of splits entries is greater than the first dimension of tensor. ({sum(counts)} > {rows})"
        )
    return counts


def integers_of(splits: Any) -> list[int]:
    """The splits as a list, from a list, a tuple or a one-dimensional integer tensor of any framework.

    Raises:
        InvalidArgumentError: the argument is something else.
    """
    shape = getattr(splits, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InvalidArgumentError(f"alltoall expects a 1D splits tensor, got one of shape {list(shape)}")
    values = splits.tolist() if hasattr(splits, "tolist") else splits
    if not isinstance(values, list | tuple | range) or not all(hasattr(value, "__index__") for value in values):
        raise InvalidArgumentError(f"alltoall expects splits to be integers, one for each rank, got {splits!r}")
    return [value.__index__() for value in values]
