"""`TorchState`, and the handlers with which it saves models, optimizers and samplers."""

import copy
from typing import Any

import torch

from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler
from hvdlite.errors import HostsUpdatedInterrupt
from hvdlite.ops import barrier
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.sharding import sharded_state_of
from hvdlite.torch.state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters, mapped

__all__ = [
    "GeneratorStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "ParameterStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Keeps models, optimizers, samplers, schedulers and any other objects, which are its attributes.

    The following objects are changed in place and stay on their device, even if they are in a list or another object: models,
    optimizers (wrapped or not), samplers, single parameters, generators, and all others with ``state_dict()`` and
    ``load_state_dict()`` (schedulers, GradScaler, averaged models, loaders). All other attributes are kept as
    `hvdlite.elastic.ObjectState` keeps them.

    If an optimizer is sharded (``shard=True``), the constructor, `save` and `commit` are collective over all ranks: each rank
    saves the whole state of the optimizer, in host memory.

    Args:
        model: a module, or None.
        optimizer: an optimizer, or None.
        **kwargs: names and values of more attributes: any number of modules, optimizers, samplers and other objects.

    Raises:
        InvalidArgumentError: an argument has the name of one of the state's methods.

    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, model=model, optimizer=optimizer, **kwargs)

    def save(self) -> None:
        """Copies the attributes, for `restore`. If an optimizer is sharded, the call is collective over all ranks."""
        super().save()
        if any(sharded_state_of(optimizer) is not None for optimizer in self._optimizers()):
            barrier()  # after the barrier all ranks have gathered the state, so any rank may leave

    def check_host_updates(self) -> None:
        """As `State.check_host_updates`. Before the ranks change, each rank gets the whole state of sharded optimizers."""
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            for optimizer in self._optimizers():
                if sharded_state_of(optimizer) is not None:
                    handler = OptimizerStateHandler(optimizer)
                    handler.load(handler.copied())
            raise

    def reset(self) -> None:
        """Drops the gradients of the step that was unfinished when the ranks of the job changed."""
        for optimizer in self._optimizers():
            optimizer.zero_grad()

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        values = [handler.value for inventory in self._saved for handler in inventory.handlers]
        return [value for value in values if isinstance(value, torch.optim.Optimizer)]

    def _handler_of(self, value: Any) -> StateHandler | None:
        return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class StateDictHandler(StateHandler):
    """For objects whose ``state_dict()`` has tensors and plain values. The base of all other handlers.

    `save`, `restore` and `sync` do their work by `copied`, `load` and `receive`. `ElasticJob` calls these three directly.
    """

    def copied(self) -> Any:
        """A copy of the present state."""
        return copy.deepcopy(self.value.state_dict())

    def load(self, state: Any) -> None:
        """Gives the object a copy of this state, because an optimizer uses and changes the tensors that it has loaded."""
        self.value.load_state_dict(copy.deepcopy(state))

    def receive(self, root_rank: int) -> None:
        """Gives all ranks the present state of the root. Collective over all ranks."""
        state = broadcast_object(self.value.state_dict(), root_rank, name="hvdlite.elastic.state")
        if rank() != root_rank:
            self.value.load_state_dict(state)

    def save(self) -> None:
        """See `StateHandler.save`."""
        self._saved = self.copied()

    def restore(self) -> None:
        """See `StateHandler.restore`."""
        self.load(self._saved)

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        self.receive(0)
        self.save()


class ModelStateHandler(StateDictHandler):
    """For modules: all that is in their ``state_dict()``, such as parameters and buffers."""

    def receive(self, root_rank: int) -> None:
        """Gives all ranks the root's ``state_dict()``. Collective over all ranks."""
        state = self.value.state_dict()
        others = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}  # get_extra_state()
        broadcast_parameters({name: value for name, value in state.items() if name not in others}, root_rank)
        if others:
            others = broadcast_object(others, root_rank, name="hvdlite.elastic.extra_state")
            if rank() != root_rank:
                self.value.load_state_dict({**state, **others})


class OptimizerStateHandler(StateDictHandler):
    """For optimizers: options and state. If the state is sharded, the whole state is saved, in host memory."""

    def copied(self, loaded: bool = False) -> Any:
        """A copy of the whole state.

        If the optimizer is sharded, the call is collective over all ranks, unless the optimizer has just `loaded` a whole state
        (see `hvdlite.torch.sharding.ShardedState.whole_state`). The copy of a sharded state is in host memory.
        """
        sharded = sharded_state_of(self.value)
        if sharded is None:
            return super().copied()
        with sharded.whole_state(self.value, torch.device("cpu"), loaded):
            if loaded:
                return copied_to_host(self.value.state_dict())
            state = self.value.state_dict()  # its tensors have been gathered into memory of their own
            return {**state, "param_groups": copy.deepcopy(state["param_groups"])}

    def receive(self, root_rank: int) -> None:
        """Gives all ranks the options and the state of the root's optimizer. Collective over all ranks."""
        broadcast_optimizer_state(self.value, root_rank)


def copied_to_host(state: Any) -> Any:
    """A deep copy of a ``state_dict()``, with its tensors in host memory."""
    return mapped(lambda value: value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value), state)


class SamplerStateHandler(StateDictHandler):
    """For an `ElasticSampler`: the epoch and the processed samples."""

    def sync(self) -> None:
        """Gives all ranks the epoch of rank 0, and the union of all ranks' processed samples.

        Divides the other samples, and saves the result.
        """
        processed = set().union(*allgather_object(self.value.processed_indices))
        state = broadcast_object(self.value.state_dict())
        self.value.load_state_dict({**state, "processed_indices": processed})
        self.save()


class ParameterStateHandler(StateDictHandler):
    """For single parameters, to which other objects (a model, an optimizer) refer."""

    def copied(self) -> Any:
        """A copy of the elements."""
        return self.value.detach().clone()

    def load(self, state: Any) -> None:
        """Gives the parameter these elements."""
        with torch.no_grad():
            self.value.copy_(state)

    def receive(self, root_rank: int) -> None:
        """Gives all ranks the elements of the root's parameter. Collective over all ranks."""
        broadcast_parameters([self.value], root_rank)


class GeneratorStateHandler(StateDictHandler):
    """For generators of random numbers, to which loaders refer."""

    def copied(self) -> Any:
        """The present state of the generator."""
        return self.value.get_state()

    def load(self, state: Any) -> None:
        """Gives the generator this state."""
        self.value.set_state(state)

    def receive(self, root_rank: int) -> None:
        """Gives all ranks the state of the root's generator. Collective over all ranks."""
        self.load(broadcast_object(self.copied(), root_rank))


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.nn.Parameter, ParameterStateHandler),
    (torch.Generator, GeneratorStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Pairs of a class of objects and the class of its handler. For an object, the first pair that matches is used."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the pairs of `get_handler_registry`. Objects that a state already has keep their handlers."""
    global _registry
    _registry = registry
