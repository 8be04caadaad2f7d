"""Keras on TensorFlow, also Keras 2. Steps run eagerly or in graphs, and XLA may compile the graphs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite import ops
from hvdlite.errors import HorovodInternalError, UnsupportedError
from hvdlite.keras.attributes import held_by
from hvdlite.keras.backends import GradientStep, KerasBackend, Reduction, SharedVariables
from hvdlite.keras.library import KERAS_3
from hvdlite.keras.variables import broadcast_call
from hvdlite.requests import Kind
from hvdlite.tensorflow import collective_ops, xla
from hvdlite.tensorflow.elastic import loss_in
from hvdlite.tensorflow.gradients import allreduce_gradients
from hvdlite.tensorflow.start_check import TAPE, ReducerWording, after_comparison
from hvdlite.tensorflow.tensors import as_tensor, as_weight

_LOOP = ReducerWording("DistributedOptimizer", "keras_loop", TAPE.remedy, "gradients")
_SHARDED_LOOP = ReducerWording(
    "DistributedOptimizer",
    "keras_sharded_loop",
    lambda process_set: f"Broadcast the values of one rank before the first step: {broadcast_call(process_set, True)}",
    "gradients",
    steps_alone=True,
)


class TensorFlowKerasBackend(KerasBackend):
    """Calls the functions of `hvdlite.tensorflow`."""

    traces_steps = True

    def is_eager(self, tensors: Sequence[Any]) -> bool:
        """As `KerasBackend.is_eager`."""
        return bool(tf.executing_eagerly())

    def check_supported(self) -> None:
        """Refuses strategies of ``tf.distribute``, which would distribute the training a second time."""
        if tf.distribute.has_strategy():
            raise UnsupportedError(
                f"Keras trains under a {type(tf.distribute.get_strategy()).__name__} of tf.distribute, which hvdlite "
                "does not support: leave the strategy out, and start one rank for each device"
            )

    def reduce_gradients(self, step: GradientStep) -> list[Any]:
        """As `KerasBackend.reduce_gradients`."""
        reduction = step.reduction
        return allreduce_gradients(
            step.gradients,
            step.names,
            op=reduction.op,
            prescale_factor=reduction.prescale,
            postscale_factor=reduction.postscale,
            compression=reduction.compression,
            sparse_as_dense=reduction.sparse_as_dense,
            groups=step.groups,
            process_set=reduction.process_set,
            scoped=False,  # names of the first rank; Keras numbers its scopes, and the numbers may differ between ranks
            weight=step.weight,
        )

    def as_weight(self, weight: Any, op: int) -> tf.Tensor:
        """As `KerasBackend.as_weight`."""
        return as_weight(weight, op)

    def new_weight_total(self) -> Any:
        """As `KerasBackend.new_weight_total`."""
        with tf.init_scope():
            return tf.Variable(0.0, trainable=False, dtype=tf.float64)

    def broadcast_from(self, shared: SharedVariables) -> list[Any]:
        """As `KerasBackend.broadcast_from`."""
        roots, names, process_set = shared.roots, shared.names, shared.process_set
        set_id = process_set.require_member(Kind.BROADCAST)
        tensors = [tf.convert_to_tensor(variable) for variable in shared.variables]
        if tf.executing_eagerly():
            handles = [
                ops.broadcast_async(tensor.numpy(), root, name, process_set)
                for tensor, root, name in zip(tensors, roots, names, strict=True)
            ]
            return [handle.synchronize() for handle in handles]
        if xla.in_xla_context():
            return xla.broadcast_from(tensors, roots, names, set_id)
        # TensorFlow removes ops whose results are not used, such as the reduction of a gradient whose variable another rank
        # updates. It does not remove an op with state, nor the ops whose results that op uses: here all reductions.
        heads = [tf.reshape(getattr(gradient, "values", gradient), [-1])[:1] for gradient in shared.gradients]
        head = tf.concat([tf.cast(each, tf.float32) for each in heads], 0)
        collective_ops.broadcast(
            tf.reduce_sum(head), root_rank=roots[0], name=f"{names[0]}.behind", set_id=set_id, stateful=True
        )
        # A variable is broadcast after its gradient is reduced. So no broadcast is in flight if the ranks' comparison, which
        # comes before the reductions, fails.
        received = []
        for place, (tensor, root, name) in enumerate(zip(tensors, roots, names, strict=True)):
            with tf.control_dependencies([heads[place if place < len(heads) else 0]]):
                received.append(collective_ops.broadcast(tf.identity(tensor), root_rank=root, name=name, set_id=set_id))
        return received

    def compare_when_run(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduction: Reduction, start_check: str, shard: bool
    ) -> AbstractContextManager[Any]:
        """As `KerasBackend.compare_when_run`. Programs of XLA cannot call Python, so they compare nothing."""
        wording = _SHARDED_LOOP if shard else _LOOP
        return after_comparison(variables, gradients, reduction.process_set, start_check, wording)

    def other_variables(self, model: Any) -> list[Any]:
        """As `KerasBackend.other_variables`. No variables of strings and resources. Keras 2 counts all variables as weights."""
        if not KERAS_3:
            return []
        found = held_by(model, lambda value: isinstance(value, tf.Variable)).values()
        return [variable for variable in found if variable.dtype.is_numpy_compatible and variable.dtype != tf.string]

    def loss_in(self, error: Exception) -> HorovodInternalError | None:
        """As `KerasBackend.loss_in`."""
        return loss_in(error)

    def scale(self, gradient: Any, factor: float) -> Any:
        """As `KerasBackend.scale`."""
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    def collective(self, function: str, value: Any, name: str | None, **arguments: Any) -> Any:
        """As `KerasBackend.collective`. It also works in a graph."""
        return getattr(hvd, function)(as_tensor(function, value, name), name=name, **arguments)


BACKEND = TensorFlowKerasBackend()
