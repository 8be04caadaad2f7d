"""Gives all ranks the same model and optimizer at the start."""

from collections.abc import Iterable, Mapping
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
from hvdlite.torch.gpu import CPU, gpu_of, number_of, reachable
from hvdlite.torch.sharding import sharded_state_of

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites tensors with the root's, in place. Collective over `process_set`.

    Names, shapes and dtypes must be the same on all its ranks. The order may differ, unless the tensors have no names.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, or any mapping or iterable of (name, tensor) pairs or
            of tensors (which are then numbered). Entries that are None are left out. Tensors on NVIDIA GPUs are broadcast
            there, and must be on a GPU on all ranks; those on other devices are copied through host memory.
        root_rank: the root's rank in the whole job, the same on all ranks.
        process_set: the ranks that take part; the root is one of them.

    Raises:
        InvalidArgumentError: `params` is none of these, an entry is not a tensor, or a parameter belongs to a lazy layer that
            has seen no batch yet.
        InvalidArgumentError, UnsupportedError, MismatchError, HorovodInternalError: as for `hvdlite.broadcast`.

    """
    _broadcast_tensors(_named_tensors(params), root_rank, process_set)


def broadcast_calls(process_set: ProcessSet) -> str:
    """For error texts: the calls that give all ranks of a process set the model and the optimizer's state of its first rank."""
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

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool
    on_gpu: bool  # on an NVIDIA GPU, which the engine can use


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the state and the options of the root's optimizer. Collective over `process_set`.

    It takes no step, and changes neither parameters nor gradients. A rank with an empty state gets the root's state. If the
    root's state is empty, all ranks have an empty state afterwards. It works with any optimizer, including LBFGS.

    Args:
        optimizer: an optimizer, wrapped or not, with the same parameter groups on all ranks.
        root_rank: the root's rank in the whole job, the same on all ranks.
        model: not used; Horovod has this argument.
        process_set: the ranks that take part; the root is one of them. If the optimizer is sharded: its process set.

    Raises:
        InvalidArgumentError: this is not a torch.optim.Optimizer, or a sharded state cannot be gathered.
        MismatchError: (on all ranks) the ranks' optimizers have different parameter groups, or different compressions with
            state. No optimizer has changed.
        HorovodInternalError: as for `hvdlite.broadcast`.

    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"broadcast_optimizer_state takes a torch.optim.Optimizer, got {type(optimizer)}")
    _, differing = compare(_facts_of(optimizer), "optimizer_state.alike", process_set)
    if differing:
        raise MismatchError(
            f"broadcast_optimizer_state in process set {process_set.process_set_id}: {differing}; build the same optimizer on "
            "every rank"
        )
    is_root = RUNTIME.require_topology().rank == root_rank
    tensors: list[torch.Tensor] = []
    sharded = sharded_state_of(optimizer)
    is_whole = sharded is None or broadcast_object(sharded.unsliced, root_rank, "optimizer_state.is_whole", process_set)
    state = None
    if is_root or not is_whole:  # the ranks gather the root's state if the root has only a part of it
        with nullcontext() if sharded is None else sharded.whole_state(optimizer, loaded=is_whole):
            state = optimizer.state_dict()
    structure = _without_tensors(state, tensors) if is_root else None
    structure = broadcast_object(structure, root_rank, "optimizer_state", process_set)
    if not is_root:
        _make_tensors(structure, tensors, _ParameterDevices(optimizer, structure))
    named = [(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)]
    _broadcast_tensors(named, root_rank, process_set)
    if not is_root:
        _load(optimizer, structure, tensors)
        if sharded is not None:
            sharded.unsliced = True
            if not is_whole:
                sharded.localize(optimizer)  # as on the root, which has a part


def _facts_of(optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
    """What must be the same on all ranks so that one rank's state fits the optimizers of the others."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return [("the number of parameters in each group", sizes), ("the compression with state", compression_of(optimizer))]


def _without_tensors(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure with placeholders for its dense tensors, which are appended to the list."""
    if isinstance(tree, torch.Tensor) and tree.layout is torch.strided:
        tensors.append(tree)
        return _Placeholder(len(tensors) - 1, tuple(tree.shape), tree.dtype, tree.device.type == "cpu", gpu_of(tree) != CPU)
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_without_tensors(value, tensors) for value in tree)
    return tree


class _ParameterDevices:
    """The device on this rank for tensors that the root has outside of host memory: the device of their parameter.

    Attributes:
        state: the devices of the parameters, by the parameter's key in the root's structure.
        groups: for each parameter group, the device of its first parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> None:
        host = torch.device("cpu")
        self.state: dict[Any, torch.device] = {}
        self.groups: list[torch.device] = []
        for group, other in zip(optimizer.param_groups, received["param_groups"], strict=False):
            devices = [param.device for param in group["params"]]
            self.state.update(zip(other["params"], devices, strict=False))
            self.groups.append(devices[0] if devices else host)

    def of_state(self, key: Any) -> torch.device:
        """The device for the state of one parameter."""
        return self.state.get(key, torch.device("cpu"))

    def of_group(self, place: int) -> torch.device:
        """The device for the options of one group."""
        return self.groups[place] if place < len(self.groups) else torch.device("cpu")


def _make_tensors(received: dict[str, Any], tensors: list[torch.Tensor], devices: _ParameterDevices) -> None:
    """Appends memory for each placeholder of an optimizer's state, in the order of their numbers."""
    for part, tree in received.items():
        if part == "state":
            for key, value in tree.items():
                _make_for(value, tensors, devices.of_state(key))
        elif part == "param_groups":
            for place, group in enumerate(tree):
                _make_for(group, tensors, devices.of_group(place))
        else:
            _make_for(tree, tensors, torch.device("cpu"))


def _make_for(tree: Any, tensors: list[torch.Tensor], device: torch.device) -> None:
    if isinstance(tree, _Placeholder):
        there = tree.on_gpu and number_of(device) != CPU
        tensors.append(torch.empty(tree.shape, dtype=tree.dtype, device=device if there else "cpu"))
    elif isinstance(tree, dict):
        for value in tree.values():
            _make_for(value, tensors, device)
    elif type(tree) in (list, tuple):
        for value in tree:
            _make_for(value, tensors, device)


def _with_tensors(tree: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """The structure with its tensors. Tensors that the root has outside of host memory are moved to `device`."""
    if isinstance(tree, _Placeholder):
        return tensors[tree.number] if tree.on_host else tensors[tree.number].to(device)
    if isinstance(tree, dict):
        return {key: _with_tensors(value, tensors, device) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(value, tensors, device) for value in tree)
    return tree


def _load(optimizer: torch.optim.Optimizer, received: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    """Like ``optimizer.load_state_dict``, but without its conversion of dtypes."""
    host = torch.device("cpu")
    params: dict[Any, torch.Tensor] = {}
    for group, other in zip(optimizer.param_groups, received["param_groups"], strict=True):
        params.update(zip(other["params"], group["params"], strict=True))
        device = group["params"][0].device if group["params"] else host
        for key, value in other.items():
            if key != "params":
                _set_option(group, key, _with_tensors(value, tensors, device))
    optimizer.state.clear()
    for key, value in received["state"].items():
        param = params.get(key)
        optimizer.state[key if param is None else param] = _with_tensors(
            value, tensors, host if param is None else param.device
        )
    load_coding(optimizer, _with_tensors(received.get(KEY), tensors, host))


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    present = group.get(key)
    if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor) and present.shape == value.shape:
        with torch.no_grad():
            present.copy_(value)  # compiled and captured steps refer to this tensor
    else:
        group[key] = value
