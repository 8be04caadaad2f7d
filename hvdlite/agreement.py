"""Compares descriptions that all ranks give. One exchange finds out whether they differ, and a second one where they differ."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from hvdlite.config import format_ranks, who_has
from hvdlite.dtypes import code_of_name
from hvdlite.errors import MismatchError
from hvdlite.objects import exchange_by_rank, exchange_object
from hvdlite.process_sets import ProcessSet, global_process_set


def compare(
    facts: Sequence[tuple[str, Any]], exchange: str, process_set: ProcessSet = global_process_set
) -> tuple[list[str], str]:
    """Compares the ranks' lists of facts, place by place. Collective over the process set.

    Args:
        facts: pairs (label, description), in order. Only descriptions are compared: labels may differ between ranks.
        exchange: name of the exchange, the same on all ranks.
        process_set: the ranks that take part.

    Returns:
        The labels of the first rank; and the first difference in words, or "" if there is none. All ranks get the same labels
        and the same text. Ranks that have joined are not compared.

    """
    labels = [label for label, _ in facts]
    digest = hashlib.sha256(repr([what for _, what in facts]).encode()).hexdigest()
    everyone = exchange_object((digest, labels), exchange, process_set)
    first: list[str] = everyone[0][1]
    if len({digest for digest, _ in everyone}) == 1:
        return first, ""
    shared = [*first, *labels[len(first) :]]
    mine = [(label, what) for label, (_, what) in zip(shared, facts, strict=False)]
    everyones = exchange_by_rank(mine, f"{exchange}.differs", process_set)
    return first, difference(everyones)


def name_of(variable: Any) -> str:
    """The name by which a user knows a variable of TensorFlow or Keras."""
    return str(getattr(variable, "path", variable.name))


def require_same_variables(
    operation: str, variables: Sequence[tuple[str, str, Sequence[int]]], process_set: ProcessSet = global_process_set
) -> None:
    """Checks that the ranks are about to broadcast the same variables. Collective over the process set.

    Args:
        operation: the name of the exchange, which error texts mention.
        variables: the name, dtype and shape of each variable. Names may differ between ranks.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the ranks have different numbers of variables, or variables of different shapes or dtypes.
        InvalidArgumentError: hvdlite cannot send the dtype of a variable; raised on all ranks.

    """
    facts = [(name, f"{dtype} {list(shape)}") for name, dtype, shape in variables]
    names, differing = compare(facts, f"{operation}.variables", process_set)
    if differing:
        raise MismatchError(
            f"{operation} in process set {process_set.process_set_id}: {differing}; pass the same variables in the same order "
            "on every rank (first build the same model and the same optimizer on every rank)"
        )
    for name, (_, dtype, _) in zip(names, variables, strict=True):
        code_of_name(dtype, f"variable {name!r} given to {operation}")


def only_on(names: Sequence[Sequence[str]], ranks: Sequence[int], most: int | None = None) -> str:
    """The names that some ranks lack, in words; "" if all ranks have the same names.

    Args:
        names: the names of each rank, in any order.
        ranks: the ranks' numbers, in the order of `names`.
        most: the largest number of names to list; the text counts the others. None lists all.

    """
    missing = []
    for name in sorted({name for mine in names for name in mine}):
        having = [rank for rank, mine in zip(ranks, names, strict=True) if name in mine]
        lacking = [rank for rank, mine in zip(ranks, names, strict=True) if name not in mine]
        if lacking:
            missing.append(f"{name!r} is on {format_ranks(having)}, but not on {format_ranks(lacking)}")
    listed = missing[:most]
    return "; ".join([*listed, f"and {len(missing) - len(listed)} more"] if len(listed) < len(missing) else listed)


def difference(descriptions: Mapping[int, Sequence[tuple[str, Any]]]) -> str:
    """The first difference between the ranks' descriptions, in words.

    Args:
        descriptions: for each rank, by its number, the pairs (name, description), in order.

    """
    for place in range(max(map(len, descriptions.values()))):
        found = {
            rank: "{} is {}".format(*description[place]) if place < len(description) else "missing"
            for rank, description in descriptions.items()
        }
        if len(set(found.values())) > 1:
            return who_has(found.items())
    return "the ranks differ"
