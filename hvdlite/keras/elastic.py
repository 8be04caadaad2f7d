"""``horovod.keras.elastic``: the state of a training with ``fit``, committed, restored, synchronised. See docs/elastic.md."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdlite import elastic
from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler, has_variables, is_variable
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.keras.arguments import is_optimizer
from hvdlite.keras.backends import current_backend
from hvdlite.keras.batches import BatchCount
from hvdlite.keras.library import keras
from hvdlite.keras.model_state import build_optimizer, build_optimizers_alike, is_built, optimizers_of, state_variables
from hvdlite.keras.sharding import shards_of
from hvdlite.keras.variables import broadcast_variables, identity_of, read, variables_of
from hvdlite.objects import broadcast_object

if TYPE_CHECKING:

    class _ElasticCallback:
        """What is used of Keras's callbacks."""

        params: dict[str, Any]

else:
    _ElasticCallback = keras.callbacks.Callback

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """As `hvdlite.elastic.run`; errors of the backend that mean a lost rank are raised as HorovodInternalError first."""
    return elastic.run(func, current_backend().loss_in)


class KerasState(ObjectState):
    """Keeps a model, its optimizers, and Python objects, which are its attributes.

    Other models, layers, optimizers, metrics and variables stay the objects they are, wherever attributes refer to them; their
    variables are saved, restored and sent.

    Args:
        model: built, so that all its variables exist. All optimizers among its attributes and its layers' are kept.
        optimizer: kept in the place of the one that the model was compiled with.
        **kwargs: names and first values of other attributes, such as ``epoch=0, batch=0``.

    Raises:
        InvalidArgumentError: the model is not built, has no optimizer, or a name is one of the state's own methods.

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
                "KerasState cannot keep an optimizer with shard=True, of whose state each rank has a part: leave shard out"
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
    """Of what has variables, or is one; of a model together with its optimizers.

    Args:
        value: the object.
        optimizer: kept in the place of the one that a model was compiled with.

    """

    def __init__(self, value: Any, optimizer: Any = None) -> None:
        super().__init__(value)
        self._optimizer = optimizer
        self._saved: dict[int, Any] = {}  # values by `identity_of`

    def save(self) -> None:
        self._saved = {identity_of(variable): np.array(read(variable)) for variable in self._variables()}

    def restore(self) -> None:
        slots = {identity_of(variable) for each in self._optimizers().values() for variable in variables_of(each)}
        for variable in self._variables():
            value = self._saved.get(identity_of(variable))
            if value is None and identity_of(variable) not in slots:
                raise InvalidArgumentError(
                    f"{type(self.value).__name__} of an elastic state has a variable that it had not when it was saved: build "
                    "it before"
                )
            # The first step makes slots, whose value before it is zero.
            variable.assign(np.zeros_like(read(variable)) if value is None else value)

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
        # Random seeds, which are no weights, stay each rank's.
        return list(self.value.weights if hasattr(self.value, "weights") else variables_of(self.value))


class _KeptWithModel(StateHandler):
    """Of an optimizer whose variables the model's handler keeps."""

    def save(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def sync(self) -> None:
        pass


class CommitStateCallback(_ElasticCallback):
    """Commits a state after so many batches, and at the end of each epoch.

    Args:
        state: the state.
        batches_per_commit: how many; with ``steps_per_execution`` above 1 at the end of the execution in which they end.

    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit
        self._batches = BatchCount()

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew, so that all ranks count alike."""
        self.batches_remaining = self.batches_per_commit

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch's batches from its first."""
        self._batches.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits when it is time."""
        self.batches_remaining -= self._batches.since_last(batch, self.params)
        if self.batches_remaining <= 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchStateCallback(_ElasticCallback):
    """Keeps ``state.batch`` at the last batch that was trained on; between epochs it is 0.

    Args:
        state: has an attribute `batch`.

    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets how many steps an epoch had."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells the other callbacks how many steps are left, in an epoch that goes on."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins again."""
        self.state.batch = 0


class UpdateEpochStateCallback(_ElasticCallback):
    """Keeps ``state.epoch`` at the number of epochs that are complete, those before ``fit`` was called among them.

    Args:
        state: has an attribute `epoch`.

    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras counts from 0 in each call of ``fit``."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1
