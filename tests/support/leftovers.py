"""What a test file leaves behind in its process, where the next file finds it. No framework is imported for that."""

import os
import sys
from typing import Any

TORCH_SEED = 67280421310721  # that of a new process, for rank 0
KNOBS = ("HVDLITE_", "HOROVOD_", "KERAS_", "TF_CONFIG", "XLA_FLAGS")


class Leftovers:
    """The state of the process before a file; `take_away` tells what the file has changed."""

    def __init__(self, rank: int) -> None:
        # Each rank has its own random numbers again, wherever the file before left them: a broadcast that is missing shows.
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(TORCH_SEED + rank)
        self._before = _state()

    def take_away(self) -> list[str]:
        """Shuts hvdlite down and lets Keras start its names anew; says what else has changed, which nothing mends."""
        found = _shut_down()
        if "keras" in sys.modules:
            sys.modules["keras"].backend.clear_session()
        after = _state()
        # What a framework imported meanwhile has brought along is no change.
        changed = [name for name in self._before if self._before[name] != after.get(name)]
        return [*found, *(f"{name} was {self._before[name]!r} and is {after.get(name)!r}" for name in changed)]


def _shut_down() -> list[str]:
    """The next file initialises hvdlite itself; that is in vain where the engine has failed."""
    runtime = sys.modules.get("hvdlite.runtime")
    if runtime is None:
        return []
    engine = runtime.RUNTIME.engine
    cause = engine.failure_cause if engine is not None else ""
    sys.modules["hvdlite"].shutdown()
    return [f"a broken engine ({cause})"] if cause else []


def _state() -> dict[str, Any]:
    """By name, what belongs to the process and tests are known to change."""
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
