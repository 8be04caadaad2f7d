"""The initialised ``hvdlite.tensorflow``, in place of the package itself."""

import pytest

pytest.register_assert_rewrite("tf_reference")


@pytest.fixture(scope="session")
def hvd():
    """Few threads: the ranks share the machine."""
    import tensorflow as tf

    import hvdlite.tensorflow

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvdlite.tensorflow.init(process_sets="dynamic")
    return hvdlite.tensorflow
