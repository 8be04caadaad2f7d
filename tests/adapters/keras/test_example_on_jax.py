"""The Keras example on JAX."""

import pytest
from keras_example import *  # noqa: F403 - the tests of all backends

pytest.importorskip("jax")

RANKS = (2,)
pytestmark = pytest.mark.slow
ENVIRONMENT = {"KERAS_BACKEND": "jax"}
