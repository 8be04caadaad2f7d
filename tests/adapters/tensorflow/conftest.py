"""The initialised ``hvdlite.tensorflow``, in place of the package itself."""

import importlib.util
import os

import pytest
from support.in_step import RESULTS

pytest.register_assert_rewrite("tf_reference")

if RESULTS in os.environ and importlib.util.find_spec("tensorflow"):  # in a rank
    import tensorflow as tf

    import hvdlite.tensorflow

    # The ranks share the machine. After the import of hvdlite, for that must leave TensorFlow's runtime alone: scripts choose
    # devices by local_rank(), which TensorFlow refuses once anything has run.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


@pytest.fixture(scope="module")
def hvd():
    hvdlite.tensorflow.init()
    return hvdlite.tensorflow
