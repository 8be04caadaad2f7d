"""The Keras that this process trains with: ``keras``, or ``tf_keras`` if TF_USE_LEGACY_KERAS is set."""

import importlib
from typing import Any

from hvdlite.config import uses_legacy_keras

_NAME = "tf_keras" if uses_legacy_keras() else "keras"
try:
    keras: Any = importlib.import_module(_NAME)
except ImportError as error:
    why = " (TF_USE_LEGACY_KERAS asks for tf_keras)" if uses_legacy_keras() else ""
    raise ImportError(f"hvdlite.keras needs Keras, which cannot be imported ({error}){why}: pip install {_NAME}") from error
if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (2, 13):
    raise ImportError(f"hvdlite.keras needs Keras 2.13 or newer, this is {keras.__version__}: upgrade Keras (and TensorFlow)")

Callback: Any = keras.callbacks.Callback
Mixin: Any = object  # the base of classes that are mixed into Keras's own, and call their methods
KERAS_3 = int(keras.__version__.split(".")[0]) >= 3
