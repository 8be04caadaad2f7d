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
from hvdlite.keras.sharding import common_variables, shards_of
from hvdlite.keras.variables import broadcast_call, is_among, read
from hvdlite.leaves import Leaf, leaves_in
from hvdlite.process_sets import ProcessSet, global_process_set, root_of


def check_consistency(
    *objects: Any, every: int | None = None, buffers: bool = False, process_set: ProcessSet | None = None
) -> ConsistencyChecker | None:
    """Checks that all ranks hold the same values, bit by bit. Collective over the process set. Do not call it in a
    traced function.

    NaN and infinities are compared by their bits, too. The check changes no object. It needs host memory for all values of a
    rank at the same time.

    Args:
        objects: the objects to compare. Each is one of these:

            - a model or a layer: its weights are compared, frozen ones too. Other variables that no gradient changes, such as
              the moving averages of batch normalization, are compared only with `buffers`. Random seeds are never compared.
            - an optimizer, wrapped or not: all its variables are compared (iterations, learning rate, slots). Variables that
              differ between ranks by design are left out: slots with ``shard=True``, and sums of gradients that are not reduced
              yet. If a rank trains some variables alone (`PartialDistributedOptimizer`, ``register_local_var``), these
              variables are left out of models, and all variables of their optimizer are left out.
            - a variable, tensor, array or number, or a dict, list or tuple of all these.

            Variables are paired by their order and not by name, because names differ if a rank has made more models than
            others.
        every: None to compare now. A number of steps to get a checker, whose ``step()`` your own loop calls after each step.
        buffers: True: also compare the variables that no gradient changes.
        process_set: the ranks that are compared. None: the process set of the first wrapped optimizer among `objects`, or all
            ranks if none of them is wrapped. On a rank outside of the set nothing happens.

    Returns:
        None; with `every` a `hvdlite.consistency.ConsistencyChecker`.

    Raises:
        MismatchError, InvalidArgumentError, HorovodInternalError: as for `hvdlite.check_consistency`.
    """
    wrapped = [each for each in objects if is_optimizer(each) and is_distributed(each)]
    if process_set is None:
        process_set = wrapped[0]._hvdlite.settings.reduction.process_set if wrapped else global_process_set

    def leaves(given: Sequence[Any]) -> Iterable[tuple[str, Leaf]]:
        return leaves_of_arguments(given, _KerasLeaves(given, buffers))

    is_split = any(shards_of(each) is not None for each in wrapped)

    def remedy(among: ProcessSet) -> str:
        return f"{broadcast_call(among, is_split)} gives all ranks the values of rank {root_of(among)}"

    return check_objects(objects, every, RankComparison(leaves, process_set, remedy, named=False))


class ConsistencyCheckCallback(Callback):
    """Checks in ``fit``, after every `every` steps, that all ranks have the same model and optimizers; see `check_consistency`.

    The ranks compare the model's weights, and the optimizers among the attributes of the model and its layers. The optimizer's
    ``iterations`` count the steps. So a step is one update of the model: batches whose gradients are only accumulated do not
    count (in Keras 2 they do). With ``steps_per_execution`` above 1 the ranks compare after the execution that contains the
    step.

    Args:
        every: number of steps from one comparison to the next.
        buffers: True: also compare the variables that no gradient changes.
        process_set: the ranks that are compared. None: the process set of the first wrapped optimizer among those that are
            compared, or all ranks if none of them is wrapped.

    Raises:
        InvalidArgumentError: (when ``fit`` begins) `every` is no integer above 0.
        MismatchError: (in ``fit``) the ranks differ.

    """

    def __init__(self, every: int = 1000, buffers: bool = False, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self.every = every
        self._buffers = buffers
        self._process_set = process_set
        self._checker: Any = None  # until training begins
        self._count = BatchCount()
        self._batches = 0  # number of batches since the optimizer's iterations were read last
        self._enough = 0  # the next comparison comes after at least this number of batches

    def on_train_begin(self, logs: Any = None) -> None:
        """Makes a checker. Collective over the process set."""
        optimizers = optimizers_of(self.model).values()
        self._checker = check_consistency(
            self.model, *optimizers, every=self.every, buffers=self._buffers, process_set=self._process_set
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells the checker how many steps the optimizer has made, and begins to count the batches of the epoch."""
        # Not in on_train_begin, because there a callback that follows in the list may broadcast the number of steps.
        self._checker.steps = self._steps()
        self._batches, self._enough = 0, self._remaining()
        self._count.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compares if the number of steps has reached another multiple of `every`. Then collective over the process set."""
        self._batches += self._count.since_last(batch, self.params)
        if self._batches < self._enough:
            return
        self._checker.advance_to(self._steps())
        self._batches, self._enough = 0, self._remaining()

    def _remaining(self) -> int:
        steps: int = self._checker.steps
        return self.every - steps % self.every

    def _steps(self) -> int:
        optimizer = self.model.optimizer  # on JAX, reading self.model stores the current values in the variables
        return int(read(getattr(optimizer, "inner_optimizer", optimizer).iterations))


class _KerasLeaves:
    """Finds the leaves (arrays to compare) of models, layers, optimizers, variables and tensors."""

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
        return [Leaf.of_array(name_of(each), read(each)) for each in variables if not is_among(each, self._local)]
