"""Finds the variable of TensorFlow inside a variable of Keras 3."""

from typing import Any


def of_tensorflow(variable: Any) -> Any:
    """The ``tf.Variable`` inside a variable of Keras 3. Any other object is returned unchanged."""
    inner = getattr(variable, "value", None)  # a method if this is a tf.Variable
    return variable if inner is None or callable(inner) else inner


def identity_of(source: Any) -> int:
    """A number that identifies a variable or tensor while it exists, the same for a Keras variable and its ``tf.Variable``."""
    return id(of_tensorflow(source))
