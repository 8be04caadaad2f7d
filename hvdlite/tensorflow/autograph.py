"""AutoGraph, which rewrites what a ``tf.function`` calls so that its branches and loops become the graph's."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["as_written"]

_F = TypeVar("_F", bound=Callable[..., Any])


def as_written(function: _F) -> _F:
    """The function, and whatever it calls, left as it is: hvdlite's branches and loops are those of Python.

    Rewriting them would change nothing but the time that tracing takes, and tracebacks.
    """
    kept: _F = tf.autograph.experimental.do_not_convert(function)
    return kept
