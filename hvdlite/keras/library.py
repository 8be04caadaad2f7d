"""The Keras that this process trains with: ``keras``, or ``tf_keras`` if TF_USE_LEGACY_KERAS is set."""

import importlib
from typing import TYPE_CHECKING, Any

from hvdlite.config import uses_legacy_keras

__all__ = ["KERAS_3", "Callback", "keras"]

_NAME = "tf_keras" if uses_legacy_keras() else "keras"
try:
    keras: Any = importlib.import_module(_NAME)
except ImportError as error:
    why = " (TF_USE_LEGACY_KERAS asks for tf_keras)" if uses_legacy_keras() else ""
    raise ImportError(f"hvdlite.keras needs Keras, which cannot be imported ({error}){why}: pip install {_NAME}") from error
if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (2, 13):
    raise ImportError(f"hvdlite.keras needs Keras 2.13 or newer, this is {keras.__version__}: upgrade Keras (and TensorFlow)")

if TYPE_CHECKING:

    class Callback:
        """The attributes of Keras's callbacks that hvdlite uses."""

        model: Any
        params: dict[str, Any]

else:
    Callback = keras.callbacks.Callback

KERAS_3 = int(keras.__version__.split(".")[0]) >= 3
