"""``horovod.keras.elastic``: commits, restores and synchronizes the state of a training with ``fit``. See docs/elastic.md."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hvdlite import elastic
from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler, has_variables, is_variable
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.keras.arguments import is_optimizer
from hvdlite.keras.backends import current_backend
from hvdlite.keras.batches import BatchCount
from hvdlite.keras.library import Callback, keras
from hvdlite.keras.model_state import (
    build_optimizer,
    build_optimizers_alike,
    first_values,
    is_built,
    optimizers_of,
    state_variables,
)
from hvdlite.keras.sharding import shards_of
from hvdlite.keras.variables import broadcast_variables, identity_of, read, variables_of
from hvdlite.objects import broadcast_object

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """As `hvdlite.elastic.run`.

    An error of the backend that means that a rank is lost counts as HorovodInternalError.
    """
    return elastic.run(func, current_backend().loss_in)


class KerasState(ObjectState):
    """Keeps a model, its optimizers, and other objects. Attributes of the state: `model`, `optimizer` and the other objects.

    An attribute may also be another model, layer, optimizer, metric or variable. Such an object is not replaced: its variables
    are saved, restored and broadcast in place.

    Args:
        model: a built model: all its variables exist. All optimizers among its attributes and those of its layers are kept.
        optimizer: an optimizer to keep instead of the one with which the model was compiled.
        **kwargs: names and first values of other attributes, such as ``epoch=0, batch=0``.

    Raises:
        InvalidArgumentError: the model is not built or has no optimizer, or a name is that of a method of the state.
        UnsupportedError: an optimizer has ``shard=True``.

    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not is_built(model):
            raise InvalidArgumentError(
                "KerasState needs a model whose variables exist: give it its input shape, or call it on a batch first"
            )
        optimizer = model.optimizer if optimizer is None else optimizer
        if optimizer is None:
            raise InvalidArgumentError("KerasState needs an optimizer: compile the model with one, or pass it")
        if any(shards_of(each) is not None for each in (optimizer, *optimizers_of(model).values())):
            raise UnsupportedError(
                "KerasState cannot keep an optimizer with shard=True: each rank has only a part of its state. Leave shard out"
            )
        build_optimizer(model, optimizer)
        super().__init__(broadcast_object, rank, model=model, optimizer=optimizer, **kwargs)

    def _handler_of(self, value: Any) -> StateHandler | None:
        if value is self.model:
            return _KerasVariablesHandler(value, self.optimizer)
        with_model = [*optimizers_of(self.model).values(), self.optimizer]
        if any(value is each for each in with_model):
            return _KeptWithModel(value)
        return _KerasVariablesHandler(value) if has_variables(value) else None


class _KerasVariablesHandler(StateHandler):
    """Saves, restores and broadcasts a variable, or an object with variables; for a model also the model's optimizers.

    Args:
        value: the object.
        optimizer: an optimizer to keep instead of the one with which a model was compiled.

    """

    def __init__(self, value: Any, optimizer: Any = None) -> None:
        super().__init__(value)
        self._optimizer = optimizer
        self._saved: dict[int, Any] = {}  # values by `identity_of`

    def save(self) -> None:
        self._saved = {identity_of(variable): np.array(read(variable)) for variable in self._variables()}

    def restore(self) -> None:
        variables = self._variables()
        made_since = {identity_of(each) for each in variables} - self._saved.keys()
        for variable in variables:
            if identity_of(variable) not in made_since:
                variable.assign(self._saved[identity_of(variable)])
        # An optimizer makes its slots in its first step. Slots that were made after the save get their first values again. Some
        # first values depend on the model's variables, so these have been restored before.
        for optimizer in self._optimizers().values() if made_since else ():
            for variable, value in first_values(optimizer, self.value.weights if self._is_model else ()):
                if identity_of(variable) in made_since:
                    variable.assign(value)
                    made_since.remove(identity_of(variable))
        if made_since:
            raise InvalidArgumentError(
                f"{type(self.value).__name__} of an elastic state has a variable that it did not have when it was saved: "
                "build it before"
            )

    def sync(self) -> None:
        if self._is_model:
            build_optimizers_alike(self.value, self._optimizers())
        broadcast_variables(self._variables(), root_rank=0)
        self.save()

    @property
    def _is_model(self) -> bool:
        return isinstance(self.value, keras.Model)

    def _optimizers(self) -> dict[str, Any]:
        if is_optimizer(self.value):
            return {"": self.value}
        own = {} if self._optimizer is None else {"optimizer": self._optimizer}
        return {**optimizers_of(self.value), **own} if self._is_model else {}

    def _variables(self) -> list[Any]:
        if hasattr(self.value, "jax_state_sync"):
            self.value.jax_state_sync()
        if is_variable(self.value):
            return [self.value]
        if self._is_model:
            return state_variables(self.value, self._optimizers().values())
        # Random seeds are not among the weights, so each rank keeps its own seeds.
        return list(self.value.weights if hasattr(self.value, "weights") else variables_of(self.value))


class _KeptWithModel(StateHandler):
    """Does nothing for an optimizer, because the handler of the model keeps the optimizer's variables."""

    def save(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def sync(self) -> None:
        pass


class CommitStateCallback(Callback):
    """Commits a state after every `batches_per_commit` batches, and at the end of each epoch.

    Args:
        state: the state.
        batches_per_commit: number of batches from one commit to the next. With ``steps_per_execution`` above 1 a commit comes
            at the end of the execution in which this number is reached.

    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit
        self._batches = BatchCount()

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count anew, so that all ranks commit after the same batches."""
        self.batches_remaining = self.batches_per_commit

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts to count the batches of the epoch."""
        self._batches.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if `batches_per_commit` batches have ended since the last commit."""
        self.batches_remaining -= self._batches.since_last(batch, self.params)
        if self.batches_remaining <= 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits the state."""
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Sets ``state.batch`` to the number of the batch that has just ended, and to 0 at the end of an epoch.

    Args:
        state: a state with an attribute `batch`.

    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets the number of batches of an epoch, because the data may have changed."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells the other callbacks how many batches of the epoch follow if training resumes at its batch ``state.batch``."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stores the number of the batch in the state."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stores 0 in the state."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Adds 1 to ``state.epoch`` at the end of each epoch. So it counts the complete epochs of all calls of ``fit``.

    Call ``fit`` with ``epochs=total - state.epoch``, or with ``epochs=total, initial_epoch=state.epoch``.

    Args:
        state: a state with an attribute `epoch`.

    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch in the state."""
        self.state.epoch += 1  # not by `epoch`, which Keras counts from the argument initial_epoch of this call of fit
