"""The Keras example on torch."""

import pytest
from keras_example import *  # noqa: F403 - the tests of all backends

pytest.importorskip("torch")

RANKS = (2,)
ENVIRONMENT = {"KERAS_BACKEND": "torch"}
