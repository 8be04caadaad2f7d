"""Batch normalisation over the batches of all ranks, as a layer of Keras 2 or 3 on TensorFlow.

Each rank sums up its own values; one small allreduce forward and one backward bring the ranks' sums together, in float64.
The layer's own backward is TensorFlow's: the gradient of an allreduce is an allreduce.
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

# Arguments of Keras's layer without a counterpart over ranks.
_REFUSED = ("renorm", "virtual_batch_size", "adjustment", "synchronized")


@tf.keras.utils.register_keras_serializable(package="hvdlite")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Normalises each channel with mean and variance of the batches of all ranks, as one process would the whole batch.

    Collective over `process_set` in training. The batches may differ in size and may be empty on some ranks. What flows back
    into the input is the gradient of the sum of all ranks' losses; gradients of gamma and beta are this rank's part, for
    the tape or the optimizer to reduce. The moving variance follows the biased variance, as in Keras 3.

    Inputs are of any floating dtype; they are normalised in float32, or float64 if they are float64.

    Args:
        fused: False; accepted for compatibility with Horovod.
        process_set: the ranks that share their statistics, or a list of their numbers.
        **kwargs: of ``tf.keras.layers.BatchNormalization``.

    Raises:
        InvalidArgumentError: `fused` is true, or (on call in training) this rank is not in the process set.
        UnsupportedError: renorm, virtual batches, or another synchronisation; or Keras runs on another backend.
        tf.errors.OpError: (on call and backward) the collective failed.

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
        """The normalised input, in the layer's compute dtype; see the class.

        Args:
            inputs: of shape [batch, ...].
            training: use this batch's statistics, and let the moving ones follow? Known when a function is traced. A layer that
                is not trainable does not.
            mask: of the shape of `inputs` without the last dimension; excluded values have no part in the statistics.

        """
        if self._trains(training):
            return self._normalise(inputs, mask)
        return super().call(inputs, training=False, **({} if mask is None else {"mask": mask}))

    @as_written
    def _normalise(self, inputs: Any, mask: Any) -> tf.Tensor:
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
        """The arguments that make such a layer; of a process set the members' ranks."""
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
            raise UnsupportedError(f"SyncBatchNormalization normalises along one axis, not {axes}")
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
        name = collective_name(None, f"{self.name}/sync_batch_norm")
        set_id = self.process_set.require_member(Kind.ALLREDUCE)
        # A group of one, as groups are what XLA knows.
        (total,) = collective_ops.grouped_allreduce([sums], name=name, op=Sum, prescale=1.0, postscale=1.0, set_id=set_id)
        count, vectors = total[0], tf.reshape(total[1:], [2, -1])
        mean, square = tf.unstack(vectors / tf.maximum(count, 1.0))
        return mean, tf.maximum(square - tf.square(mean), 0.0), count


class _LocalValues:
    """This rank's values, around a center of each channel that is near their mean.

    Attributes:
        deviations: the input minus the center.
        center: of each channel, float64.
        count: how many values each channel has, a float64 scalar.
        sums: of the values of each channel, float64.
        squares: sums of their squares, float64. From sums of squared deviations, so that what is lost by the subtraction
            of large squares is lost of float64, not of the input's dtype.

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
        # Deviations from a rounded mean have a mean of their own, which counts where the mean is far from zero.
        offset = tf.cast(total(self.deviations), tf.float64) / each
        mean = self.center + offset
        self.sums = self.count * mean
        deviations = tf.cast(total(tf.square(self.deviations)), tf.float64)
        self.squares = deviations + self.count * (tf.square(mean) - tf.square(offset))
