"""The state of an `ElasticJob`: how a rank copies and restores it, and how ranks get it from another rank."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hvdlite.basics import rank
from hvdlite.errors import PeerLostError, UnsupportedError
from hvdlite.torch.coded_methods import codings_of
from hvdlite.torch.elastic.random_numbers import copied_numbers, restore_numbers
from hvdlite.torch.elastic.state import ModelStateHandler, OptimizerStateHandler, StateDictHandler, copied_to_host
from hvdlite.torch.sharding import sharded_state_of


@dataclass(frozen=True)
class Snapshot:
    """The state of a job at one moment.

    Attributes:
        states: copies of the results of ``state_dict()``, by name.
        buffers: copies of the model's buffers.
        options: copies of the optimizer's options, such as the learning rate, by group and name. A scheduler changes them.
        random_numbers: the states of this rank's generators: of torch, of its GPUs, of Python and of NumPy.
        codings: the state that the compression keeps on this rank, for each parameter.
    """

    states: dict[str, Any]
    buffers: list[torch.Tensor]
    options: list[dict[str, Any]]
    random_numbers: tuple[Any, ...]
    codings: list[dict[str, Any]]


@dataclass(frozen=True)
class Commit:
    """A copy of the whole state, to which all ranks return after the loss of a rank if the optimizer is sharded.

    Attributes:
        number: the number of this commit, the same on all ranks; 0: there is no commit yet.
        position: the number of steps that were applied before this commit.
        snapshot: the state; None if there is no commit yet.
    """

    number: int = 0
    position: int = 0
    snapshot: Snapshot | None = None


class JobState:
    """The objects of an `ElasticJob`.

    Args:
        model: the module.
        optimizer: its wrapped optimizer.
        others: other objects with ``state_dict()``, by name.

    Attributes:
        is_sharded: does each rank keep only a part of the optimizer's state?

    Raises:
        UnsupportedError: the optimizer is LBFGS.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, Any]) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError(
                "elastic.Job does not work with LBFGS, which changes the parameters between two calls of its closure: if "
                "a rank is lost between them, the half step cannot be taken back. Use hvd.elastic.run, or another optimizer"
            )
        self._model, self._optimizer = model, optimizer
        self._others = {name: StateDictHandler(value) for name, value in others.items()}
        self._in_optimizer = OptimizerStateHandler(optimizer)
        self._all = {"model": ModelStateHandler(model), "optimizer": self._in_optimizer, **self._others}
        self.is_sharded = sharded_state_of(optimizer) is not None

    # --- in this process ----------------------------------------------------------------------------------------------------

    def before_step(self) -> Snapshot:
        """A copy of all that a training step can change until it calls ``optimizer.step()``."""
        return self._snapshot({name: handler.copied() for name, handler in self._others.items()})

    def commit(self, loaded: bool = False) -> Snapshot:
        """A copy of the whole state. The states of the model and of a sharded optimizer are copied to host memory.

        If the optimizer is sharded, the call is collective over all ranks, unless the optimizer has just `loaded` a whole state
        (`OptimizerStateHandler.copied`).
        """
        model = copied_to_host(self._model.state_dict())
        others = {name: handler.copied() for name, handler in self._others.items()}
        return self._snapshot({"model": model, "optimizer": self._in_optimizer.copied(loaded), **others})

    def _snapshot(self, states: dict[str, Any]) -> Snapshot:
        buffers = [buffer.clone() for buffer in _buffers_of(self._model)]  # some may not be in a state_dict()
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        numbers = torch.get_rng_state(), gpus, *copied_numbers()
        options = [_copied(group) for group in self._optimizer.param_groups]
        # A compression never changes the tensors of its state in place (see `BucketCodec`), so references are enough.
        return Snapshot(states, buffers, options, numbers, [dict(coding) for coding in codings_of(self._optimizer)])

    def go_back(self, snapshot: Snapshot) -> None:
        """Restores all that the snapshot contains, and changes nothing else."""
        self.load(snapshot.states)
        with torch.no_grad():
            for buffer, before in zip(_buffers_of(self._model), snapshot.buffers, strict=True):
                buffer.copy_(before)
            for group, options in zip(self._optimizer.param_groups, snapshot.options, strict=False):  # groups may be new
                for name, option in options.items():
                    if isinstance(option, torch.Tensor) and isinstance(group[name], torch.Tensor):
                        group[name].copy_(option)  # a scheduler changes it in place, too
                    else:
                        group[name] = option
        nothing: dict[str, Any] = {}  # the kept state of parameters of groups that were added after the snapshot
        for coding, kept in itertools.zip_longest(codings_of(self._optimizer), snapshot.codings, fillvalue=nothing):
            coding.clear()
            coding.update(kept)
        numbers, gpus, python, numpy = snapshot.random_numbers
        torch.set_rng_state(numbers)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        restore_numbers((python, numpy))

    def load(self, states: Mapping[str, Any]) -> None:
        """Gives objects these states, by their names."""
        for name, state in states.items():
            self._all[name].load(state)

    def load_all(self, states: Mapping[str, Any]) -> None:
        """Gives each object the state under its name. Ignores all other states.

        Raises:
            KeyError: the state of an object is missing.
        """
        self.load({name: states[name] for name in self._all})

    # --- between ranks ------------------------------------------------------------------------------------------------------

    def receive(self, source: int) -> None:
        """Gives all ranks the present state of the source. Collective over all ranks.

        Each rank keeps its own random numbers. If a rank is lost meanwhile, the received state may be incomplete. In this case
        this method restores the state that this rank had before. With a sharded optimizer, the caller must restore the last
        commit instead.

        Raises:
            PeerLostError: a rank was lost.
            InvalidArgumentError, MismatchError, HorovodInternalError: the ranks have different objects, or a rank failed.
        """
        states = {} if self.is_sharded or rank() == source else {name: each.copied() for name, each in self._all.items()}
        try:
            for handler in self._all.values():
                handler.receive(source)
        except PeerLostError:
            self.load(states)
            raise

    def present(self) -> dict[str, Any]:
        """The states of all objects by name, not copied. If the optimizer is sharded, the call is collective over all ranks."""
        return {name: handler.value.state_dict() for name, handler in self._all.items()}


def _buffers_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """All buffers of a model. `model.buffers()` takes several times as long."""
    found: list[torch.Tensor] = []
    modules, seen = [model], {id(model)}
    for module in modules:
        if module._buffers:
            found += [buffer for buffer in module._buffers.values() if buffer is not None]
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return found


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the options of a parameter group."""
    options = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
    del options["params"]
    return options
