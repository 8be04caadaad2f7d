"""Gives TensorFlow a GPU whose memory and streams are the fake driver's (tests/native/fake_gpu/tensorflow).

TensorFlow's executor, allocator and copies work on it as on any device. Builds without CUDA have no kernels that compute on
one, so there is an op that adds a number, in TensorFlow's stream and after a pause.
"""

import ctypes
import functools
from typing import Any

from support import fake_gpu, native

# What kernels are told of TensorFlow's stream, for `lie`.
LIES = 5
TRUTH, OTHER_STREAM, NO_STREAM, NO_OBJECT, NO_FUNCTION = range(LIES)
# For tests to change.
BUILT_WITH_CUDA = True
WAITS = False  # is the work by which streams are tried waited for, so that they are idle?


def _path() -> str:
    found = native.folder()
    assert found is not None, fake_gpu.missing()
    return str(found / "libfaketensorflow.so")


@functools.cache
def _ops() -> Any:
    import tensorflow as tf

    return tf.load_op_library(_path())


@functools.cache
def _native() -> ctypes.CDLL:
    _ops()  # what the library registers is collected when TensorFlow is the first to load it
    return ctypes.CDLL(_path())


def add(tensor: Any, summand: float, seconds: float = 0.0) -> Any:
    """tensor + summand (float32), on the fake GPU, which is busy for some time before."""
    return _ops().fake_gpu_add(tensor, summand=summand, seconds=seconds)


def lie(kind: int) -> None:
    """From now on kernels are told this."""
    _native().fake_tensorflow_lie(kind)


def install(number: int = 0) -> None:
    """TensorFlow's only GPU is this one of the driver's. Before TensorFlow is used."""
    import tensorflow as tf
    from tensorflow.python.framework import load_library

    from hvdlite.tensorflow import library

    _ops()
    load_library.load_pluggable_device_library(_path())
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[number], "GPU")
    tf.test.is_built_with_cuda = lambda: BUILT_WITH_CUDA
    library._late_number = _late_number


def _late_number(number: float, rounds: int) -> Any:
    """The library's, which comes to it before it first asks for a stream."""
    import tensorflow as tf

    from hvdlite.tensorflow import library

    ctypes.CDLL(str(library.LIBRARY)).hvdlite_tensorflow_set_eigen_device(_native().fake_eigen_device)
    late = add(tf.identity(tf.zeros([])), number, 0.0025 * rounds)
    if WAITS:
        late.numpy()
        ctypes.CDLL(fake_gpu.libraries()["cuda"]).fake_idle()
    return late
