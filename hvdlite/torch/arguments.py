"""Checks the arguments of `DistributedOptimizer` before anything is changed, and finds lazy parameters without a shape."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from hvdlite.checks import check_predivide
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import OP_NAMES, Adasum, Average, Sum, resolve_op
from hvdlite.torch.plan import Groups


def checked_op(op: int, predivide: float, average_passes: bool, process_set: ProcessSet) -> int:
    """Checks the reduce operator and the arguments that depend on it. Returns the number of the operator.

    Raises:
        InvalidArgumentError: gradients cannot be reduced with this op, or this op does not allow the other arguments.
        UnsupportedError: the op is Adasum, and the number of ranks is not a power of two.

    """
    op = resolve_op(op, None)
    if op not in (Average, Sum, Adasum):
        raise InvalidArgumentError(
            f"DistributedOptimizer reduces gradients with op=Average, op=Sum or op=Adasum, not with op={OP_NAMES[op]}"
        )
    if op == Adasum:
        ranks = process_set.size() or 1
        if ranks & (ranks - 1):
            raise UnsupportedError(
                f"Running Adasum with non-power of 2 ranks is not supported yet. (Process set {process_set.process_set_id} "
                f"has {ranks} ranks; use op=Average, or a process set of {1 << (ranks.bit_length() - 1)})"
            )
        if average_passes:
            raise InvalidArgumentError(
                "average_aggregated_gradients needs op=Average or op=Sum; with op=Adasum divide the loss yourself"
            )
    check_predivide(predivide, op)
    return op


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters with their names, in the order of `named_parameters`.

    Without `named_parameters` the order is that of the optimizer's groups, and a name consists of the group's place and the
    parameter's place in the group.

    Raises:
        InvalidArgumentError: `named_parameters` are no pairs, have a name twice, or lack a parameter of the optimizer; or a
            parameter has no shape yet.

    """
    found = {
        id(param): (f"{group_place}.{place}", param)
        for group_place, group in enumerate(optimizer.param_groups)
        for place, param in enumerate(group["params"])
    }
    if named_parameters is None:
        require_initialized(found.values())
        return list(found.values())
    given = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters()."
        )
    duplicates = [name for name, count in Counter(name for name, _ in given).items() if count > 1]
    if duplicates:
        raise InvalidArgumentError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, param in given:
        if id(param) in found:
            named.setdefault(id(param), (name, param))
    missing = [place for key, (place, _) in found.items() if key not in named]
    if missing:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named. In the optimizer's parameter "
            f"groups they are (group.place): {', '.join(missing)}"
        )
    require_initialized(named.values())
    return list(named.values())


def require_initialized(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises InvalidArgumentError if a parameter or buffer belongs to a lazy layer and has no shape yet."""
    lazy = [repr(name) for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise InvalidArgumentError(
            f"{', '.join(lazy)}: each belongs to a lazy layer that has seen no batch yet, so it has no shape. First call the "
            "model with a batch, on all ranks (in evaluation mode, so that no statistics change)"
        )


def name_groups(groups: Any, named: Sequence[tuple[str, torch.Tensor]]) -> Groups:
    """The user's groups, with names instead of parameters. None and a number of groups are returned as they are.

    Raises:
        InvalidArgumentError: the groups are neither a number above 0 nor lists of parameters; or a member is not a parameter of
            this optimizer; or a parameter is a member twice.

    """
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    if not isinstance(groups, list | tuple) or not all(_may_be_group(members) for members in groups):
        raise InvalidArgumentError("groups should be a positive integer or a list of lists of parameters")
    names = {id(param): name for name, param in named}
    chosen = [list(members) for members in groups]  # the members may be iterators, such as module.parameters()
    seen: set[int] = set()
    for members in chosen:
        for param in members:
            if not isinstance(param, torch.Tensor) or id(param) not in names:
                raise InvalidArgumentError("groups must consist of parameters of this optimizer")
            if id(param) in seen:
                raise InvalidArgumentError("A parameter can only appear once in groups")
            seen.add(id(param))
    return tuple(tuple(names[id(param)] for param in members) for members in chosen)


def _may_be_group(members: Any) -> bool:
    return isinstance(members, Iterable) and not isinstance(members, torch.Tensor)
