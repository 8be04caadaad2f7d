"""`DistributedOptimizer` for optimizers of ``tf.compat.v1.train``. It passes optimizers of Keras to `hvdlite.keras`."""

from dataclasses import replace
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
from hvdlite.tensorflow.start_check import OPTIMIZER
from hvdlite.tensorflow.tape import LocalSources, Wrapping, gradient_names
from hvdlite.tensorflow.tensors import as_weight


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
    """Makes an optimizer reduce gradients over the ranks before it applies them.

    An optimizer of ``tf.compat.v1.train`` (a v1 optimizer) reduces gradients in `compute_gradients`, and so in `minimize`. With
    op=Adasum it reduces no gradients: in `apply_gradients` each rank first updates its variables with its own gradients, and
    then the changes of the variables are reduced (Maleki et al., Scaling distributed training with adaptive summation, MLSys
    2021). An optimizer of Keras is wrapped by `hvdlite.tensorflow.keras.DistributedOptimizer`, with the same arguments.

    Args:
        optimizer: the optimizer. It is changed in place: it keeps its slots and gets another class. A v1 optimizer gets a
            method `register_local_var(var)`, which excludes the gradient of a variable from the reduction, and an attribute
            `weight`: the weight of this rank's gradients, for batches that differ in size.
        name: accepted for compatibility with Horovod; not used.
        use_locking: accepted for compatibility with Horovod; not used.
        device_dense: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        device_sparse: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec, or `Compression.auto`.
        sparse_as_dense: True: make IndexedSlices dense before they are reduced.
        backward_passes_per_step: number of backward passes whose gradients are added up on each rank before they are reduced
            and applied.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, a factor that divides the gradients before the sum and multiplies the result.
        average_aggregated_gradients: True: divide the sum over the passes by the number of passes.
        num_groups: deprecated, see `groups`.
        groups: a number of groups in which the gradients are reduced, or lists of variables whose gradients are reduced
            together.
        process_set: the ranks that take part. On other ranks gradients are not reduced.
        scale_local_gradients: True: divide the gradients that `register_local_var` has excluded by the number of ranks.
        start_check: the reaction if the ranks' variables differ after the first update (docs/sharp_edges.md): "error",
            "broadcast" (not in graphs of TensorFlow 1), "warn" or "off"; None: the knob HVDLITE_START_CHECK decides.

    Returns:
        The same optimizer, or for Keras what `hvdlite.tensorflow.keras.DistributedOptimizer` returns.

    Raises:
        InvalidArgumentError: an argument is wrong, `optimizer` is no optimizer, or a v1 optimizer is wrapped already.
        UnsupportedError: the compression keeps state from one training step to the next; or for Keras, as for `hvdlite.keras`.

    """
    if _is_keras(optimizer):
        given = dict(locals())  # all arguments, by name
        del given["use_locking"]
        from hvdlite.tensorflow import keras  # not at the top, because importing Keras takes long

        return keras.DistributedOptimizer(**given)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise InvalidArgumentError(
            "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: "
            f"{optimizer!r} is a {type(optimizer).__name__}"
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise InvalidArgumentError(f"{type(optimizer).__name__} is wrapped already: call DistributedOptimizer once")
    if op == Adasum and average_aggregated_gradients:
        raise InvalidArgumentError(
            "average_aggregated_gradients needs op=Average or op=Sum; with op=Adasum divide the loss yourself"
        )
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
    wrapping = Wrapping(reduction, local, mode_of(start_check, "DistributedOptimizer"))
    optimizer.__class__ = type(base.__name__, (mixin, base), {"__doc__": base.__doc__, "__module__": base.__module__})
    optimizer._hvdlite, optimizer._hvdlite_aggregation = wrapping, aggregation
    return optimizer


def _is_keras(optimizer: Any) -> bool:
    """Whether this is an optimizer of Keras. It does not import Keras."""
    return any(base.__module__.partition(".")[0] in ("keras", "tf_keras") for base in type(optimizer).__mro__)


class _DistributedOptimizer:
    """The mixin for v1 optimizers: reduces gradients when they are computed."""

    _hvdlite: Wrapping
    _hvdlite_aggregation: LocalAggregation

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not issubclass(cls, tf.compat.v1.train.Optimizer):
            raise UnsupportedError(
                f"{cls.__qualname__} derives from Horovod's _DistributedOptimizer, which hvdlite has for isinstance() only: "
                "derive from the class of a plain optimizer, and pass an instance to DistributedOptimizer"
            )
        return super().__new__(cls)

    @property
    def _optimizer(self) -> Any:
        """This object itself. Programs read the wrapped optimizer from this attribute of Horovod's optimizers."""
        return self

    @property
    def weight(self) -> tf.Tensor | None:
        """The weight of this rank's gradients in the mean over the ranks; None: all ranks have the same weight.

        A weight is a number of 0 or more, or a scalar tensor (see `DistributedGradientTape`). Set it before `compute_gradients`
        or `minimize` is called. The weights of `backward_passes_per_step` passes are added up. Setting another value, or a
        weight for an op other than Average, raises InvalidArgumentError.
        """
        return self._hvdlite.weight

    @weight.setter
    def weight(self, weight: Any) -> None:
        wrapping = self._hvdlite
        wrapping.weight = None if weight is None else as_weight(weight, wrapping.reduction.op)

    def _hvdlite_reduce(self, gradients: list[Gradient], variables: list[Any], weight: tf.Tensor | None) -> list[Gradient]:
        wrapping = self._hvdlite
        with wrapping.compared(gradients, variables, OPTIMIZER):
            return wrapping.reduce(gradients, variables, gradient_names(variables), weight)

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradient of this variable from the reduction."""
        self._hvdlite.local.add(var)

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient, Any]]:
        """As the optimizer's own method, but the gradients are reduced over the ranks. Collective over the process set.

        Of `backward_passes_per_step` passes only the last returns reduced gradients. The other passes return this rank's sums
        so far.
        """
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        gradients, variables = zip(*pairs, strict=True)
        found = self._hvdlite_aggregation.add(gradients, variables, self._hvdlite.weight)
        return list(zip(found, variables, strict=True))

    @as_written
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As the optimizer's own method, but only the last pass updates variables and increments `global_step`."""
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs]
        return self._hvdlite_aggregation.apply(gradients, lambda: self._hvdlite_update(pairs, global_step, name))

    def _hvdlite_update(self, pairs: list[tuple[Gradient, Any]], global_step: Any, name: str | None) -> Any:
        return super().apply_gradients(pairs, global_step, name)  # type: ignore[misc]


_ADASUM = replace(OPTIMIZER, prefix="v1_adasum_optimizer", steps_alone=True)


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """The mixin for Adasum: each rank updates its variables with its own gradients, and Adasum combines the ranks' changes."""

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
