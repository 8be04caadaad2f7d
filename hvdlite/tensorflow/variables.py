"""Variables of TensorFlow, and those of Keras 3, which hold one."""

from typing import Any

__all__ = ["identity_of", "of_tensorflow"]


def of_tensorflow(variable: Any) -> Any:
    """The ``tf.Variable`` inside a variable of Keras 3; anything else itself."""
    inner = getattr(variable, "value", None)  # of a tf.Variable a method
    return variable if inner is None or callable(inner) else inner


def identity_of(source: Any) -> int:
    """What tells variables and tensors apart, as long as they are kept: the same for both of `of_tensorflow`."""
    return id(of_tensorflow(source))
