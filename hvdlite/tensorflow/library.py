"""Loads the op library into the TensorFlow of this process.

One library serves every version of TensorFlow: it finds the functions it needs in the process that loads it. Two things rest
on what TensorFlow does not promise:

- that an asynchronous kernel may end after its compute has returned (csrc/bindings/tensorflow/done_callback.h). It is tried
  once, and where it does not work the kernels wait inside compute;
- with HVDLITE_TENSORFLOW_GPU_STREAMS, in which stream TensorFlow's kernels run on a GPU (gpu_stream.h beside it). It is tried
  on each GPU, and where it does not work tensors go through host memory, as they do without that knob.
"""

import ctypes
import random
import struct
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

import hvdlite
from hvdlite import config

__all__ = ["LIBRARY", "is_asynchronous", "load"]

# Of the op HvdliteStreamSelfTest (csrc/bindings/tensorflow/self_test.h); 0 is none.
_VERDICTS = {
    1: "",
    -1: "no stream is found where it used to be",
    -2: "the stream that is found is not the one in use",
}

LIBRARY = Path(hvdlite.__file__).with_name("hvdlite_tensorflow.so")


def load() -> Any:
    """The module with the wrappers of hvdlite's ops, such as ``hvdlite_allreduce``.

    Warns:
        RuntimeWarning: this TensorFlow has no asynchronous kernels, or they do not end as they should; or its streams on GPUs
            are to be used and cannot be.

    Raises:
        ImportError: the library is missing, or this TensorFlow lacks functions that it needs.
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
    native.hvdlite_tensorflow_enroll_gpu_kernels(_work_in_gpu_memory(ops, native))
    return ops, not doubt


def _doubt(ops: Any, native: ctypes.CDLL) -> str:
    """Why the kernels must not be asynchronous; empty if they may."""
    if not native.hvdlite_tensorflow_has_async_kernels():
        return f"TensorFlow {tf.__version__} has no asynchronous kernels in its C API (2.13 has)"
    # Eagerly also in programs of TensorFlow 1, which build graphs only.
    with tf.init_scope(), context.eager_mode(), tf.device("/CPU:0"):
        if not int(ops.hvdlite_self_test()):
            return f"asynchronous kernels of TensorFlow {tf.__version__} do not end as they used to"
    return ""


def _work_in_gpu_memory(ops: Any, native: ctypes.CDLL) -> bool:
    """Do kernels on GPUs work in GPU memory, in TensorFlow's stream?"""
    knobs = config.from_environment()
    if not knobs.tensorflow_gpu_streams:
        return False
    doubt = _doubt_of_streams(ops, native, knobs.cuda_library)
    if doubt:
        warnings.warn(
            f"hvdlite: HVDLITE_TENSORFLOW_GPU_STREAMS is set, but {doubt}. TensorFlow's tensors on GPUs therefore go through "
            "host memory; that must be so on all ranks.",
            RuntimeWarning,
            stacklevel=5,
        )
    return not doubt


def _doubt_of_streams(ops: Any, native: ctypes.CDLL, cuda_library: str) -> str:
    """Why hvdlite cannot use TensorFlow's stream on a GPU; empty if it can."""
    if not tf.test.is_built_with_cuda():
        return f"this TensorFlow {tf.__version__} was built without CUDA"
    if not native.hvdlite_tensorflow_has_gpu_streams():
        return f"TensorFlow {tf.__version__} does not tell its kernels' stream as it used to"
    with tf.init_scope(), context.eager_mode():
        for gpu in tf.config.list_logical_devices("GPU"):
            doubt = _doubt_of_stream(ops, gpu.name, cuda_library)
            if doubt:
                return f"its use on {gpu.name} with TensorFlow {tf.__version__} does not stand the test: {doubt}"
    return ""


def _doubt_of_stream(ops: Any, gpu: str, cuda_library: str) -> str:
    """Why hvdlite cannot use the stream on this GPU; empty if it can."""
    for rounds in (8, 64, 512):  # enough for the GPU to be busy still
        (expected,) = struct.unpack("<f", struct.pack("<f", random.SystemRandom().uniform(1, 2)))
        (bits,) = struct.unpack("<i", struct.pack("<f", expected))
        with tf.device(gpu):
            number = _late_number(expected, rounds)
            try:
                verdict = int(ops.hvdlite_stream_self_test(number, expected_bits=bits, cuda_library=cuda_library))
            except tf.errors.OpError as error:
                return str(error.message)
        if verdict:
            return _VERDICTS[verdict]
    return "the stream that is found has never work to do"


def _late_number(number: float, rounds: int) -> tf.Tensor:
    """A tensor with the number on the current device, which gets there after a while, in the order of the device's stream."""
    size = 2048
    matrix = tf.fill([size, size], 1.0 / size)
    for _ in range(rounds):
        matrix = tf.matmul(matrix, matrix)  # stays as it is, exactly
    return matrix[0, 0] * (size * number)
