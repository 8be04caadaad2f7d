"""Adds up the gradients of several backward passes on each rank, and reduces the sums once."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdlite.checks import check_passes
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.tensorflow.gradients import Gradient
from hvdlite.tensorflow.variables import identity_of

# A function of gradients, their variables, and this rank's weight.
Reduce = Callable[[list[Gradient], list[Any], Any], list[Gradient]]


class LocalAggregation:
    """Adds up gradients in its own variables, eagerly, in a ``tf.function`` or in a graph of TensorFlow 1.

    The first backward pass makes the variables. In a graph of TensorFlow 1 they are local variables
    (``tf.compat.v1.local_variables_initializer``): each rank has its own, and they are not saved. If `passes` is 1, there are
    no variables, and the gradients of each pass are reduced.

    Args:
        passes: number of backward passes whose gradients are added up.
        average: True: divide the sums by the number of passes.
        sparse_as_dense: True: make IndexedSlices dense. Otherwise `add` refuses IndexedSlices, unless `passes` is 1.
        reduce: the function that reduces the sums over the ranks.

    Raises:
        InvalidArgumentError: `passes` is no integer above 0.

    """

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool, reduce: Reduce) -> None:
        check_passes(passes)
        self._passes = passes
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._reduce = reduce
        self._count: Any = None
        self._sums: dict[int, Any] = {}
        self._variables: list[Any] = []  # those of the sums; kept alive, so that no other object gets their ids
        self._weights: Any = None

    @property
    def counter(self) -> Any:
        """The variable that counts the passes since the last reduction; None before the first pass, or if `passes` is 1."""
        return self._count

    def add(self, gradients: Sequence[Gradient], variables: Sequence[Any], weight: tf.Tensor | None = None) -> list[Gradient]:
        """Adds the gradients of one backward pass to the sums, and reduces the sums in the last pass.

        Args:
            gradients: one for each variable. The same gradients are None in every pass.
            variables: the variables of the gradients, the same in every pass.
            weight: the weight of this rank, a float64 scalar. The weights of the passes are added up. Either every pass has a
                weight, or no pass has one.

        Returns:
            In the last pass the reduced sums, in the other passes this rank's sums so far. A gradient that is None stays None.

        Raises:
            UnsupportedError: a gradient is IndexedSlices, `sparse_as_dense` is False, and `passes` is above 1.
            InvalidArgumentError: (if `passes` is above 1) the gradients of this pass belong to other variables than before, or
                only some passes have a weight.

        """
        if self._passes == 1:
            return self._reduce(list(gradients), list(variables), weight)
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        chosen = [variables[place] for place in places]
        own = [self._dense(gradients[place]) for place in places]
        self._make(places, own, chosen, weight is not None)
        sums = [self._sums[place] for place in places]
        if weight is not None:
            sums, own = [*sums, self._weights], [*own, weight]
        with tf.control_dependencies([total.assign_add(gradient) for total, gradient in zip(sums, own, strict=True)]):
            values = [tf.identity(total.read_value()) for total in sums]
        with tf.control_dependencies(values), tf.control_dependencies([self._count.assign_add(1)]):
            last = tf.equal(self._count.read_value(), self._passes)
        outputs = tf.cond(
            last,
            lambda: self._finish(values, sums, chosen),
            lambda: [tf.identity(value) for value in values[: len(places)]],
        )
        found = dict(zip(places, outputs, strict=True))
        return [found.get(place) for place in range(len(gradients))]

    def apply(self, gradients: Sequence[Gradient], apply: Callable[[], Any], otherwise: Callable[[], Any] = tf.no_op) -> Any:
        """Calls `apply` in the last pass, and `otherwise` in the other passes.

        Args:
            gradients: results of `add`, or tensors that were computed from them. In a graph both functions run after them.
            apply: a function that updates the variables.
            otherwise: the function for passes in which no variable is updated.

        Returns:
            The result of the function that was called.

        Raises:
            InvalidArgumentError: `passes` is above 1, and `add` has not been called.

        """
        if self._passes == 1:
            return apply()
        if self._count is None:
            raise InvalidArgumentError("with backward_passes_per_step > 1 call compute_gradients before apply_gradients")
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            finished = tf.equal(self._count.read_value(), 0)
        return tf.cond(finished, apply, otherwise)

    def _finish(self, values: list[tf.Tensor], sums: list[Any], variables: list[Any]) -> list[tf.Tensor]:
        totals = [value / tf.cast(self._passes, value.dtype) if self._average else value for value in values[: len(variables)]]
        # The sums are reset before the reduction, so that the next pass begins anew even if the reduction fails.
        resets = [total.assign(tf.zeros_like(value)) for total, value in zip(sums, values, strict=True)]
        with tf.control_dependencies([*resets, self._count.assign(0)]):
            reduced = self._reduce(
                [tf.identity(total) for total in totals], variables, None if self._weights is None else tf.identity(values[-1])
            )
        return [tf.identity(value) for value in reduced]

    def _dense(self, gradient: Gradient) -> tf.Tensor:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise UnsupportedError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False: pass "
                "sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)

    def _make(self, places: list[int], gradients: list[tf.Tensor], variables: list[Any], weighted: bool) -> None:
        known = (list(self._sums), [identity_of(variable) for variable in self._variables])
        if self._count is not None and known != (places, [identity_of(variable) for variable in variables]):
            raise InvalidArgumentError(
                "with backward_passes_per_step > 1 every pass must have gradients of the same variables; use one optimizer for "
                "each list of variables"
            )
        if self._count is not None and weighted != (self._weights is not None):
            raise InvalidArgumentError(
                "with backward_passes_per_step > 1 either every pass has a weight, or none: set optimizer.weight before the "
                "first pass, and never set it to None"
            )
        if self._count is not None:
            return
        self._variables = variables
        with tf.init_scope():
            self._count = _local_variable("hvdlite_passes", (), tf.int64)
            for place, gradient, variable in zip(places, gradients, variables, strict=True):
                self._sums[place] = _local_variable(f"hvdlite_sum_{place}", variable.shape, gradient.dtype)
            if weighted:
                self._weights = _local_variable("hvdlite_weights", (), tf.float64)


def _local_variable(name: str, shape: Any, dtype: tf.DType) -> Any:
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, dtype),
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        name=name,
        use_resource=True,
    )
