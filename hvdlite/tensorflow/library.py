"""Loads the op library into the TensorFlow of this process.

One library serves every version of TensorFlow: it finds the functions it needs in the process that loads it. One thing rests
on what TensorFlow does not promise, that an asynchronous kernel may end after its compute has returned (see
csrc/bindings/tensorflow/done_callback.h). It is tried once, and where it does not work the kernels wait inside compute.
"""

import ctypes
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

import hvdlite

__all__ = ["LIBRARY", "is_asynchronous", "load"]

LIBRARY = Path(hvdlite.__file__).with_name("hvdlite_tensorflow.so")


def load() -> Any:
    """The module with the wrappers of hvdlite's ops, such as ``hvdlite_allreduce``.

    Warns:
        RuntimeWarning: this TensorFlow has no asynchronous kernels, or they do not end as they should.

    Raises:
        ImportError: the library is missing, or this TensorFlow lacks what it needs.
    """
    return _open()[0]


def is_asynchronous() -> bool:
    """Do kernels in graphs wait without a thread of TensorFlow's? If not, they must run in one order on all ranks.

    Raises:
        ImportError: as `load`.
    """
    return _open()[1]


@cache
def _open() -> tuple[Any, bool]:
    try:
        ops = tf.load_op_library(str(LIBRARY))
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(
            f"hvdlite's ops for TensorFlow {tf.__version__} cannot be loaded from {LIBRARY}: {error}; install hvdlite with "
            "pip, or run `make develop` in a source tree"
        ) from error
    native = ctypes.CDLL(str(LIBRARY))
    native.hvdlite_tensorflow_problem.restype = ctypes.c_char_p
    problem = native.hvdlite_tensorflow_problem().decode()
    if problem:
        raise ImportError(f"hvdlite has no ops for TensorFlow {tf.__version__}: {problem}")
    doubt = _doubt(ops, native)
    if doubt:
        warnings.warn(
            f"hvdlite: {doubt}. Collectives in graphs therefore run one after the other, in the order of the program; what "
            "helps is to reduce gradients in one group (groups=1).",
            RuntimeWarning,
            stacklevel=4,
        )
    else:
        native.hvdlite_tensorflow_use_async(1)
    return ops, not doubt


def _doubt(ops: Any, native: ctypes.CDLL) -> str:
    """Why the kernels had better not be asynchronous; empty if they can."""
    if not native.hvdlite_tensorflow_has_async_kernels():
        return f"TensorFlow {tf.__version__} has no asynchronous kernels in its C API (2.13 has)"
    # Eagerly also in programs of TensorFlow 1, which build graphs only.
    with tf.init_scope(), context.eager_mode(), tf.device("/CPU:0"):
        if not int(ops.hvdlite_self_test()):
            return f"asynchronous kernels of TensorFlow {tf.__version__} do not end as they used to"
    return ""
