"""Gives errors of hvdlite a class that is also a class of TensorFlow's errors, so that a program can catch either class.

When an op fails, TensorFlow raises its own error. When hvdlite finds an error before the op runs, hvdlite raises an error that
also has TensorFlow's class for the same status (`hvdlite.errors.ERRORS`). For example, a rank outside of the process set gets a
``tf.errors.InvalidArgumentError``, as with Horovod.
"""

from typing import Any

import tensorflow as tf

from hvdlite.errors import ERRORS, HvdliteError


def _both(own: type[HvdliteError], status: str) -> type[HvdliteError]:
    theirs = getattr(tf.errors, f"{status.title().replace('_', '')}Error")

    # `init` takes TensorFlow's arguments, because Keras replaces an error by a new one of the same class with a longer text.
    def init(self: Any, node_def: Any, op: Any, message: str, *args: Any) -> None:
        theirs.__init__(self, node_def, op, message, *args)
        self.args = (message,)

    return type(own.__name__, (own, theirs), {"__init__": init, "__doc__": own.__doc__, "__module__": __name__})


_BOTH = {row.python: _both(row.python, row.tensorflow) for row in ERRORS.values()}
globals().update({kind.__name__: kind for kind in _BOTH.values()})  # pickle looks for the classes in this module by name


def make_tensorflows(error: HvdliteError) -> None:
    """Changes the class of an error in place: the new class derives from the old class and from a class of TensorFlow's errors.

    The error keeps its traceback and its text, and stays an instance of the old class.
    """
    both = _BOTH.get(type(error))
    if both is not None:
        text = str(error)
        error.__class__ = both
        both.__init__(error, None, None, text)
