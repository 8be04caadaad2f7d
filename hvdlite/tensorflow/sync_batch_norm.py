"""Batch normalization over the batches of all ranks, as a layer of Keras 2 or 3 on TensorFlow.

Each rank adds up its own values. One small allreduce of float64 in the forward pass, and one in the backward pass, add up the
ranks' sums. TensorFlow derives the backward pass; the gradient of an allreduce is an allreduce.
"""

from typing import Any

import tensorflow as tf

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set, set_of_ranks
from hvdlite.requests import Kind, Sum
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.names import collective_name

__all__ = ["SyncBatchNormalization"]

_KERAS_3 = not tf.keras.__version__.startswith("2.")

# Arguments of Keras's layer that are refused, because they have no meaning over several ranks.
_REFUSED = ("renorm", "virtual_batch_size", "adjustment", "synchronized")


@tf.keras.utils.register_keras_serializable(package="hvdlite")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Normalizes each channel with the mean and variance over the batches of all ranks (Ioffe and Szegedy, ICML 2015).

    The result is that of one process with the whole batch. In training a call is collective over `process_set`. The batches may
    differ in size, and may be empty on some ranks. The gradient of the input is that of the sum of all ranks' losses. The
    gradients of gamma and beta are this rank's part; the tape or the optimizer reduces them. The moving variance follows the
    biased variance, as in Keras 3.

    Inputs have any floating-point dtype. They are normalized in float64 if they are float64, and in float32 otherwise.

    Args:
        fused: must be False; accepted for compatibility with Horovod.
        process_set: the ranks that share their statistics: a process set, a list of the ranks of a registered process set, or
            None for all ranks.
        **kwargs: arguments of ``tf.keras.layers.BatchNormalization``.

    Raises:
        InvalidArgumentError: `fused` is True or None; or (in a call in training) this rank is not in the process set, or the
            set is not registered.
        UnsupportedError: `kwargs` has renorm, virtual_batch_size, adjustment or synchronized; Keras runs on another
            backend; or (in a call in training) `axis` has several axes.
        tf.errors.OpError: (in a call and in the backward pass) the collective failed.

    """

    def __init__(
        self, fused: bool = False, *, process_set: ProcessSet | list[int] | None = global_process_set, **kwargs: Any
    ) -> None:
        if fused in (True, None):
            raise InvalidArgumentError("SyncBatchNormalization does not support fused=True.")
        refused = [name for name in _REFUSED if kwargs.get(name)]
        if refused:
            raise UnsupportedError(f"SyncBatchNormalization does not support {' and '.join(refused)}: leave it out")
        if _KERAS_3 and tf.keras.backend.backend() != "tensorflow":
            raise UnsupportedError(
                f"hvdlite.tensorflow.SyncBatchNormalization needs Keras on TensorFlow, not on {tf.keras.backend.backend()}"
            )
        super().__init__(**kwargs, **({} if _KERAS_3 else {"fused": False}))
        given = global_process_set if process_set is None else process_set
        self.process_set = given if isinstance(given, ProcessSet) else set_of_ranks(given)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized input, see the class.

        Args:
            inputs: a tensor of shape [batch, ...].
            training: True: normalize with the statistics of all ranks' batches, and update the moving statistics. A layer that
                is not trainable uses the moving statistics all the same. Must be known when a function is traced.
            mask: a tensor with the shape of `inputs` without the last dimension. Values that the mask excludes do not count in
                the statistics.

        Returns:
            A tensor with the shape of `inputs`, in the layer's compute dtype.

        Raises:
            InvalidArgumentError, UnsupportedError, tf.errors.OpError: see the class; or `training` or `mask` is wrong.

        """
        if self._trains(training):
            return self._normalize(inputs, mask)
        return super().call(inputs, training=False, **({} if mask is None else {"mask": mask}))

    @as_written
    def _normalize(self, inputs: Any, mask: Any) -> tf.Tensor:
        dtype = tf.float64 if inputs.dtype == tf.float64 else tf.float32
        values = tf.cast(inputs, dtype)
        rank = len(inputs.shape)
        axis = self._channel_axis(rank)
        weights = None if mask is None else self._weights(mask, axis, rank, dtype)
        own = _LocalValues(values, axis, weights)
        mean, variance, count = self._of_all_ranks(own)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = tf.cast(tf.convert_to_tensor(moving), tf.float64)
            followed = tf.where(count > 0, old * self.momentum + new * (1.0 - self.momentum), old)
            moving.assign(tf.cast(followed, moving.dtype))
        scale = tf.math.rsqrt(variance + self.epsilon)
        if self.gamma is not None:
            scale *= tf.cast(tf.convert_to_tensor(self.gamma), tf.float64)
        offset = (own.center - mean) * scale
        if self.beta is not None:
            offset += tf.cast(tf.convert_to_tensor(self.beta), tf.float64)
        shape = [-1 if place == axis else 1 for place in range(rank)]
        scale, offset = (tf.reshape(tf.cast(vector, dtype), shape) for vector in (scale, offset))
        return tf.cast(own.deviations * scale + offset, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer. A process set is stored as the list of its ranks."""
        ranks = None if self.process_set is global_process_set else self.process_set.ranks
        return {**super().get_config(), "process_set": ranks}

    def _trains(self, training: Any) -> bool:
        if not _KERAS_3:
            training = self._get_training_value(training)
        static = tf.get_static_value(training) if tf.is_tensor(training) else training
        if static is None and training is not None:
            raise UnsupportedError(
                "SyncBatchNormalization must know whether it trains when the function is traced: pass training=True or False, "
                "not a tensor"
            )
        return bool(static) and bool(self.trainable)

    def _channel_axis(self, rank: int) -> int:
        axes = list(self.axis) if isinstance(self.axis, list | tuple) else [self.axis]
        if len(axes) != 1:
            raise UnsupportedError(f"SyncBatchNormalization normalizes along one axis, not {axes}")
        return int(axes[0]) % rank

    def _weights(self, mask: Any, axis: int, rank: int, dtype: tf.DType) -> tf.Tensor:
        if axis != rank - 1 or len(mask.shape) != rank - 1:
            raise InvalidArgumentError(
                "a mask has the shape of the inputs without their last dimension, which is that of the channels; got a mask of "
                f"shape {mask.shape} with axis={self.axis}"
            )
        return tf.expand_dims(tf.cast(mask, dtype), -1)

    def _of_all_ranks(self, own: "_LocalValues") -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Mean, biased variance and count (a scalar) of all ranks' values, float64. Collective over the process set."""
        sums = tf.concat([own.count[None], own.sums, own.squares], 0)
        set_id = self.process_set.require_member(Kind.ALLREDUCE)
        # The name contains no names of layers or scopes, because Keras numbers them by the layers that this rank has made.
        name = collective_name(None, f"sync_batch_norm.{set_id}", scoped=False)
        # A group of one tensor, because programs of XLA have only groups.
        (total,) = collective_ops.grouped_allreduce([sums], name=name, op=Sum, prescale=1.0, postscale=1.0, set_id=set_id)
        count, vectors = total[0], tf.reshape(total[1:], [2, -1])
        mean, square = tf.unstack(vectors / tf.maximum(count, 1.0))
        return mean, tf.maximum(square - tf.square(mean), 0.0), count


class _LocalValues:
    """Sums of this rank's values for each channel, computed from deviations from a center that is near the mean.

    Attributes:
        deviations: the input minus the center, in the input's shape.
        center: the center of each channel, a float64 vector.
        count: number of values of each channel, a float64 scalar.
        sums: sum of the values of each channel, a float64 vector.
        squares: sum of the squares of the values of each channel, a float64 vector. It is computed from squared deviations, to
            which the large squares of means are added in float64. So when the variance is computed, the subtraction of large
            squares loses digits of float64, and not of the input's dtype.

    """

    def __init__(self, values: tf.Tensor, axis: int, weights: tf.Tensor | None) -> None:
        rank = len(values.shape)
        axes = [place for place in range(rank) if place != axis]

        def total(tensor: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tensor if weights is None else tensor * weights, axes)

        if weights is None:
            self.count = tf.cast(tf.size(values, tf.int64) / tf.maximum(tf.shape(values, tf.int64)[axis], 1), tf.float64)
        else:
            self.count = tf.reduce_sum(tf.cast(weights, tf.float64))
        each = tf.maximum(self.count, 1.0)
        center = tf.stop_gradient(total(values) / tf.cast(each, values.dtype))
        self.deviations = values - tf.reshape(center, [-1 if place == axis else 1 for place in range(rank)])
        self.center = tf.cast(center, tf.float64)
        # The center is a rounded mean, so the mean of the deviations is not 0. This offset matters if the mean is far from 0.
        offset = tf.cast(total(self.deviations), tf.float64) / each
        mean = self.center + offset
        self.sums = self.count * mean
        deviations = tf.cast(total(tf.square(self.deviations)), tf.float64)
        self.squares = deviations + self.count * (tf.square(mean) - tf.square(offset))
