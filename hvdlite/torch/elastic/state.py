"""`TorchState`, and the handlers with which it saves models, optimizers and samplers."""

import copy
from typing import Any

import torch

from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "GeneratorStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "ParameterStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Keeps models, optimizers, samplers, schedulers and any other objects, which are its attributes.

    Models, optimizers (wrapped or not), samplers, single parameters, generators and all other objects with ``state_dict()`` and
    ``load_state_dict()`` (schedulers, GradScaler, averaged models, loaders) are changed in place and stay on their device, even
    if they are in a list or another object. All other attributes are kept as `hvdlite.elastic.ObjectState` keeps them.

    Args:
        model: a module, or None.
        optimizer: an optimizer, or None.
        **kwargs: names and values of more attributes: any number of modules, optimizers, samplers and other objects.

    Raises:
        InvalidArgumentError: a name is one of the state's own methods.

    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, model=model, optimizer=optimizer, **kwargs)

    def reset(self) -> None:
        """Drops the gradients of the step that the old ranks did not finish."""
        for inventory in self._saved:
            for handler in inventory.handlers:
                if isinstance(handler.value, torch.optim.Optimizer):
                    handler.value.zero_grad()

    def _handler_of(self, value: Any) -> StateHandler | None:
        return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class _StateDictHandler(StateHandler):
    """For objects whose ``state_dict()`` has tensors and plain values."""

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy, because an optimizer uses the loaded tensors themselves, and would change the saved ones.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """For modules: parameters and buffers."""

    def sync(self) -> None:
        """Gives all ranks the parameters and buffers of rank 0, and saves them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """For optimizers: options and state."""

    def sync(self) -> None:
        """Gives all ranks the options and the state of rank 0's optimizer, and saves them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """For an `ElasticSampler`: the epoch and the processed samples."""

    def sync(self) -> None:
        """Gives all ranks rank 0's epoch and the processed samples of all ranks, divides the other samples, and saves this."""
        processed = set().union(*allgather_object(self.value.processed_indices))
        state = broadcast_object(self.value.state_dict())
        self.value.load_state_dict({**state, "processed_indices": processed})
        self.save()


class ParameterStateHandler(StateHandler):
    """For single parameters, to which other objects (a model, an optimizer) refer."""

    def save(self) -> None:
        """Copies the elements."""
        self._saved = self.value.detach().clone()

    def restore(self) -> None:
        """Puts back the elements."""
        with torch.no_grad():
            self.value.copy_(self._saved)

    def sync(self) -> None:
        """Gives all ranks the elements of rank 0's parameter, and saves them."""
        broadcast_parameters([self.value], root_rank=0)
        self.save()


class GeneratorStateHandler(StateHandler):
    """For generators of random numbers, to which loaders refer."""

    def save(self) -> None:
        """Saves the state of the generator."""
        self._saved = self.value.get_state()

    def restore(self) -> None:
        """Restores the saved state."""
        self.value.set_state(self._saved)

    def sync(self) -> None:
        """Gives all ranks the state of rank 0's generator, and saves it."""
        self.value.set_state(broadcast_object(self.value.get_state()))
        self.save()


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
    """Replaces the pairs of `get_handler_registry`, for states made from now on."""
    global _registry
    _registry = registry
