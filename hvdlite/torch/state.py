"""Gives all ranks the same model and optimizer at the start."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hvdlite import ops
from hvdlite.agreement import compare
from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.objects import allgather_object, broadcast_object
from hvdlite.process_sets import ProcessSet, global_process_set, root_arguments
from hvdlite.runtime import RUNTIME
from hvdlite.torch.arguments import require_initialized
from hvdlite.torch.coded_methods import KEY, compression_of, load_coding
from hvdlite.torch.gpu import reachable
from hvdlite.torch.sharding import sharded_state_of

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites tensors with the values of the root's tensors, in place. Collective over `process_set`.

    Names, shapes and dtypes must be the same on all ranks of the set. Tensors with names can be in another order on each rank.
    Tensors without names must be in the same order on all ranks.

    Args:
        params: ``model.state_dict()`` or another mapping of names to tensors; ``model.named_parameters()`` or another iterable
            of (name, tensor) pairs; or an iterable of tensors, each of which gets its number as its name. Tensors that are None
            are left out. Tensors on NVIDIA GPUs are broadcast there, and must be on a GPU on all ranks; tensors on other
            devices are copied through host memory.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.

    Raises:
        InvalidArgumentError: `params` is none of these, an entry is not a tensor, or a parameter belongs to a lazy layer that
            has seen no batch yet.
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `hvdlite.broadcast`.

    """
    _broadcast_tensors(_named_tensors(params), root_rank, process_set)


def broadcast_calls(process_set: ProcessSet) -> str:
    """For error texts: the calls that copy the model and the optimizer's state from the first rank of a set to the others."""
    arguments = root_arguments(process_set)
    return (
        f"hvd.broadcast_parameters(model.state_dict(), {arguments}) and hvd.broadcast_optimizer_state(optimizer, {arguments})"
    )


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str):
        pairs = [entry if isinstance(entry, tuple) else (f"{place}", entry) for place, entry in enumerate(params)]
    else:
        raise InvalidArgumentError(f"invalid params of type: {type(params)}; pass model.state_dict()")
    for pair in pairs:
        if len(pair) != 2 or not (pair[1] is None or isinstance(pair[1], torch.Tensor)):
            raise InvalidArgumentError(
                f"broadcast_parameters takes tensors, not {pair!r}; for other objects there is broadcast_object"
            )
    named = [(f"{name}", tensor) for name, tensor in pairs if tensor is not None]
    require_initialized(named)
    return named


def _broadcast_tensors(named: Iterable[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcasts all tensors at once."""
    started = []
    with torch.no_grad():
        for name, tensor in named:
            near = reachable(tensor.detach())
            started.append((tensor, near, ops.broadcast_async_(near, root_rank, name, process_set)))
        for tensor, near, handle in started:
            handle.synchronize()
            if near.data_ptr() != tensor.data_ptr():
                tensor.copy_(near)


@dataclass(frozen=True)
class _Placeholder:
    """Stands for a tensor in a structure that is sent without its tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the state and the options of the root's optimizer. Collective over `process_set`.

    This function takes no step, and changes neither parameters nor gradients. A rank with an empty state gets the root's state.
    If the root's state is empty, all ranks have an empty state afterwards. Any optimizer is allowed, including LBFGS.

    Args:
        optimizer: an optimizer, wrapped or not, with the same parameter groups on all ranks.
        root_rank: the root's rank in the whole job, the same on all ranks.
        model: not used; Horovod has this argument.
        process_set: the ranks that take part; the root is one of them. For a sharded optimizer, the optimizer's process set.

    Raises:
        InvalidArgumentError: `optimizer` is not a torch.optim.Optimizer, or a sharded state cannot be gathered.
        MismatchError: (on all ranks) the ranks' optimizers have different parameter groups, or different compressions with
            state. No optimizer has changed.
        HorovodInternalError: as for `hvdlite.broadcast`.

    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"broadcast_optimizer_state takes a torch.optim.Optimizer, got {type(optimizer)}")
    # These facts must be the same on all ranks, so that one rank's state fits the optimizers of the other ranks.
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    facts = [("the number of parameters in each group", sizes), ("the compression with state", compression_of(optimizer))]
    _, differing = compare(facts, "optimizer_state.alike", process_set)
    if differing:
        raise MismatchError(
            f"broadcast_optimizer_state in process set {process_set.process_set_id}: {differing}; build the same optimizer on "
            "every rank"
        )
    is_root = RUNTIME.require_topology().rank == root_rank
    sharded = sharded_state_of(optimizer)
    is_whole = sharded is None or broadcast_object(sharded.unsliced, root_rank, "optimizer_state.is_whole", process_set)
    state = None
    if is_root or not is_whole:  # if the root has only a part of the state, all ranks gather the whole
        with nullcontext() if sharded is None else sharded.whole_state(optimizer, loaded=is_whole):
            state = optimizer.state_dict()
    structure = mapped(_placeholder_of, state) if is_root else None
    structure = broadcast_object(structure, root_rank, "optimizer_state", process_set)
    received: Any = state if is_root else _with_memory(structure, optimizer)
    tensors: list[torch.Tensor] = []
    mapped(lambda value: tensors.append(value) if _is_dense(value) else None, received)
    named = [(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)]
    _broadcast_tensors(named, root_rank, process_set)
    if not is_root:
        _load(optimizer, received)
        if sharded is not None:
            sharded.unsliced = True
            if not is_whole:
                sharded.localize(optimizer)  # as the root, which keeps only its part


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """A copy of nested dicts, lists and tuples, in which the function has replaced each value that is none of these."""
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(mapped(function, value) for value in tree)
    return function(tree)


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _placeholder_of(value: Any) -> Any:
    return _Placeholder(tuple(value.shape), value.dtype, value.is_cpu) if _is_dense(value) else value


def _with_memory(structure: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A copy of the structure of an optimizer's state, with memory on this rank in place of each placeholder.

    For a tensor that the root has in host memory, the memory is host memory. For any other tensor, the memory is on the device
    of the tensor's parameter on this rank; if the tensor is an option of a group, on the device of the group's first parameter.
    """
    host = torch.device("cpu")
    devices: dict[Any, torch.device] = {}  # of the parameters, by their keys in the structure
    for group, theirs in zip(optimizer.param_groups, structure["param_groups"], strict=True):
        devices.update(zip(theirs["params"], (param.device for param in group["params"]), strict=True))

    def made(tree: Any, device: torch.device) -> Any:
        def memory_for(value: Any) -> Any:
            if not isinstance(value, _Placeholder):
                return value
            return torch.empty(value.shape, dtype=value.dtype, device=host if value.on_host else device)

        return mapped(memory_for, tree)

    found = {key: made(value, host) for key, value in structure.items()}
    found["state"] = {key: made(value, devices.get(key, host)) for key, value in structure["state"].items()}
    found["param_groups"] = [
        made(group, devices[group["params"][0]] if group["params"] else host) for group in structure["param_groups"]
    ]
    return found


def _load(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> None:
    """Like ``optimizer.load_state_dict``, but without its conversion of dtypes."""
    params: dict[Any, torch.Tensor] = {}
    for group, other in zip(optimizer.param_groups, received["param_groups"], strict=True):
        params.update(zip(other["params"], group["params"], strict=True))
        for key, value in other.items():
            if key != "params":
                _set_option(group, key, value)
    optimizer.state.clear()
    for key, value in received["state"].items():
        optimizer.state[params.get(key, key)] = value
    load_coding(optimizer, received.get(KEY))


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    present = group.get(key)
    if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor) and present.shape == value.shape:
        with torch.no_grad():
            present.copy_(value)  # compiled and captured steps refer to this tensor
    else:
        group[key] = value
