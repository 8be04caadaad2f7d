"""`DistributedOptimizer` for optimizers of ``tf.compat.v1.train``; those of Keras are handed to `hvdlite.keras`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from hvdlite.compression import Compression
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Adasum, Average
from hvdlite.start_check import mode_of
from hvdlite.tensorflow.aggregation import LocalAggregation
from hvdlite.tensorflow.arguments import Reduction
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.gradients import Gradient
from hvdlite.tensorflow.start_check import OPTIMIZER, ReducerWording, after_comparison
from hvdlite.tensorflow.tape import LocalSources, gradient_names
from hvdlite.tensorflow.tensors import as_weight

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    start_check: str | None = None,
) -> Any:
    """Lets an optimizer reduce gradients over the ranks before it applies them.

    An optimizer of ``tf.compat.v1.train`` reduces in `compute_gradients` (and so in `minimize`). With op=Adasum each rank takes
    a step of its own in `apply_gradients`, and what the steps have changed is reduced. An optimizer of Keras becomes
    what `hvdlite.tensorflow.keras.DistributedOptimizer` makes of it, with all of these arguments.

    Args:
        optimizer: it stays the object it is, with its slots, and gets another class. For v1 optimizers it gains a method
            `register_local_var(var)`: the gradient of that variable stays this rank's own, and the attribute `weight`: how much
            this rank's gradients count where the ranks' batches differ in size.
        name: accepted for compatibility with Horovod; the optimizer keeps its own.
        use_locking: accepted for compatibility with Horovod; not used.
        device_dense: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        device_sparse: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec, or `Compression.auto`.
        sparse_as_dense: make IndexedSlices dense before they are reduced?
        backward_passes_per_step: the number of passes to add up on each rank before they are reduced and applied.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, gradients are divided by it before they are added up, and multiplied after.
        average_aggregated_gradients: divide the sum of the passes by their number?
        num_groups: deprecated, see `groups`.
        groups: in how many groups the gradients are reduced, or lists of variables that are reduced together.
        process_set: the ranks that take part. On others the gradients are this rank's own.
        scale_local_gradients: divide gradients of local variables by the number of ranks?
        start_check: what follows if the ranks' variables differ after the first update (docs/sharp_edges.md): "error",
            "broadcast", "warn" or "off"; None leaves it to the knob.

    Returns:
        The optimizer.

    Raises:
        InvalidArgumentError: an argument is wrong, or this is no optimizer, or one that is wrapped already.

    """
    if _is_keras(optimizer):
        from hvdlite.tensorflow import keras  # here, as importing Keras takes long

        return keras.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            start_check=start_check,
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise InvalidArgumentError(
            "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: "
            f"{optimizer!r} is a {type(optimizer).__name__}"
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise InvalidArgumentError(f"{type(optimizer).__name__} is wrapped already: call DistributedOptimizer once")
    if op == Adasum and average_aggregated_gradients:
        raise InvalidArgumentError("average_aggregated_gradients needs op=Average or op=Sum: divide the loss instead")
    base = type(optimizer)
    mixin = _DistributedAdasumOptimizer if op == Adasum else _DistributedOptimizer
    reduction = Reduction(op, gradient_predivide_factor, compression, sparse_as_dense, groups or num_groups, process_set)
    local = LocalSources(scale_local_gradients, process_set)
    aggregation = LocalAggregation(
        backward_passes_per_step,
        average_aggregated_gradients,
        sparse_as_dense,
        lambda gradients, variables, weight: optimizer._hvdlite_reduce(gradients, variables, weight),
    )
    optimizer.__class__ = type(base.__name__, (mixin, base), {"__doc__": base.__doc__, "__module__": base.__module__})
    optimizer._hvdlite = _Wrapping(reduction, local, aggregation, mode_of(start_check, "DistributedOptimizer"))
    return optimizer


def _is_keras(optimizer: Any) -> bool:
    """Is this an optimizer of Keras? Told without importing Keras."""
    return any(base.__module__.partition(".")[0] in ("keras", "tf_keras") for base in type(optimizer).__mro__)


@dataclass
class _Wrapping:
    reduction: Reduction
    local: LocalSources
    aggregation: LocalAggregation
    start_check: str
    weight: tf.Tensor | None = None

    def compared(self, gradients: Sequence[Gradient], variables: Sequence[Any], reducer: ReducerWording) -> Any:
        """A context: operations made in it come after the ranks have compared their variables."""
        shared = [variable for variable in variables if variable not in self.local]
        return after_comparison(shared, gradients, self.reduction.process_set, self.start_check, reducer)


class _DistributedOptimizer:
    """Goes in front of an optimizer's class: gradients are reduced when they are computed."""

    _hvdlite: _Wrapping

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not issubclass(cls, tf.compat.v1.train.Optimizer):
            raise UnsupportedError(
                f"{cls.__qualname__} derives from Horovod's _DistributedOptimizer, here for isinstance() only: give "
                "an optimizer to DistributedOptimizer, and derive from that optimizer's class"
            )
        return super().__new__(cls)

    @property
    def _optimizer(self) -> Any:
        """The wrapped optimizer: this same object. Programs ask Horovod's optimizer for it."""
        return self

    @property
    def weight(self) -> tf.Tensor | None:
        """How much this rank's gradients count; None: as much as every other rank's.

        A number of 0 or more, or a scalar tensor, set before `compute_gradients` or `minimize` is called: see
        `DistributedGradientTape`. The weights of `backward_passes_per_step` passes add up. Needs op Average.
        """
        return self._hvdlite.weight

    @weight.setter
    def weight(self, weight: Any) -> None:
        wrapping = self._hvdlite
        wrapping.weight = None if weight is None else as_weight(weight, wrapping.reduction.op)

    def _hvdlite_reduce(self, gradients: list[Gradient], variables: list[Any], weight: tf.Tensor | None) -> list[Gradient]:
        wrapping = self._hvdlite
        with wrapping.compared(gradients, variables, OPTIMIZER):
            return wrapping.local.reduce(wrapping.reduction, gradients, variables, gradient_names(variables), weight)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays this rank's own."""
        self._hvdlite.local.add(var)

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient, Any]]:
        """As the optimizer's own, reduced over the ranks. Collective over the process set.

        Before the last of `backward_passes_per_step` passes: this rank's sums.
        """
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        gradients, variables = zip(*pairs, strict=True)
        found = self._hvdlite.aggregation.add(gradients, variables, self._hvdlite.weight)
        return list(zip(found, variables, strict=True))

    @as_written
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As the optimizer's own. Does nothing (`global_step` is not counted either) before the last pass."""
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs]
        return self._hvdlite.aggregation.apply(gradients, lambda: self._hvdlite_update(pairs, global_step, name))

    def _hvdlite_update(self, pairs: list[tuple[Gradient, Any]], global_step: Any, name: str | None) -> Any:
        return super().apply_gradients(pairs, global_step, name)  # type: ignore[misc]


_ADASUM = replace(OPTIMIZER, prefix="v1_adasum_optimizer", steps_alone=True)


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """Each rank takes its own step, and Adasum combines the changes of all steps."""

    def _hvdlite_reduce(self, gradients: list[Gradient], variables: list[Any], weight: tf.Tensor | None) -> list[Gradient]:
        local = self._hvdlite.local
        pairs = zip(gradients, variables, strict=True)
        return [local.finish([gradient])[0] if variable in local else gradient for gradient, variable in pairs]

    def _hvdlite_update(self, pairs: list[tuple[Gradient, Any]], global_step: Any, name: str | None) -> Any:
        shared = [variable for gradient, variable in pairs if gradient is not None and variable not in self._hvdlite.local]
        with self._hvdlite.compared([gradient for gradient, _ in pairs], shared, _ADASUM):
            before = [tf.identity(variable.read_value()) for variable in shared]
        with tf.control_dependencies(before):
            update = super()._hvdlite_update(pairs, global_step, name)
        with tf.control_dependencies([] if update is None else [update]):
            steps = [variable.read_value() - start for variable, start in zip(shared, before, strict=True)]
        reduced = self._hvdlite.reduction.apply(steps, shared, [f"{name}.step" for name in gradient_names(shared)])
        found = zip(shared, before, reduced, strict=True)
        return tf.group(*(tf.compat.v1.assign(variable, start + step) for variable, start, step in found))
