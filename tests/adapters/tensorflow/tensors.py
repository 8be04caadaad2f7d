"""From NumPy to TensorFlow and back, also where the two do not agree what bfloat16 is; and the two ways of running."""

import ml_dtypes
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")


def to_tensor(array):
    if array.dtype == ml_dtypes.bfloat16:
        return tf.bitcast(tf.constant(array.view(np.uint16)), tf.bfloat16)
    return tf.constant(array)


def to_array(tensor):
    if tensor.dtype == tf.bfloat16:
        return tf.bitcast(tensor, tf.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor)


def eagerly(function):
    return function


MODES = {"eager": eagerly, "graph": tf.function}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
