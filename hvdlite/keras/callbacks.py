"""Callbacks for ``fit``: the names of ``horovod.keras.callbacks``.

(Over 400 lines, because Horovod has all callbacks in this module.)
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdlite import basics
from hvdlite.agreement import compare, only_on
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.keras.batches import BatchCount
from hvdlite.keras.consistency import ConsistencyCheckCallback
from hvdlite.keras.library import Callback, keras
from hvdlite.keras.model_state import build_optimizer, build_optimizers_alike, is_built, optimizers_of, state_variables
from hvdlite.keras.optimizer import is_distributed
from hvdlite.keras.sharding import Shards, shards_of
from hvdlite.keras.variables import broadcast_variables, facts_of, identity_of, is_among, read
from hvdlite.objects import allgather_object
from hvdlite.usage import mark_step

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "ConsistencyCheckCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MarkStepCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the root's model and optimizers at the start of each ``fit``, so that all ranks train one model.

    The callback broadcasts the weights, and all optimizers among the attributes of the model and of its layers (also in lists
    and dicts there). On TensorFlow it also broadcasts each ``tf.Variable`` there, and on torch the parameters and buffers of
    modules that Keras does not know. Of an optimizer it broadcasts iterations, averages of weights, and slots (the variables
    that the optimizer keeps for each weight, such as momentum), but not the slots that ``shard=True`` splits over the ranks. If
    only one rank has slots, for example from a checkpoint, the other ranks make them. The callback broadcasts no metrics, and
    no random seeds, because masks and augmentation must differ between ranks.

    The broadcast happens before the first batch, if all ranks have the same variables by then. On TensorFlow two kinds of
    variables exist only after the first batch: those of a model that was made without the shape of its input, and slots of
    legacy optimizers of Keras 2. In both cases all variables are broadcast after the first batch, as in Horovod. So with
    a model that was made without the shape of its input, the ranks make the first training step (with ``steps_per_execution``
    above 1, the first execution) from different weights, and get the root's weights after this step.

    Args:
        root_rank: the rank whose values all ranks get, for example because it has loaded a checkpoint.
        device: accepted for compatibility with Horovod; not used.
        local_variables: variables that are not broadcast, such as the weights of local layers (`PartialDistributedOptimizer`).
            The optimizer's slots for these variables are broadcast.

    Raises:
        MismatchError: (when ``fit`` begins, or after its first batch) the ranks' models or optimizers differ.

    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        del device
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: list[Any] = list(local_variables or ())
        self._sent: set[int] = set()  # ids of the variables that have been broadcast in this fit
        self._first_batch = True

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable out of the broadcast."""
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if all ranks have the same variables by now. Collective over all ranks."""
        _warn_unless_distributed(self.model)
        self.broadcast_done, self._first_batch = False, True
        self._sent = set()
        model, optimizers = self.model, optimizers_of(self.model)
        build_optimizers_alike(model, optimizers)
        if is_built(model):
            build_optimizer(model, model.optimizer)
        variables = self._variables()
        _, differing = compare(facts_of(variables), "keras.ready")
        if not differing:
            self._broadcast(variables)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After the first batch: broadcasts all variables if any rank has new ones. Collective over all ranks in this batch."""
        if not self._first_batch:
            return
        self._first_batch = False
        variables = self._variables()
        if any(allgather_object(any(identity_of(each) not in self._sent for each in variables), "keras.new_variables")):
            self._broadcast(variables)

    def _variables(self) -> list[Any]:
        """The variables of the model and its optimizers, without those of `register_local_var`."""
        local = {id(variable) for variable in self._local}
        variables = state_variables(self.model, optimizers_of(self.model).values())
        return [each for each in variables if identity_of(each) not in local and not is_among(each, local)]

    def _broadcast(self, variables: list[Any]) -> None:
        broadcast_variables(variables, self.root_rank)
        self._sent = {identity_of(variable) for variable in variables}
        self.broadcast_done = True


class MarkStepCallback(Callback):
    """Counts each batch of training as a step of `hvdlite.stats`. Does not communicate. See `hvdlite.mark_step`."""

    def __init__(self) -> None:
        super().__init__()
        self._batches = BatchCount()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts to count the batches of the epoch."""
        self._batches.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Marks the end of one step, or with ``steps_per_execution`` above 1 of all steps of an execution."""
        mark_step(self._batches.since_last(batch, self.params))


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch over all ranks. The history and the callbacks that follow in the list get the averages.

    Put this callback before ReduceLROnPlateau, EarlyStopping, TensorBoard and checkpoints, so that they make the same decisions
    on all ranks. All ranks have the same weight in the mean, even if their numbers of samples differ.

    Args:
        device: accepted for compatibility with Horovod; not used.

    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages each entry of `logs` that is a number, in place. Collective over all ranks.

        Raises:
            MismatchError: the ranks have different metrics, or only some ranks have validated in this epoch.

        """
        logged = (logs or {}).items()
        mine = {name: float(value) for name, value in logged if hasattr(value, "__float__") and np.ndim(value) == 0}
        everyone = allgather_object(mine, "keras.metrics")
        differing = only_on([list(theirs) for theirs in everyone], range(len(everyone)))
        if differing:
            raise MismatchError(
                f"MetricAverageCallback in epoch {epoch}: the ranks' logs hold different metrics: {differing}; compile the "
                "same metrics and validate in the same epochs on every rank, and put callbacks that only some ranks have "
                "after MetricAverageCallback"
            )
        for name in mine:
            logs[name] = float(np.mean([theirs[name] for theirs in everyone]))


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` from `start_epoch` on, until `end_epoch`.

    With ``steps_per_execution`` above 1 all batches of an execution have the rate of the execution's first batch. At the end of
    an epoch the rate is always that of the epoch's last batch.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function from the epoch to a factor, or a number f. A number stands for the function
            ``f ** (epoch - start_epoch)``.
        start_epoch: the first epoch in which the rate is set.
        end_epoch: the first epoch in which the rate is not set any more; None: the rate is set until training ends.
        staircase: True: the rate is set at the beginning of each epoch. False: the rate is set before each batch, and
            `multiplier` gets a fractional number of epochs.
        momentum_correction: multiply the accumulated momentum by the same factor as the rate (Goyal et al. 2017, section 2.1).
        steps_per_epoch: number of batches in an epoch. Needed if `staircase` is False and Keras does not know the number.

    Raises:
        InvalidArgumentError: `initial_lr` is None; or, when training begins, the number of batches in an epoch is needed and
            not known.

    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = self._given_steps = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Asks Keras for the number of batches in an epoch if that is needed. Raises InvalidArgumentError if Keras has none."""
        if not self.staircase and not self._given_steps:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to the "
                    f"{type(self).__name__}()"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keeps the number of the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate, before every batch, or with `staircase` only before the first batch of an epoch."""
        if not self._in_range():
            return
        if not self.staircase:
            self._set(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the rate of the epoch's last batch if `staircase` is False. Logs the present rate as ``lr``."""
        if not self.staircase and self._in_range():
            steps = self.steps_per_epoch or 1
            self._set(self.current_epoch + (steps - 1) / steps)
        if logs is not None:
            logs["lr"] = self._rate()

    def _in_range(self) -> bool:
        return self.start_epoch <= self.current_epoch and (self.end_epoch is None or self.current_epoch < self.end_epoch)

    def _rate(self) -> float:
        return float(read(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, after = self._rate(), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = after
        if self.momentum_correction and before and after != before:
            # SGD changes a weight by momentum * slot - rate * gradient. Horovod multiplies the momentum by after / before for
            # this one batch, but a compiled training step does not see a change of the momentum. To multiply the slot has the
            # same effect.
            for slot in _momentum_slots(optimizer):
                slot.assign(slot * (after / before))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size()`` to `initial_lr`, batch by batch.

    Args:
        initial_lr: the learning rate at the end of the warmup, usually the rate of one process multiplied by `size()`.
        warmup_epochs: number of epochs of the warmup.
        momentum_correction: as for `LearningRateScheduleCallback`.
        steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: if it is above 0, rank 0 prints a line at the end of the warmup.

    Raises:
        InvalidArgumentError: `initial_lr` is None; or, when training begins, the number of batches in an epoch is not known.

    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / (self.steps_per_epoch or 1)  # so that the last batch of an epoch gets a whole number
            return (epoch * (basics.size() - 1) / warmup_epochs + 1) / basics.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate, and prints a line at the end of the warmup if `verbose` is above 0."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint with ``save_best_only=True``, on rank 0 only: the other ranks write nothing.

    Put `MetricAverageCallback` before this callback, so that the best epoch is chosen by the metrics of all ranks.

    Args:
        monitor: as for Keras's ModelCheckpoint.
        verbose: as for Keras's ModelCheckpoint.
        mode: as for Keras's ModelCheckpoint.
        save_freq: as for Keras's ModelCheckpoint.
        save_weights_only: as for Keras's ModelCheckpoint. The state of an optimizer with ``shard=True`` is not in the file, and
            Keras warns that this state is missing when a model with an optimizer loads the file.
        filepath: path of the file to write. It may also be set before ``fit`` as an attribute, as Horovod's estimators do.

    Raises:
        InvalidArgumentError: (when ``fit`` begins, on rank 0) `filepath` is not set.
        UnsupportedError: (when ``fit`` begins) the optimizer has ``shard=True``, and `save_weights_only` is False.

    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        *,
        save_weights_only: bool = False,
        filepath: Any = None,
    ) -> None:
        suffix = ".weights.h5" if save_weights_only else ".keras"  # Keras 3 checks it
        super().__init__(
            filepath=f"unset{suffix}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def set_model(self, model: Any) -> None:
        """Raises UnsupportedError on all ranks if the file would need the whole state of an optimizer with ``shard=True``."""
        if not self.save_weights_only and _shards_in(model):
            raise UnsupportedError(
                "BestModelCheckpoint saves on rank 0 alone, but all ranks must take part to save an optimizer with shard=True: "
                "pass save_weights_only=True, or call model.save() on all ranks"
            )
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises InvalidArgumentError on rank 0 if `filepath` is not set."""
        if basics.rank() == 0 and self.filepath is None:
            raise InvalidArgumentError("BestModelCheckpoint has no filepath: set its filepath before fit()")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """As Keras's ModelCheckpoint, but on rank 0 only."""
        if basics.rank() == 0:
            with _without_shards(self.model):
                super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """As Keras's ModelCheckpoint, but on rank 0 only."""
        if basics.rank() == 0:
            with _without_shards(self.model):
                super().on_epoch_end(epoch, logs)


def _shards_in(model: Any) -> list[Shards]:
    return [shards for each in optimizers_of(model).values() if (shards := shards_of(each)) is not None]


@contextmanager
def _without_shards(model: Any) -> Iterator[None]:
    """A with statement in which one rank alone may save the model: files get no state of optimizers with ``shard=True``."""
    found = _shards_in(model)
    for shards in found:
        shards.left_out = True
    try:
        yield
    finally:
        for shards in found:
            shards.left_out = False


def _momentum_slots(optimizer: Any) -> list[Any]:
    """The slots of accumulated momentum, one for each variable that the optimizer trains; empty without momentum.

    The values of these slots include the learning rate.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "momentum", None):
        return []
    return [slot for slot in getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or () if slot is not None]


def _warn_unless_distributed(model: Any) -> None:
    """Warns if the optimizer is not wrapped, because then each rank trains its own model, and no error would show this."""
    stock = type(model).train_step is keras.Model.train_step
    if basics.size() > 1 and stock and not is_distributed(model.optimizer):
        warnings.warn(
            "this model is trained on several ranks, but its optimizer does not reduce gradients: the ranks' weights will "
            "differ. Compile it with hvdlite.keras.DistributedOptimizer(optimizer)",
            stacklevel=3,
        )
