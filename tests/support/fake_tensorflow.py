"""Gives TensorFlow a GPU whose memory and streams are the fake driver's (tests/native/fake_gpu/tensorflow).

TensorFlow's executor, allocator and copies work on it as on any device. Builds without CUDA have no kernels for a GPU, so this
module has an op that adds a number, in TensorFlow's stream and after a pause.
"""

import ctypes
import functools
from typing import Any

from support import fake_gpu, native

# The answers that kernels get to their question for TensorFlow's stream, for `lie`.
LIES = 5
TRUTH, OTHER_STREAM, NO_STREAM, NO_OBJECT, NO_FUNCTION = range(LIES)
# Tests may change these.
BUILT_WITH_CUDA = True
WAITS = False  # does `_late_number` wait for its work, so that the stream is idle?


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
    _ops()  # TensorFlow collects the library's ops only if it loads the library first
    return ctypes.CDLL(_path())


def add(tensor: Any, summand: float, seconds: float = 0.0) -> Any:
    """tensor + summand (float32), on the fake GPU, after the GPU was busy for `seconds`."""
    return _ops().fake_gpu_add(tensor, summand=summand, seconds=seconds)


def lie(kind: int) -> None:
    """Kernels get this answer from now on."""
    _native().fake_tensorflow_lie(kind)


def install(number: int = 0) -> None:
    """Makes this GPU of the driver TensorFlow's only GPU. Must be called before TensorFlow is used."""
    import tensorflow as tf
    from tensorflow.python.framework import load_library

    from hvdlite.tensorflow import library

    _ops()
    load_library.load_pluggable_device_library(_path())
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[number], "GPU")
    tf.test.is_built_with_cuda = lambda: BUILT_WITH_CUDA
    library._late_number = _late_number


def _late_number(number: float, rounds: int) -> Any:
    """Replaces the function of hvdlite's library, which calls it before it first asks for a stream."""
    import tensorflow as tf

    from hvdlite.tensorflow import library

    ctypes.CDLL(str(library.LIBRARY)).hvdlite_tensorflow_set_eigen_device(_native().fake_eigen_device)
    late = add(tf.identity(tf.zeros([])), number, 0.0025 * rounds)
    if WAITS:
        late.numpy()
        ctypes.CDLL(fake_gpu.libraries()["cuda"]).fake_idle()
    return late
