"""`TorchState`, and how it keeps models, optimizers and samplers."""

import copy
from typing import Any

import torch

from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Keeps models, optimizers, samplers and any other objects, which are its attributes.

    Models, optimizers (wrapped or not) and samplers stay the objects they are; their ``state_dict()`` is saved and
    restored, on the device where they are. Other objects are kept as `hvdlite.elastic.ObjectState` does.

    Args:
        model: a module, or None.
        optimizer: an optimizer, or None.
        **kwargs: names and values of more attributes: any number of modules, optimizers, samplers and other objects.

    Raises:
        InvalidArgumentError: a name is one of the state's own methods.

    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: dict[str, StateHandler] = {}
        kwargs.update(model=model, optimizer=optimizer)
        handlers = {name: handler for name, value in kwargs.items() if (handler := _handler_of(value)) is not None}
        super().__init__(broadcast_object, rank, **{name: kwargs[name] for name in kwargs if name not in handlers})
        for name, handler in handlers.items():
            setattr(self, name, handler.value)
        self._handlers = handlers

    def save(self) -> None:
        """Copies all there is, for `restore`."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last on this rank. Where there is a sampler, `sync` must follow."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and the samplers what any rank has processed; then saves it. Collective."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        """Another model (optimizer, sampler) takes the place of the one of this name, and is saved."""
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


class StateHandler:
    """How one kind of object is kept. `save`, `restore` and `sync` are a subclass's.

    Args:
        value: the object; a subclass saves it at once.

    Attributes:
        value: the object.

    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps the object's present state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Puts the object back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives the object the same state on all ranks, and saves it. Collective over all ranks."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Keeps another object from now on."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Of objects with ``state_dict()`` and ``load_state_dict()``."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # An optimizer takes the tensors it is given for its own and would change the saved ones.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """Of modules: parameters and buffers."""

    def sync(self) -> None:
        """Gives all ranks the parameters and buffers of rank 0, and saves them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Of optimizers: options and state."""

    def sync(self) -> None:
        """Gives all ranks the options and the state of rank 0's optimizer, and saves them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Of `ElasticSampler`: the epoch, and what is processed."""

    def sync(self) -> None:
        """Gives all ranks the epoch of rank 0 and what any rank has processed, deals out the rest, and saves it."""
        processed = set().union(*allgather_object(self.value.processed_indices))
        state = broadcast_object(self.value.state_dict())
        self.value.load_state_dict({**state, "processed_indices": processed})
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which handler keeps which kind of object: pairs of classes, of which the first that fits is taken."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the pairs of `get_handler_registry`, for states made from now on."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
