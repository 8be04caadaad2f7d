"""The start check (`hvdlite.start_check`) in TensorFlow: compares the ranks' variables before their gradients are reduced.

A check has one *round* with each of the first reductions, eagerly or in graphs; in a round the ranks exchange digests.

A tape that reduces gradients knows the variables, but not when they are updated, and not the optimizer. So variables count as
updated when their values differ from those at the first reduction, and the optimizer's state is not compared. Programs of XLA
compare nothing, because they cannot call Python.
"""

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.agreement import name_of
from hvdlite.errors import HvdliteError, UnsupportedError
from hvdlite.leaves import Leaf
from hvdlite.process_sets import ProcessSet, counter_of_ranks, root_arguments
from hvdlite.start_check import StartCheck
from hvdlite.tensorflow.functions import broadcast_calls, broadcast_variables
from hvdlite.tensorflow.library import load
from hvdlite.tensorflow.variables import of_tensorflow
from hvdlite.tensorflow.xla import in_xla_context

# The number of the next start check, for each pair of a prefix (`ReducerWording.prefix`) and the ranks of a process set.
_serials: defaultdict[tuple[str, tuple[int, ...]], Iterator[int]] = defaultdict(itertools.count)
_flags = itertools.count()
_CHECKS = "_hvdlite_checks"  # attribute of the first variable of a list, with the checks that begin with this variable
_MOST_ROUNDS = 100  # a check ends after so many rounds, even if no update has changed a variable


@dataclass(frozen=True)
class ReducerWording:
    """The texts that describe a tape or an optimizer that reduces gradients.

    Attributes:
        function: name of the function that has made the tape or the optimizer.
        prefix: start of the names of its start checks.
        remedy: returns, for a process set, a text that says how to give the set's ranks the same variables.
        evidence: name of the values that are compared to find out whether the ranks read the same data.
        steps_alone: True: each rank updates the variables before the reduction, so they are compared before the update.
    """

    function: str
    prefix: str
    remedy: Callable[[ProcessSet], str]
    evidence: str
    steps_alone: bool = False


TAPE = ReducerWording(
    "DistributedGradientTape",
    "gradient_tape",
    lambda process_set: (
        "Broadcast the values of one rank after the first step, which makes the optimizer's variables: "
        f"{broadcast_calls(process_set)}"
    ),
    "loss",
)
OPTIMIZER = ReducerWording(
    "DistributedOptimizer",
    "v1_optimizer",
    lambda process_set: (
        "Broadcast the values of one rank: "
        + (
            "run in the session after the initializer "
            f"hvd.broadcast_variables(tf.compat.v1.global_variables(), {root_arguments(process_set)})"
            if process_set.process_set_id
            else "give the session hvd.BroadcastGlobalVariablesHook(0), or run hvd.broadcast_global_variables(0) in the "
            "session after the initializer"
        )
    ),
    "gradients",
)


def after_comparison(
    sources: Sequence[Any], evidence: Any, process_set: ProcessSet, mode: str, reducer: ReducerWording
) -> contextlib.AbstractContextManager[Any]:
    """Makes a round of the start check of `sources`, if a round is left; in a graph, operations that do so in each run.

    In a graph of TensorFlow 1, operations that must come after the comparison have to be made in the returned context. A
    ``tf.function`` needs no context for later assignments: the comparison reads the variables, and TensorFlow orders
    assignments after reads. This includes assignments that do not depend on gradients, such as weight decay.

    Args:
        sources: the variables. If an element is no variable, nothing is compared.
        evidence: tensors of this rank that differ between ranks if the ranks read different data.
        process_set: the ranks that train together.
        mode: the reaction if the variables differ, from `hvdlite.start_check.mode_of`.
        reducer: describes the tape or the optimizer that reduces the gradients of the variables.

    Returns:
        A context. Operations that are made in it wait for the comparison.

    Raises:
        MismatchError: the ranks' variables differ, and `mode` is "error".
        UnsupportedError: `mode` is "broadcast" in a graph of TensorFlow 1.

    """
    check = _check_of(sources, process_set, mode, reducer)
    if check is None:
        return contextlib.nullcontext()
    numbers = _numbers_in(evidence)
    if tf.executing_eagerly():
        if check.pending:
            check.round(*(tensor.numpy() for tensor in (*numbers, *check.variables)))
        return contextlib.nullcontext()

    # The program need not initialize the variable `over`. After the last round it gets a value, so no run makes another round.
    with tf.device("CPU:0"):
        over = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=check.flag)

    def end() -> Any:
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=over, value=True)]):
            return tf.constant(True)

    def round_of_graph() -> Any:
        values = [*numbers, *(variable.read_value() for variable in check.variables)]
        code, text, is_last = tf.numpy_function(check.round_of_graph, values, (tf.int32, tf.uint8, tf.bool))
        with tf.device("CPU:0"):
            outcome = load().hvdlite_outcome(code=code, text=text)
        with tf.control_dependencies([outcome]):
            return tf.cond(is_last, end, lambda: tf.constant(False))

    is_over = tf.cond(tf.raw_ops.VarIsInitializedOp(resource=over), lambda: tf.constant(True), round_of_graph)
    wait: contextlib.AbstractContextManager[Any] = tf.control_dependencies([is_over])
    return wait


class _TrainedInTensorFlow:
    """What the start check needs to know of the variables whose gradients are reduced (`hvdlite.start_check.Trained`)."""

    def __init__(self, reducer: ReducerWording, variables: Sequence[Any], process_set: ProcessSet) -> None:
        ranks = counter_of_ranks(process_set)
        self.remedy = reducer.remedy(process_set)
        self.data_remedy = f"Give each rank a part of it: dataset.shard({ranks}.size(), {ranks}.rank())"
        self.evidence = reducer.evidence
        self.shares_state = False
        self.moment = "before the first update" if reducer.steps_alone else "after the first update"
        self._variables = variables
        self._process_set = process_set
        self.values: Sequence[Any] = ()  # values of the variables in this round

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


class _Check:
    """The start check of one list of variables whose gradients are reduced together. Several tapes may use one check."""

    def __init__(self, mode: str, variables: Sequence[Any], process_set: ProcessSet, reducer: ReducerWording) -> None:
        self._open = True
        name = f"{reducer.prefix}{next(_serials[reducer.prefix, tuple(process_set.ranks or ())])}"
        self._trained = _TrainedInTensorFlow(reducer, variables, process_set)
        self._check = StartCheck(mode, f"{reducer.function} ({name})", name, process_set, self._trained)
        self._check.updated = reducer.steps_alone
        self._lock = threading.Lock()
        self._first: list[int] = []
        self._rounds = 0
        self.variables = [of_tensorflow(variable) for variable in variables]
        self.flag = f"hvdlite_start_check{next(_flags)}"  # unique in this process

    @property
    def pending(self) -> bool:
        """Whether the check has rounds left."""
        return self._open and self._check.pending

    def round(self, *numbers: Any) -> None:
        """Makes a round, if a round is left. All ranks make a round at the same reduction. Collective over the process set.

        A graph may call this method from several threads at a time.

        Args:
            numbers: the values of the evidence on this rank, followed by the values of the variables.

        """
        with self._lock:
            if self.pending:
                count = len(numbers) - len(self.variables)
                self._trained.values = numbers[count:]
                self._round(numbers[:count])
                self._trained.values = ()

    def round_of_graph(self, *numbers: Any) -> tuple[Any, Any, Any]:
        """Calls `round` for a graph, in a new thread that ends after the call.

        A thread of TensorFlow must not make the call, because it lives on. The engine expects that each living thread that has
        called the engine may call again, so the engine would not detect a deadlock.

        Returns:
            The code of hvdlite's error (0: no error), the bytes of the error's text, and whether the check has no round left.

        """
        code, text = 0, ""
        try:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self.round, *numbers).result()
        except HvdliteError as error:
            code, text = error.code, str(error)
        return np.int32(code), np.frombuffer(text.encode(), np.uint8), np.bool_(not self.pending)

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
            self._open = self._rounds < _MOST_ROUNDS


def _check_of(sources: Sequence[Any], process_set: ProcessSet, mode: str, reducer: ReducerWording) -> _Check | None:
    if mode == "off" or not process_set.included() or (process_set.size() or 1) == 1 or in_xla_context():
        return None
    variables = [of_tensorflow(source) for source in sources]
    if not variables or not all(isinstance(variable, tf.Variable) for variable in variables):
        return None
    if mode == "broadcast" and not tf.compat.v1.executing_eagerly_outside_functions():
        raise UnsupportedError(
            f"{reducer.function}: start_check='broadcast' cannot assign to variables of TensorFlow 1's graphs. "
            f"{reducer.remedy(process_set)}"
        )
    checks: dict[Any, _Check] = variables[0].__dict__.setdefault(_CHECKS, {})
    key = (reducer.prefix, process_set, *map(id, variables))  # a later set may have its number
    if key not in checks:
        checks[key] = _Check(mode, sources, process_set, reducer)
    return checks[key]


def _numbers_in(evidence: Any) -> list[Any]:
    flat = tf.nest.flatten(evidence)
    found = [each.values if isinstance(each, tf.IndexedSlices) else each for each in flat]
    found = [tf.convert_to_tensor(each) for each in found if isinstance(each, tf.Tensor)]
    return [tensor for tensor in found if tensor.dtype.is_floating or tensor.dtype.is_integer]
