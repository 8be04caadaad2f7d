"""The initialised ``hvdlite.keras``, on whichever backend the test file has chosen for Keras."""

import pytest

pytest.register_assert_rewrite("keras_cases", "keras_training")


@pytest.fixture(scope="module")
def hvd():
    import keras

    import hvdlite.keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    hvdlite.keras.init(process_sets="dynamic")
    return hvdlite.keras


@pytest.fixture
def mixed_float16():
    import keras

    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy(before)
