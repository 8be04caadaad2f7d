"""The values that torch's optimizers train, which the ranks compare at the start (`hvdlite.start_check`)."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hvdlite.leaves import Leaf
from hvdlite.process_sets import counter_of_ranks
from hvdlite.requests import Adasum
from hvdlite.start_check import StartCheck
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.leaves import leaf_of
from hvdlite.torch.parameter_gradient import ParameterGradient
from hvdlite.torch.sharding import sharded_state_of
from hvdlite.torch.state import broadcast_calls, broadcast_optimizer_state, broadcast_parameters


class TrainedByTorch:
    """The parameters that one optimizer trains, and the optimizer's state for them (`hvdlite.start_check.Trained`).

    This object keeps only a weak reference to the optimizer.
    """

    evidence = "gradient"

    def __init__(
        self, optimizer: torch.optim.Optimizer, settings: ReducerSettings, gradients: Iterable[ParameterGradient]
    ) -> None:
        self.remedy = f"Before the first step, broadcast what one rank has: {broadcast_calls(settings.process_set)}"
        ranks = counter_of_ranks(settings.process_set)
        self.data_remedy = (
            "In PyTorch, give the DataLoader a sampler: torch.utils.data.distributed.DistributedSampler(dataset, "
            f"num_replicas={ranks}.size(), rank={ranks}.rank())"
        )
        self.moment = "before the first update" if settings.op == Adasum or settings.shard else "after the first update"
        self.shares_state = settings.shard
        self._optimizer = weakref.ref(optimizer)
        self._settings = settings
        self._gradients = gradients

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        prefix = f"{self._settings.prefix}."
        return [(gradient.name.removeprefix(prefix), gradient.param) for gradient in self._gradients]

    def parameters(self) -> Iterable[Leaf]:
        """See `Trained.parameters`."""
        return [leaf_of(name, param) for name, param in self._named()]

    def state(self) -> Iterable[Leaf]:
        """See `Trained.state`."""
        optimizer = None if self._settings.op == Adasum else self._optimizer()  # with Adasum each rank has its own state
        sharded = None if optimizer is None else sharded_state_of(optimizer)
        state: Any = {} if optimizer is None or (sharded is not None and not sharded.unsliced) else optimizer.state
        return [
            leaf_of(f"{key} of {name}", value if isinstance(value, torch.Tensor) else torch.tensor(value, device="cpu"))
            for name, param in self._named()
            for key, value in sorted(state.get(param, {}).items(), key=lambda item: str(item[0]))
            if isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.layout is torch.strided)
        ]

    def broadcast(self, root_rank: int) -> None:
        """See `Trained.broadcast`."""
        process_set = self._settings.process_set
        broadcast_parameters(self._named(), root_rank, process_set)
        optimizer = self._optimizer()
        if optimizer is not None:
            broadcast_optimizer_state(optimizer, root_rank, process_set=process_set)


def make_check(
    optimizer: torch.optim.Optimizer, settings: ReducerSettings, gradients: Iterable[ParameterGradient]
) -> StartCheck:
    """The start check of one optimizer.

    `gradients` are the gradients of the parameters that the optimizer trains. The check iterates over them at each comparison,
    so it also sees gradients that are added later.
    """
    return StartCheck(
        settings.start_check,
        f"DistributedOptimizer ({settings.prefix})",
        settings.prefix,
        settings.process_set,
        TrainedByTorch(optimizer, settings, gradients),
    )


def leaves_of_gradients(params: Iterable[torch.Tensor]) -> Iterator[Leaf]:
    """The gradients of parameters, except those that are all zeros. A sparse gradient gives its values and its indices."""
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        parts = [grad.detach()] if grad.layout is torch.strided else [grad.detach()._values(), grad.detach()._indices()]
        if bool(parts[0].count_nonzero()):
            yield from (leaf_of("", part) for part in parts)
