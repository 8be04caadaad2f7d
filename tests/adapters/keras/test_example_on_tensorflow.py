"""The Keras example on TensorFlow."""

import pytest
from keras_example import *  # noqa: F403 - the tests of all backends

pytest.importorskip("tensorflow")

RANKS = (2,)
pytestmark = pytest.mark.slow
ENVIRONMENT = {"KERAS_BACKEND": "tensorflow"}


def test_rank_0_writes_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    folder = shared(tmp_path)  # noqa: F405
    load("keras_digits").main(["--epochs", "1", "--logs", str(folder / "logs")])  # noqa: F405
    kinds = {file.name for file in (folder / "logs").iterdir()} if (folder / "logs").exists() else set()
    assert kinds == {"train", "validation"} or MPI.COMM_WORLD.rank > 0  # noqa: F405
