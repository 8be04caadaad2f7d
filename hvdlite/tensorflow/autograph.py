"""The wrapper of the functions that users of TensorFlow call."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from hvdlite.errors import HvdliteError
from hvdlite.tensorflow.errors import make_tensorflows

__all__ = ["as_written"]

_F = TypeVar("_F", bound=Callable[..., Any])


def as_written(function: _F) -> _F:
    """Protects the function, and all that it calls, from AutoGraph: hvdlite's branches and loops are those of Python.

    Rewriting them would change nothing but the time that tracing takes, and tracebacks. What the function raises of hvdlite's
    errors is made one of TensorFlow's, too.
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
