"""Errors of hvdlite that are TensorFlow's as well: classes of both catch every error of a collective.

TensorFlow raises its own when an op fails. What hvdlite finds before that has the class of the same status
(`hvdlite.errors.ERRORS`) too: a rank outside of the process set gets a ``tf.errors.InvalidArgumentError``, as with Horovod.
"""

from typing import Any

import tensorflow as tf

from hvdlite.errors import ERRORS, HvdliteError

__all__ = ["make_tensorflows"]


def _both(own: type[HvdliteError], status: str) -> type[HvdliteError]:
    theirs = getattr(tf.errors, f"{status.title().replace('_', '')}Error")

    # With TensorFlow's arguments, as Keras makes another error of the same class with a longer text.
    def init(self: Any, node_def: Any, op: Any, message: str, *args: Any) -> None:
        theirs.__init__(self, node_def, op, message, *args)
        self.args = (message,)

    return type(own.__name__, (own, theirs), {"__init__": init, "__doc__": own.__doc__, "__module__": __name__})


_BOTH = {row.python: _both(row.python, row.tensorflow) for row in ERRORS.values()}
globals().update({kind.__name__: kind for kind in _BOTH.values()})  # pickles find them by their names


def make_tensorflows(error: HvdliteError) -> None:
    """Makes an error of hvdlite one of TensorFlow's too, in place: it keeps its traceback, its text and its class."""
    both = _BOTH.get(type(error))
    if both is not None:
        text = str(error)
        error.__class__ = both
        both.__init__(error, None, None, text)
