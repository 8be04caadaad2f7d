"""Sharded optimizer state: each rank updates its part of the parameters, and then broadcasts it.

Every rank has whole parameters and whole, reduced gradients, so what a program does between ``backward()`` and ``step()``
works as without sharding. Only the state of the optimizer, such as Adam's two moments, is split: each of n ranks keeps about
one n-th. A rank *owns* the parameters, and the parts of parameters, that it updates.
Source: Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, stage 1.

Over 400 lines, because all methods of the class work on the same division of the parameters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hvdlite.config import format_ranks
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.objects import exchange_by_rank
from hvdlite.ops import allgather, broadcast_async_
from hvdlite.requests import Adasum, Kind
from hvdlite.runtime import RUNTIME
from hvdlite.submission import enter
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.buckets import cut_buckets
from hvdlite.torch.gpu import reachable
from hvdlite.torch.parameter_gradient import is_dense
from hvdlite.torch.sharded_parameter import Bounds, Sharded, assign_largest_first, cut_evenly, flat_view
from hvdlite.torch.steps import change_closure, is_inner_step

# These optimizers update each element by itself, so the update of a slice has the same bits as that of the whole parameter
# (sharded_parameter.py names one exception).
_ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD")
_REFUSED = {
    torch.optim.LBFGS: "its step combines all parameters into one direction",
    torch.optim.SparseAdam: "its gradients are sparse, and so are its updates",
}
PACKED_BYTES = 1 << 20  # the most bytes of small parts of parameters that one rank sends together
LEAST_BYTES = 64 << 10  # a part of this size or more is sent by itself, and not packed with others


def check_shard(shard: Any, op: int, kind: type[torch.optim.Optimizer]) -> None:
    """Checks the argument `shard`.

    Raises:
        InvalidArgumentError: `shard` is not a bool.
        UnsupportedError: op is Adasum, or the state of this kind of optimizer cannot be split.

    """
    if not isinstance(shard, bool):
        raise InvalidArgumentError(f"shard must be True or False, got {shard!r}")
    if not shard:
        return
    if op == Adasum:
        raise UnsupportedError("shard=True does not work with op=Adasum, with which each rank has a state of its own")
    for refused, reason in _REFUSED.items():
        if issubclass(kind, refused):
            name = refused.__name__
            raise UnsupportedError(f"shard=True does not work with {name}: {reason}. Leave shard out, or use another optimizer")


@dataclass(frozen=True)
class _Split:
    """Stands for a tensor of an optimizer's state that is gathered from the owners of its parameter."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # the shape of the whole tensor


@dataclass(frozen=True)
class _OnHost:
    """Stands for a tensor of an optimizer's state that an owner sends whole, such as the counter of steps.

    The tensor travels in host memory. A pickled GPU tensor would arrive on the receiver's GPU with the same number, but perhaps
    the receiver has no such GPU, or another rank uses it.
    """

    value: torch.Tensor
    on_host: bool  # did the owner have the tensor in host memory, too?


# An owner (its place in the process set), and the parameters whose parts it sends to all other ranks in one broadcast. The
# parts have one dtype and are on one device.
_Transfer = tuple[int, list[Sharded]]


class ShardedState:
    """The part of one optimizer's state that this rank keeps, and the hooks around its steps.

    During a step the parameters with gradients *are* this rank's parts: their ``data`` and ``grad`` are swapped for slices, and
    parameters of which the rank owns nothing are in no parameter group. So the optimizer's own code makes state only for the
    parts.
    """

    def __init__(self, settings: ReducerSettings, kind: type[torch.optim.Optimizer]) -> None:
        self.last_hook: Any = None  # the handle of `before_step`, which is the last hook in front of a step
        self.unsliced = True  # may the state hold more than this rank's part, as after a load?
        self._settings = settings
        self._is_whole = False  # is `optimizer.state` that of all parameters at present?
        elementwise = kind in [getattr(torch.optim, name, None) for name in _ELEMENTWISE]
        self._cut: Callable[[Sequence[int], int], list[Bounds]] = cut_evenly if elementwise else assign_largest_first
        self._added: list[list[tuple[str, torch.Tensor]]] = []  # the parameters of each call of `add`, which are cut together
        self._assign()
        self._active: list[Sharded] = []  # the parameters with a gradient in this step
        self._swapped: list[tuple[Sharded, torch.Tensor, torch.Tensor]] = []  # with their whole data and gradient
        self._groups: list[tuple[dict[str, Any], list[torch.Tensor]]] = []  # parameter groups, with all their parameters
        self._transfers: tuple[list[Sharded], list[_Transfer]] = ([], [])  # the last step's active parameters, and transfers

    def add(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Takes charge of more parameters; the earlier parameters keep their owners.

        Raises:
            InvalidArgumentError: a parameter's elements overlap in memory, or have gaps between them.
        """
        new = list(named)
        self.require_dense(new)
        self._added.append(new)
        self._sharded += self._cut_between_ranks(new)

    @staticmethod
    def require_dense(named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises InvalidArgumentError if a parameter's elements overlap in memory, or have gaps between them."""
        for name, param in named:
            if not is_dense(param):
                raise InvalidArgumentError(
                    f"shard=True: parameter {name!r} of strides {list(param.stride())} has elements that overlap, or have gaps "
                    "between them, in memory; make it contiguous first"
                )

    def _assign(self) -> None:
        """Assigns all parameters to the present ranks of the process set, whose number may have changed in an elastic job."""
        process_set = self._settings.process_set
        self._ranks = process_set.ranks or list(range(process_set.size() or 1))
        self._place = process_set.rank() or 0  # this rank's place among the set's members
        self._sharded = [sharded for named in self._added for sharded in self._cut_between_ranks(named)]

    def _cut_between_ranks(self, named: Sequence[tuple[str, torch.Tensor]]) -> list[Sharded]:
        bounds = self._cut([param.numel() for _, param in named], len(self._ranks))
        return [Sharded(name, param, own, self._place) for (name, param), own in zip(named, bounds, strict=True)]

    # --- a step ---------------------------------------------------------------------------------------------------------

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Swaps parameters for this rank's parts. It is the last hook before a step: the other hooks need whole gradients.

        If the step has a closure, the closure is evaluated once, before the swap. Then the step gets another closure, which
        only returns the training loss.

        Raises:
            UnsupportedError: a gradient is sparse.
            InvalidArgumentError, NotInitializedError: as for `localize`.
            InvalidArgumentError, MismatchError, HorovodInternalError: as for `gather_state`, if the memory format of a
                parameter has changed.
        """
        if is_inner_step(optimizer):
            return None
        self.restore()
        changed = change_closure(args, kwargs, _evaluated)
        if not self.unsliced and any(sharded.param.stride() != sharded.strides for sharded in self._sharded):
            # A parameter has got another memory format, in which its slices have other elements. So the whole state is
            # gathered, and `localize` cuts it into slices again.
            optimizer.state, self.unsliced = self.gather_state(optimizer), True
        self.localize(optimizer)
        self._active = [sharded for sharded in self._sharded if sharded.param.grad is not None]
        for sharded in self._active:
            if _grad_of(sharded).layout is not torch.strided:
                raise UnsupportedError(
                    f"shard=True: the gradient of {sharded.name!r} is sparse, and only dense ones can be split. Make the layer "
                    "with sparse=False"
                )
        for sharded in self._active:
            if sharded.is_split and sharded.is_mine:
                self._swap(sharded)
        absent = {id(sharded.param) for sharded in self._active if not sharded.is_mine}
        for group in optimizer.param_groups:
            self._groups.append((group, group["params"]))
            group["params"] = [param for param in group["params"] if id(param) not in absent]
        return changed

    def _swap(self, sharded: Sharded) -> None:
        param, grad = sharded.param, _grad_of(sharded)
        own, own_grad = sharded.own_part(param), sharded.own_part(grad)
        self._swapped.append((sharded, param.data, grad))
        param.grad = None  # a gradient must have its parameter's shape, which changes now
        param.data = own
        param.grad = own_grad

    def restore(self) -> None:
        """Makes parameters, gradients and groups whole again. It is also called after a step that has raised.

        If Ctrl-C interrupts it, the next call does the rest.
        """
        while self._swapped:
            sharded, data, grad = self._swapped[-1]
            sharded.param.grad = None
            sharded.param.data = data
            sharded.param.grad = grad
            self._swapped.pop()
        while self._groups:
            group, params = self._groups[-1]
            group["params"] = params
            self._groups.pop()

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """The first hook after a step: sends each rank's updated parts to all other ranks. Collective over the process set.

        Raises:
            MismatchError: a rank that owns parameters has joined; or the ranks have stepped different parameters, and two
                broadcasts with one name differ in size.
            HorovodInternalError: a rank failed; or the ranks have stepped different parameters, and some ranks wait for a
                broadcast that others never start.

        After an error some parameters may have the values from before the step.
        """
        if is_inner_step(optimizer):
            return
        self.restore()
        if self._transfers[0] != self._active:
            self._transfers = (self._active, self._plan_transfers(self._active))
        try:
            with torch.no_grad():
                self._send(self._transfers[1])
        except MismatchError as error:
            raise MismatchError(
                f"with shard=True all ranks must step the same parameters, and no rank may have joined: {error}. In a program "
                "that calls hvd.join(), leave shard out"
            ) from error

    def _send(self, transfers: list[_Transfer]) -> None:
        process_set = self._settings.process_set
        started = []
        for owner, parts in transfers:
            memory = [flat_view(each.param)[each.bounds[owner] : each.bounds[owner + 1]] for each in parts]
            sent = reachable(memory[0] if len(memory) == 1 else torch.cat(memory))
            name = f"{self._settings.prefix}.{parts[0].name}.of{owner}"
            started.append((owner, memory, sent, broadcast_async_(sent, self._ranks[owner], name, process_set)))
        for owner, memory, sent, handle in started:
            handle.synchronize()
            if owner != self._place and sent.data_ptr() != memory[0].data_ptr():
                for part, received in zip(memory, torch.split(sent, [part.numel() for part in memory]), strict=True):
                    part.copy_(received)

    def _plan_transfers(self, active: Sequence[Sharded]) -> list[_Transfer]:
        """Plans one transfer for each part of `LEAST_BYTES` or more, and joint transfers for the smaller parts of an owner."""
        parts = [(sharded, owner) for sharded in active for owner in sharded.owners]
        sizes = [sharded.bytes_of(owner) for sharded, owner in parts]
        kinds = [
            (owner, sharded.param.dtype, sharded.param.device, place if size >= LEAST_BYTES else None)
            for place, ((sharded, owner), size) in enumerate(zip(parts, sizes, strict=True))
        ]
        cut = cut_buckets(kinds, sizes, PACKED_BYTES, PACKED_BYTES)
        return [(parts[places[0]][1], [parts[place][0] for place in places]) for places in cut]

    # --- the state ------------------------------------------------------------------------------------------------------

    def localize(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the state that other ranks own. A loaded state is whole until this call.

        Raises:
            InvalidArgumentError: the process set has other ranks than when the state was split, and the state is not whole.
            InvalidArgumentError, NotInitializedError: the state is whole, and the process set is no longer registered.
        """
        if not self._find_parts():
            return
        for sharded in self._sharded:
            if not sharded.is_mine:
                optimizer.state.pop(sharded.param, None)
            elif sharded.is_split and sharded.param in optimizer.state:
                state = optimizer.state[sharded.param]
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == sharded.param.shape:
                        state[key] = sharded.own_part(value).clone()
        self.unsliced = False

    def _find_parts(self) -> bool:
        """Returns whether the state may be whole. If so, assigns all parameters to the present ranks. Raises as `localize`."""
        if self.unsliced:
            enter(Kind.ALLGATHER, self._settings.process_set)  # raises before anything changes
            self._assign()
        else:
            self._require_same_ranks()
        return self.unsliced

    def _require_same_ranks(self) -> None:
        """Raises an error if the state has been split for other ranks. After `hvdlite.shutdown` there is nothing to check."""
        process_set = self._settings.process_set
        ranks, place = process_set.ranks, process_set.rank()
        if ranks is not None and place is not None and (ranks, place) != (self._ranks, self._place):
            raise InvalidArgumentError(
                f"DistributedOptimizer ({self._settings.prefix}) with shard=True: the job has other ranks than before "
                f"({len(ranks)} now, {len(self._ranks)} before), and this rank has only its old part of the optimizer's state. "
                "Load a whole state on all ranks before the next step: optimizer.load_state_dict(...)"
            )

    @contextmanager
    def whole_state(
        self, optimizer: torch.optim.Optimizer, device: torch.device | None = None, loaded: bool = False
    ) -> Iterator[None]:
        """A with statement in which the optimizer has the state of all parameters. Collective over the process set, unless the
        state is whole already, or `loaded` is True.

        Args:
            optimizer: the optimizer.
            device: the device on which gathered tensors are stored; None: each on the device of its parameter.
            loaded: has every rank that enters this statement loaded a whole state, and taken no step since? If so, the loaded
                state is used where it is, and nothing is sent.

        Raises:
            InvalidArgumentError, MismatchError, HorovodInternalError: as for `gather_state`.
        """
        if self._is_whole:
            yield
            return
        own = optimizer.state
        if not loaded:
            optimizer.state = self.gather_state(optimizer, device)
        self._is_whole = True
        try:
            yield
        finally:
            optimizer.state = own
            self._is_whole = False

    def gather_state(
        self, optimizer: torch.optim.Optimizer, device: torch.device | None = None
    ) -> defaultdict[torch.Tensor, Any]:
        """The state of all parameters, as an optimizer that is not sharded would have it. Collective over the process set.

        A spare of an elastic job (a process that waits to take the place of a lost rank) is in no process set yet. Its state is
        whole, and is returned as it is.

        Args:
            optimizer: the optimizer.
            device: as for `whole_state`.

        Raises:
            InvalidArgumentError: only some owners of a parameter have state for it (all ranks raise this error); or the process
                set has other ranks than when the state was split.
            MismatchError: a rank has joined.
            HorovodInternalError: a rank failed.
        """
        if RUNTIME.spare is not None:
            return optimizer.state
        self.restore()
        self._find_parts()
        mine = {
            sharded.name: {key: _described(sharded, value) for key, value in optimizer.state[sharded.param].items()}
            for sharded in self._sharded
            if sharded.is_mine and sharded.param in optimizer.state
        }
        name = f"{self._settings.prefix}.state_dict"
        everyone = exchange_by_rank(mine, name, self._settings.process_set)
        joined = [rank for rank in self._ranks if rank not in everyone]
        if joined:
            raise MismatchError(
                f"DistributedOptimizer ({self._settings.prefix}) with shard=True: {format_ranks(joined)} joined, so a part of "
                "the state is missing. In a program that calls hvd.join(), leave shard out"
            )
        having = {
            sharded.name: [place for place in sharded.owners if sharded.name in everyone[self._ranks[place]]]
            for sharded in self._sharded
        }
        for sharded in self._sharded:
            if having[sharded.name] not in ([], sharded.owners):
                self._refuse_gaps(sharded, having[sharded.name])
        self.localize(optimizer)  # not earlier: a refused call must not drop a part of a loaded state
        whole: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for sharded in self._sharded:
            if not having[sharded.name]:
                continue
            described = everyone[self._ranks[sharded.owners[0]]][sharded.name]
            state = optimizer.state.get(sharded.param, {}) if sharded.name in mine else {}
            whole[sharded.param] = {
                key: self._gather(sharded, state.get(key), value, name, device) for key, value in described.items()
            }
        return whole

    def orders(self) -> str:
        """A text with the names of the parameters, and the order of their dimensions in memory."""
        return repr([(sharded.name, sharded.order) for sharded in self._sharded])

    def own_state(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Sharded, dict[str, Any] | None]]:
        """The parameters of which this rank owns something, each with its state (None if it has none). Raises as `localize`."""
        self.restore()
        self.localize(optimizer)
        for sharded in self._sharded:
            if sharded.is_mine:
                yield sharded, optimizer.state.get(sharded.param)

    def _refuse_gaps(self, sharded: Sharded, having: list[int]) -> None:
        lacking = [str(self._ranks[place]) for place in sharded.owners if place not in having]
        raise InvalidArgumentError(
            f"DistributedOptimizer ({self._settings.prefix}) with shard=True: the state of {sharded.name!r} is missing on rank "
            f"{', '.join(lacking)}, which owns a part of it. Before the next step load a state on all ranks; or load it on one "
            "rank, and call hvd.broadcast_optimizer_state on all ranks"
        )

    def _gather(self, sharded: Sharded, own: torch.Tensor | None, sent: Any, name: str, device: torch.device | None) -> Any:
        """One value of the whole state; `sent` is what the parameter's first owner sent. Collective if `sent` is a `_Split`."""
        param = sharded.param
        if isinstance(sent, _OnHost):
            return sent.value if sent.on_host else sent.value.to(device or param.device)
        if not isinstance(sent, _Split):
            return sent
        if own is None:
            own = torch.empty(0, dtype=sent.dtype, device=param.device)
        mine = sharded.flat(own) if own.shape == param.shape else own.reshape(-1)
        gathered: torch.Tensor = allgather(reachable(mine), f"{name}.part", self._settings.process_set).to(param.device)
        whole = gathered.reshape(sent.shape) if sent.shape != tuple(param.shape) else sharded.unflattened(gathered)
        return whole if device is None else whole.to(device)


def sharded_state_of(optimizer: torch.optim.Optimizer) -> ShardedState | None:
    """The sharded state of an optimizer, wrapped or not; None if every rank has the whole state."""
    sharded: ShardedState | None = getattr(getattr(optimizer, "_hvdlite", None), "sharded", None)
    return sharded


def _grad_of(sharded: Sharded) -> torch.Tensor:
    assert sharded.param.grad is not None
    return sharded.param.grad


def _described(sharded: Sharded, value: Any) -> Any:
    """The form in which other ranks get a value of the state: for a tensor a `_Split` or a `_OnHost`, else the value itself."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() and not sharded.is_split:
        return _Split(value.dtype, tuple(value.shape))
    if value.dim() and value.shape in ((sharded.stop - sharded.start,), sharded.param.shape):
        return _Split(value.dtype, tuple(sharded.param.shape))
    return _OnHost(value.cpu(), value.is_cpu)


def _evaluated(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Calls a closure while parameters are whole. Returns the step's new closure, which only returns the training loss."""
    with torch.enable_grad():
        loss = closure()
    return lambda: loss
