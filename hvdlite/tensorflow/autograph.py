"""A decorator for those functions of this door that programs may call while TensorFlow traces a ``tf.function``."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from hvdlite.errors import HvdliteError
from hvdlite.tensorflow.errors import make_tensorflows

_F = TypeVar("_F", bound=Callable[..., Any])


def as_written(function: _F) -> _F:
    """Excludes the function, and all functions that it calls, from AutoGraph. Their branches and loops run in Python.

    If AutoGraph rewrote them, the result would be the same, but tracing would take longer, and tracebacks would be harder to
    read. If the function raises an error of hvdlite, the error becomes one of TensorFlow, too (`hvdlite.tensorflow.errors`).
    """

    @functools.wraps(function)
    def raising_both(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except HvdliteError as error:
            make_tensorflows(error)
            raise

    kept: _F = tf.autograph.experimental.do_not_convert(raising_both)
    return kept
