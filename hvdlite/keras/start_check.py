"""Compares the ranks' models in the first steps of training with Keras (`hvdlite.start_check`).

In ``fit`` the ranks compare after a batch, when all callbacks have run, and not within the training step. There are three
reasons: a step may be a program that XLA has compiled, a callback may broadcast after the first batch, and on JAX variables
have their current values only between two batches. If a program calls ``train_on_batch``, the ranks compare before the second
call. If a program applies gradients eagerly in its own loop, the ranks compare before the second update. In traced loops the
backend compares (`KerasBackend.compare_when_run`).

With ``shard=True`` all ranks have a mix of the ranks' variables after the first step. So the ranks also compare before it.
"""

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdlite.agreement import name_of
from hvdlite.keras.attributes import held_by
from hvdlite.keras.library import keras
from hvdlite.keras.sharding import common_variables
from hvdlite.keras.variables import broadcast_call, broadcast_variables, read
from hvdlite.leaves import Leaf
from hvdlite.process_sets import counter_of_ranks
from hvdlite.start_check import StartCheck

if TYPE_CHECKING:
    from hvdlite.keras.reducer import Reducer


class _TrainedByKeras:
    """The variables whose gradients an optimizer reduces, and the optimizer's own variables (`hvdlite.start_check.Trained`)."""

    evidence = "results"
    shares_state = False

    def __init__(self, reducer: "Reducer", optimizer: Any, moment: str) -> None:
        self.moment = moment
        self.variables: Sequence[Any] = reducer.known
        self._optimizer = weakref.ref(optimizer)
        self._reducer = reducer
        settings = reducer.settings
        self._process_set = process_set = settings.reduction.process_set
        ranks = counter_of_ranks(process_set)
        size, rank = f"{ranks}.size()", f"{ranks}.rank()"
        self.data_remedy = f"Give each rank a part of it: dataset.shard({size}, {rank}), or x[{rank}::{size}] for arrays"
        # The callback broadcasts to all ranks of the job, so it is no remedy for another process set.
        callback = "give fit() the callback hvd.callbacks.BroadcastGlobalVariablesCallback(0), or "
        when = "before" if settings.shard else "after"
        self.remedy = (
            f"Broadcast the values of one rank: {'' if process_set.process_set_id else callback}call "
            f"{broadcast_call(process_set, settings.shard)} {when} the first step of your own loop"
        )

    def parameters(self) -> Iterable[Leaf]:
        """See `Trained.parameters`."""
        return _leaves_of(self.variables)

    def state(self) -> Iterable[Leaf]:
        """See `Trained.state`. It is empty if the optimizer's variables differ between ranks by design (`Reducer.differs`)."""
        return _leaves_of(self._own_variables())

    def broadcast(self, root_rank: int) -> None:
        """See `Trained.broadcast`."""
        broadcast_variables([*self.variables, *self._own_variables()], root_rank, self._process_set)

    def _own_variables(self) -> Sequence[Any]:
        optimizer = self._optimizer()
        if optimizer is None or self._reducer.differs():
            return ()
        return common_variables(optimizer)


class KerasCheck:
    """Compares the ranks' models for one wrapped optimizer, in rounds: a round is one call of `StartCheck.round`.

    Attributes:
        after_batches: True: Keras makes the steps (``fit``, ``train_on_batch``), so rounds come after batches.
        results: the results of the last ``train_on_batch``, by index; None: there was no call yet.
    """

    def __init__(self, reducer: "Reducer", optimizer: Any) -> None:
        settings = reducer.settings

        def check(moment: str, name: str) -> tuple[_TrainedByKeras, StartCheck]:
            trained = _TrainedByKeras(reducer, optimizer, f"{moment} the first update")
            label = f"DistributedOptimizer ({settings.prefix})"
            return trained, StartCheck(settings.start_check, label, name, settings.reduction.process_set, trained)

        _, self._check = check("after", settings.prefix)
        self._check.updated = True  # rounds begin after the first update
        self._before = check("before", f"{settings.prefix}.before") if settings.shard else None
        self._optimizer = weakref.ref(optimizer)
        self._reducer = reducer
        self._batches = False  # has `before_batch` been called?
        self.after_batches = False
        self.results: dict[Any, Any] | None = None
        self._updates = 0
        if self._check.pending:
            _pending.add(self)

    def after_batch(self, logs: dict[Any, Any] | None) -> None:
        """Makes a round after a batch of Keras. It compares the results of the batch (loss, metrics) instead of gradients."""
        if not self._reducer.known:
            return
        if self._check.watching and logs:
            results = np.array([float(read(value)) for value in logs.values() if np.ndim(value) == 0], np.float64)
            self._check.see([Leaf.of_array("", results)] if np.isfinite(results).all() and results.any() else ())
        self._round()

    def before_update(self, gradients: Iterable[Any]) -> None:
        """Makes a round before each update that the program makes eagerly in its own loop, but not before the first update."""
        self._updates += 1
        self._compare_before(self._reducer.known)
        if self.after_batches or self._updates == 1 or not self._check.pending:
            return
        if self._check.watching:
            arrays = [read(_values_of(gradient)) for gradient in gradients if gradient is not None]
            self._check.see(Leaf.of_array("", array) for array in arrays if array.any())
        self._round()

    def before_batch(self, model: Any) -> None:
        """With ``shard=True`` compares variables before the first batch of Keras, if they exist on all ranks by then."""
        self.after_batches = True
        if self._before is None or self._batches or not self._before[1].pending:
            return
        self._batches = True
        self._reducer.agree()  # now, because ranks whose optimizer has other settings do not compare variables
        optimizer: Any = self._optimizer()
        built = getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables
        self._compare_before(built or (model.trainable_variables if optimizer is model.optimizer else ()))

    def before_single_batch(self, model: Any) -> None:
        """Makes a round before a call of ``train_on_batch``, but not before the first call."""
        self.before_batch(model)
        if self.results is not None:
            self.after_batch(self.results)

    def _compare_before(self, variables: Sequence[Any]) -> None:
        if self._before is not None and self._before[1].pending:
            trained, check = self._before
            trained.variables = variables
            check.updated = len(variables) > 0
            check.round()

    def _round(self) -> None:
        try:
            if self._check.pending:
                self._check.round()
        finally:
            if not self._check.pending:
                _pending.discard(self)


# The checks of all wrapped optimizers that still have rounds to make.
_pending: "weakref.WeakSet[KerasCheck]" = weakref.WeakSet()


def follow_batches() -> None:
    """From now on Keras calls, at each batch, the pending checks of the model's optimizers. Further calls do nothing."""
    if hasattr(keras.Model.train_on_batch, "_hvdlite"):
        return
    kind = keras.callbacks.CallbackList
    begin, end, single = kind.on_train_batch_begin, kind.on_train_batch_end, keras.Model.train_on_batch

    @functools.wraps(begin)
    def on_train_batch_begin(self: Any, batch: Any, logs: Any = None) -> Any:
        result = begin(self, batch, logs)
        model = _model_of(self)
        for check in _checks_of(model):
            check.before_batch(model)
        return result

    @functools.wraps(end)
    def on_train_batch_end(self: Any, batch: Any, logs: Any = None) -> Any:
        result = end(self, batch, logs)
        checks = _checks_of(_model_of(self))
        if checks:
            _ = self.model  # on JAX, reading self.model stores the current values in the variables
        for check in checks:
            check.after_batch(logs)
        return result

    @functools.wraps(single)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        checks = _checks_of(self)
        for check in checks:
            check.before_single_batch(self)
        results = single(self, *args, **kwargs)
        for check in checks:
            check.results = dict(enumerate(results.values() if isinstance(results, dict) else np.ravel(results)))
        return results

    train_on_batch._hvdlite = True  # type: ignore[attr-defined]
    kind.on_train_batch_begin, kind.on_train_batch_end = on_train_batch_begin, on_train_batch_end
    keras.Model.train_on_batch = train_on_batch


def _model_of(callbacks: Any) -> Any:
    return getattr(callbacks, "_model", None) or callbacks.model


def _checks_of(model: Any) -> list[KerasCheck]:
    if not _pending:
        return []
    wrapped = held_by(model, lambda value: hasattr(type(value), "_hvdlite")).values()
    return [optimizer._hvdlite.check for optimizer in wrapped if optimizer._hvdlite.check in _pending]


def _values_of(gradient: Any) -> Any:
    values = getattr(gradient, "values", None)  # for a tensor a method, for IndexedSlices of TensorFlow a tensor
    return gradient if values is None or callable(values) else values


def _leaves_of(variables: Iterable[Any]) -> list[Leaf]:
    return [Leaf.of_array(name_of(variable), read(variable)) for variable in variables]
