"""The tape's side of the comparison of the ranks (`hvdlite.start_check`), in front of its reductions, eager or in graphs.

A tape knows the variables, but not the optimizer. So the variables have been updated once their values have changed since the
first reduction, and their optimizer's state is not compared. Programs of XLA, which cannot call Python, and graphs of
TensorFlow 1 are left alone.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.agreement import name_of
from hvdlite.process_sets import ProcessSet
from hvdlite.start_check import Leaf, StartCheck, mode_of
from hvdlite.tensorflow.functions import broadcast_variables
from hvdlite.tensorflow.variables import of_tensorflow
from hvdlite.tensorflow.xla import in_xla_context

__all__ = ["compare_before_reduction"]

_serials: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)  # as for optimizers
_CHECKS = "_hvdlite_checks"  # of a list's first variable, which lives as long as what is compared
_MOST_ROUNDS = 100  # without an update that changes something


def compare_before_reduction(sources: Sequence[Any], target: Any, process_set: ProcessSet) -> None:
    """Compares the ranks if it is time; in a graph, has that done whenever the graph runs.

    What the graph assigns to the variables afterwards waits for it, since it reads them: TensorFlow sees to that. So does what
    does not depend on gradients, such as weight decay.

    Args:
        sources: the variables. If one of them is something else, nothing is compared.
        target: what they are the gradients of; its value tells whether all ranks read the same data.
        process_set: the ranks that train together.

    """
    check = _check_of(sources, process_set)
    if check is None:
        return
    numbers = _numbers_in(target)
    if tf.executing_eagerly():
        if check.pending:
            check.round(*(tensor.numpy() for tensor in (*numbers, *check.variables)))
        return

    def round_of_graph() -> Any:
        return tf.numpy_function(
            check.round_of_graph, [*numbers, *(variable.read_value() for variable in check.variables)], tf.bool
        )

    tf.cond(check.pending_in_graphs, round_of_graph, lambda: tf.constant(False))


class _TrainedByTape:
    """The variables that a tape gives the gradients of."""

    remedy = (
        "Broadcast what one rank has, after the first step, which makes the optimizer's variables: "
        "hvd.broadcast_variables(model.variables, root_rank=0) and hvd.broadcast_variables(optimizer.variables, root_rank=0)"
    )
    evidence = "loss"
    moment = "after the first update"
    sharding = "Give each rank a part of it: dataset.shard(hvd.size(), hvd.rank())"

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet) -> None:
        self._variables = variables
        self._process_set = process_set
        self.values: Sequence[Any] = ()  # of the variables, in this round

    def parameters(self) -> Iterable[Leaf]:
        """See `Trained.parameters`."""
        return [Leaf.of_array(name_of(each), value) for each, value in zip(self._variables, self.values, strict=True)]

    def state(self) -> Iterable[Leaf]:
        """See `Trained.state`."""
        return ()

    def broadcast(self, root_rank: int) -> None:
        """See `Trained.broadcast`."""
        with tf.init_scope():
            broadcast_variables(self._variables, root_rank, self._process_set)


class _TapeCheck:
    """The check of the variables that one tape after another gives the gradients of."""

    def __init__(self, mode: str, variables: Sequence[Any], process_set: ProcessSet) -> None:
        self.pending = mode != "off"
        name = f"gradient_tape{next(_serials[tuple(process_set.ranks or ())])}"
        self._trained = _TrainedByTape(variables, process_set)
        self._check = StartCheck(mode, f"DistributedGradientTape ({name})", name, process_set, self._trained)
        self._lock = threading.Lock()
        self._first: list[int] = []
        self._rounds = 0
        self.variables = [of_tensorflow(variable) for variable in variables]
        with tf.init_scope():
            self.pending_in_graphs = tf.Variable(self.pending, trainable=False)

    def round(self, *numbers: Any) -> None:
        """What the ranks do together, all of them in the same reductions; a graph may have several at a time.

        Args:
            numbers: this rank's own, and behind them the values of the variables.

        """
        with self._lock:
            if self.pending:
                count = len(numbers) - len(self.variables)
                self._trained.values = numbers[count:]
                self._round(numbers[:count])
                self._trained.values = ()

    def round_of_graph(self, *numbers: Any) -> bool:
        """`round`, from one of TensorFlow's threads. A thread of our own makes the calls: of one that has called it and lives
        the engine believes that it may call again, and it would not see a deadlock.
        """
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.round, *numbers).result()
        return True

    def _round(self, numbers: Sequence[Any]) -> None:
        check = self._check
        self._rounds += 1
        if not check.updated:
            digests = [leaf.digest() for leaf in self._trained.parameters()]
            self._first = self._first or digests
            check.updated = digests != self._first
        found = np.array([np.sum(number, dtype=np.float64) for number in numbers])
        if check.watching and np.isfinite(found).all() and found.any():
            check.see([Leaf.of_array("", found)])
        try:
            check.round()
        finally:
            self.pending = check.pending and self._rounds < _MOST_ROUNDS
            if not self.pending:
                self.pending_in_graphs.assign(False)


def _check_of(sources: Sequence[Any], process_set: ProcessSet) -> _TapeCheck | None:
    if not process_set.included() or (process_set.size() or 1) == 1 or in_xla_context():
        return None
    variables = [of_tensorflow(source) for source in sources]
    if not variables or not all(isinstance(variable, tf.Variable) for variable in variables):
        return None
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return None
    checks: dict[Any, _TapeCheck] = variables[0].__dict__.setdefault(_CHECKS, {})
    key = (process_set.process_set_id, *map(id, variables))
    if key not in checks:
        checks[key] = _TapeCheck(mode_of(None, "DistributedGradientTape"), sources, process_set)
    return checks[key]


def _numbers_in(target: Any) -> list[Any]:
    found = [tf.convert_to_tensor(each) for each in tf.nest.flatten(target) if isinstance(each, tf.Tensor)]
    return [tensor for tensor in found if tensor.dtype.is_floating or tensor.dtype.is_integer]
