"""The initialised ``hvdlite.keras``, on whichever backend the test file has chosen for Keras."""

import os

import pytest

pytest.register_assert_rewrite(
    "keras_callback_cases",
    "keras_consistency_cases",
    "keras_fit_cases",
    "keras_model_cases",
    "keras_shard_cases",
    "keras_start_cases",
    "keras_training",
)

if os.environ.get("KERAS_BACKEND") == "tensorflow":  # in a rank, before anything has run
    import tensorflow as tf

    # The ranks share the machine.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)

if os.environ.get("KERAS_BACKEND") == "jax":
    import jax

    jax.config.update("jax_platforms", "cpu")


@pytest.fixture(scope="module")
def hvd():
    import hvdlite.keras

    hvdlite.keras.init(process_sets="dynamic")
    return hvdlite.keras


@pytest.fixture
def mixed_float16():
    import keras

    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy(before)
