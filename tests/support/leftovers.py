"""Finds the changes that a test file leaves in its process for the next file, without importing a framework."""

import os
import sys
from typing import Any

TORCH_SEED = 67280421310721  # torch's seed in a new process; rank 0 gets it
KNOBS = ("HVDLITE_", "HOROVOD_", "KERAS_", "TF_CONFIG", "XLA_FLAGS")


class Leftovers:
    """The state of the process before a file; `take_away` returns the changes that the file has made."""

    def __init__(self, rank: int) -> None:
        # Each rank gets random numbers of its own again, so that a missing broadcast is noticed.
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(TORCH_SEED + rank)
        self._before = _state()

    def take_away(self) -> list[str]:
        """Shuts hvdlite down and resets Keras's names. Returns the other changes, which nothing can undo, in words."""
        found = _shut_down()
        if "keras" in sys.modules:
            sys.modules["keras"].backend.clear_session()
        after = _state()
        # Values that appeared with a framework that the file has imported are not changes.
        changed = [name for name in self._before if self._before[name] != after.get(name)]
        return [*found, *(f"{name} was {self._before[name]!r} and is {after.get(name)!r}" for name in changed)]


def _shut_down() -> list[str]:
    """Shuts hvdlite down. If the engine has failed, the next file cannot initialise hvdlite, so that is reported."""
    runtime = sys.modules.get("hvdlite.runtime")
    if runtime is None:
        return []
    engine = runtime.RUNTIME.engine
    cause = engine.failure_cause if engine is not None else ""
    sys.modules["hvdlite"].shutdown()
    return [f"a broken engine ({cause})"] if cause else []


def _state() -> dict[str, Any]:
    """The values of the process that tests may change, by name."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    state: dict[str, Any] = {f"${name}": value for name, value in variables.items()}
    state["the knobs in the environment"] = sorted(name for name in variables if name.startswith(KNOBS))
    state["the working directory"] = os.getcwd()
    torch, tensorflow, keras = (sys.modules.get(name) for name in ("torch", "tensorflow", "keras"))
    if torch is not None:
        state["torch's default dtype"] = torch.get_default_dtype()
        state["torch's grad mode"] = torch.is_grad_enabled()
        state["torch.use_deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
    if tensorflow is not None:
        state["TensorFlow's eager execution"] = tensorflow.executing_eagerly()
        state["tf.config.run_functions_eagerly"] = tensorflow.config.functions_run_eagerly()
    if keras is not None:
        state["Keras' floatx"] = keras.backend.floatx()
        state["Keras' image data format"] = keras.backend.image_data_format()
        state["Keras' dtype policy"] = keras.mixed_precision.global_policy().name
    return state
