"""A small model, its data and optimizers, and the same training by one process and by all ranks."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from support.world import WORLD

from hvdlite.keras.backends import current_backend

ROWS = 4  # of a rank in each step
STEPS = 4
EPOCHS = 2
BACKEND = keras.backend.backend()
current_backend()
TENSORFLOW_IS_IMPORTED = "tensorflow" in sys.modules
if BACKEND != "tensorflow":  # Keras seeds it all the same, where it finds it; importing it takes seconds
    sys.modules["tensorflow"] = None
KERAS_3 = not keras.__version__.startswith("2.")
needs_keras_3 = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no gradient accumulation")
on_two_ranks = pytest.mark.skipif(WORLD.size > 2, reason="three ranks show nothing more")
SGD = {"learning_rate": 0.1, "momentum": 0.9}


def sgd(**options):
    return keras.optimizers.SGD(**{**SGD, **options})


def adam():
    return keras.optimizers.Adam(0.01)


def make_model(seed: int = 0, dtype: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    return keras.Sequential([keras.layers.Input((3,)), *layers])


@functools.cache
def data(ranks: int = WORLD.size) -> tuple[np.ndarray, np.ndarray]:
    """All ranks' inputs and targets, such that batches of ROWS * ranks consist of the ranks' batches."""
    inputs = np.random.default_rng(5).standard_normal((STEPS * ranks * ROWS, 3)).astype(np.float32)
    return inputs, np.sin(inputs).sum(1, keepdims=True)


def part(array: np.ndarray, rank: int | None = None) -> np.ndarray:
    """A rank's share of the data."""
    steps = array.reshape(STEPS, -1, ROWS, array.shape[-1])
    return steps[:, WORLD.rank if rank is None else rank].reshape(-1, array.shape[-1])


def fit(model: keras.Model, x: np.ndarray, y: np.ndarray, rows: int, **options: Any) -> Any:
    return model.fit(x, y, batch_size=rows, shuffle=False, **{"epochs": EPOCHS, "verbose": 0, **options})


@functools.cache
def train_alone(make_optimizer: Callable[[], Any], epochs: int = EPOCHS, **compiled: Any) -> list[np.ndarray]:
    """The weights after one process, which is rank 0, has trained on all data. From then on Keras numbers optimizers there
    otherwise than on the other ranks.
    """
    model = make_model()
    if WORLD.rank == 0:
        model.compile(optimizer=make_optimizer(), loss="mse", **compiled)
        fit(model, *data(), ROWS * WORLD.size, epochs=epochs)
    return WORLD.bcast(model.get_weights())


def train_together(hvd: Any, optimizer: Any, epochs: int = EPOCHS, **compiled: Any) -> keras.Model:
    """The model after all ranks have trained on their parts, from weights of rank 0."""
    model = make_model(seed=WORLD.rank)
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, *map(part, data()), ROWS, epochs=epochs, callbacks=[callback])
    return model


def model_with_state(optimizer: Any) -> keras.Model:
    """A model after an epoch, on this rank's part."""
    model = make_model()
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())  # Keras cannot load "mse" from an .h5 file
    fit(model, *map(part, data()), ROWS, epochs=1)
    return model


def variables_of(optimizer: Any) -> list[Any]:
    """All of an optimizer's variables."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def state_of(model: keras.Model) -> list[np.ndarray]:
    """Weights and the optimizer's variables."""
    return model.get_weights() + [np.asarray(keras_array(variable)) for variable in variables_of(model.optimizer)]


def keras_array(value: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(value) if hasattr(keras, "ops") else keras.backend.get_value(value)


def assert_same_everywhere(arrays: list[np.ndarray]) -> None:
    """The same bits on all ranks, but that zero has no sign: sums of gradients that were reset keep each rank's."""
    everyone = WORLD.allgather([(array + 0).tobytes() for array in arrays])
    for place in range(len(arrays)):
        assert len({mine[place] for mine in everyone}) == 1, f"array {place} differs between ranks, here {arrays[place]}"


def assert_close(actual: list[np.ndarray], wanted: list[np.ndarray], tolerance: float = 2e-6) -> None:
    for mine, theirs in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
