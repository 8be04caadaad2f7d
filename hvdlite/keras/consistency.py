"""`check_consistency` for Keras on any backend, and the callback that calls it in ``fit`` (`hvdlite.consistency`)."""

from collections.abc import Iterable, Sequence
from typing import Any

from hvdlite.agreement import name_of
from hvdlite.consistency import ConsistencyChecker, RankComparison, check_objects, leaves_of_arguments, variables_to_compare
from hvdlite.keras.arguments import is_optimizer
from hvdlite.keras.backends import current_backend
from hvdlite.keras.batches import BatchCount
from hvdlite.keras.library import KERAS_3, Callback, keras
from hvdlite.keras.model_state import optimizers_of
from hvdlite.keras.optimizer import is_distributed
from hvdlite.keras.sharding import common_variables
from hvdlite.keras.variables import read
from hvdlite.leaves import Leaf, leaves_in
from hvdlite.process_sets import ProcessSet, global_process_set

__all__ = ["ConsistencyCheckCallback", "check_consistency"]

_REMEDY = "hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0) gives all ranks what one has"


def check_consistency(
    *objects: Any, every: int | None = None, buffers: bool = False, process_set: ProcessSet | None = None
) -> ConsistencyChecker | None:
    """Checks that all ranks hold the same values, bit by bit. Collective over the process set; not for traced
    functions.

    Not-a-numbers and infinities are compared by their bits, too. Nothing is changed. On GPUs variables are copied to the host,
    one at a time.

    Args:
        objects: what to compare:

            - models and layers: their weights, frozen ones too. Other variables that no gradient changes, such as the moving
              averages of batch normalization, only with `buffers`. Random seeds are each rank's own.
            - optimizers, wrapped or not: all their variables (iterations, learning rate, slots). Left out is what each rank has
              by itself: slots with ``shard=True``, and sums of gradients that are not reduced yet. Variables that one rank
              alone trains (`PartialDistributedOptimizer`, ``register_local_var``) are left out of models, and their optimizer's
              variables altogether.
            - variables, tensors, arrays, numbers, and dicts, lists and tuples of all these.

            Variables are paired by their order, as names differ where a rank has made more models.
        every: None to compare now. A number of steps to get a checker, whose ``step()`` you call after each step of a loop of
            your own.
        buffers: compare the variables that no gradient changes, too?
        process_set: the ranks that are compared; None: those of the first wrapped optimizer among `objects`, or else all. A
            rank outside of it takes no part: nothing happens there.

    Returns:
        None; or, with `every`, the `hvdlite.consistency.ConsistencyChecker`.

    Raises:
        MismatchError, InvalidArgumentError, HorovodInternalError: as for `hvdlite.check_consistency`.
    """
    wrapped = [each for each in objects if is_optimizer(each) and is_distributed(each)]
    if process_set is None:
        process_set = wrapped[0]._hvdlite.settings.reduction.process_set if wrapped else global_process_set

    def leaves(given: Sequence[Any]) -> Iterable[tuple[str, Leaf]]:
        return leaves_of_arguments(given, _KerasLeaves(given, buffers))

    return check_objects(objects, every, RankComparison(leaves, process_set, _REMEDY, named=False))


class ConsistencyCheckCallback(Callback):
    """Checks in ``fit``, after each so many steps, that all ranks have the same model and optimizers; see `check_consistency`.

    Compared are the model's weights and the optimizers among the attributes of the model and its layers. A step is one update
    of the model, as the optimizer's ``iterations`` counts them: batches whose gradients are only accumulated do not count. With
    ``steps_per_execution`` the ranks compare after the execution in which the step is.

    Args:
        every: in steps.
        buffers: compare the variables that no gradient changes, too?
        process_set: the ranks that are compared; None: those of the model's optimizer if it is wrapped, or else all.

    Raises:
        InvalidArgumentError: (when ``fit`` begins) `every` is no whole number above 0.
        MismatchError: (in ``fit``) the ranks differ.

    """

    def __init__(self, every: int = 1000, buffers: bool = False, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self.every = every
        self._buffers = buffers
        self._process_set = process_set
        self._checker: ConsistencyChecker | None = None
        self._count = BatchCount()
        self._batches = 0  # since the step was read last
        self._enough = 0  # so many batches are needed at least before the next comparison

    def on_train_begin(self, logs: Any = None) -> None:
        """Makes a checker, which goes on from the optimizer's steps. Collective over the process set."""
        optimizers = optimizers_of(self.model).values()
        self._checker = check_consistency(
            self.model, *optimizers, every=self.every, buffers=self._buffers, process_set=self._process_set
        )
        assert self._checker is not None
        self._checker.steps = self._steps()
        self._enough = self._remaining()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch's batches from its first."""
        self._count.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compares, if it is time. Collective over the process set then."""
        self._batches += self._count.since_last(batch, self.params)
        if self._batches < self._enough:
            return
        assert self._checker is not None
        self._checker.advance_to(self._steps())
        self._batches, self._enough = 0, self._remaining()

    def _remaining(self) -> int:
        assert self._checker is not None
        return self.every - self._checker.steps % self.every

    def _steps(self) -> int:
        optimizer = self.model.optimizer  # where Keras 3 runs on JAX, self.model gives the variables their values
        return int(read(getattr(optimizer, "inner_optimizer", optimizer).iterations))


class _KerasLeaves:
    """Finds the leaves of what Keras trains."""

    def __init__(self, objects: Sequence[Any], buffers: bool) -> None:
        self._buffers = buffers
        self._local: set[int] = set()
        for each in objects:
            if is_optimizer(each) and is_distributed(each):
                self._local |= each._hvdlite.local_ids()

    def __call__(self, value: Any, path: str) -> Iterable[Leaf] | None:
        """See `hvdlite.leaves.FindLeaves`."""
        if is_optimizer(value):
            is_local = is_distributed(value) and bool(value._hvdlite.local_ids())
            return self._of_variables(() if is_local else common_variables(value))
        if isinstance(value, keras.layers.Layer):
            others = current_backend().other_variables(value) if self._buffers else ()
            return self._of_variables([*variables_to_compare(value, self._buffers), *others])
        if hasattr(value, "assign"):
            return leaves_in(read(value), path or name_of(value), lambda *_: None)
        if keras.ops.is_tensor(value) if KERAS_3 else hasattr(value, "numpy"):
            return leaves_in(read(value), path, lambda *_: None)
        return None

    def _of_variables(self, variables: Iterable[Any]) -> list[Leaf]:
        mine = [each for each in variables if not {id(each), id(getattr(each, "value", each))} & self._local]
        return [Leaf.of_array(name_of(each), read(each)) for each in mine]
