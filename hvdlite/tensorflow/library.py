"""Loads the op library into the TensorFlow of this process.

One library serves every version of TensorFlow: it finds the functions that it needs in the process that loads it. Its ops use
two properties of TensorFlow that TensorFlow does not guarantee. Both are tested before they are used:

- An asynchronous kernel may end after its compute function has returned (csrc/bindings/tensorflow/done_callback.h). If the test
  fails, kernels wait inside the compute function.
- The library can find the stream in which TensorFlow's kernels run on a GPU (gpu_stream.h in the same folder). The stream is
  used, and the test runs on each GPU, only with the knob HVDLITE_TENSORFLOW_GPU_STREAMS. If the test fails, tensors are copied
  through host memory, as they are without the knob.
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

# Texts for results of the op HvdliteStreamSelfTest (csrc/bindings/tensorflow/ops.h); 1 means success. After the result 0, which
# proves nothing, the test is repeated with more work.
_VERDICTS = {
    1: "",
    -1: "no stream is where hvdlite expects it",
    -2: "the stream that hvdlite finds is not the one that TensorFlow uses",
}

LIBRARY = Path(hvdlite.__file__).with_name("hvdlite_tensorflow.so")


def load() -> Any:
    """The module with the wrappers of hvdlite's ops, such as ``hvdlite_allreduce``.

    Warns:
        RuntimeWarning: this TensorFlow has no asynchronous kernels, or they fail the test; or its streams on GPUs fail the test
            and HVDLITE_TENSORFLOW_GPU_STREAMS is set.

    Raises:
        ImportError: the library is missing, or this TensorFlow lacks functions that the library needs.
    """
    return _open()[0]


def is_asynchronous() -> bool:
    """Whether kernels in graphs wait without occupying a thread of TensorFlow.

    If kernels occupy threads, they must run in the same order on all ranks (`hvdlite.tensorflow.making` says why).

    Raises:
        ImportError: as for `load`.
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
            f"hvdlite: {doubt}. So collectives in graphs run one after the other, in the order of the program. To reduce "
            "gradients faster, reduce them in one group (groups=1).",
            RuntimeWarning,
            stacklevel=4,
        )
    else:
        native.hvdlite_tensorflow_use_async(1)
    native.hvdlite_tensorflow_enroll_gpu_kernels(_work_in_gpu_memory(ops, native))
    return ops, not doubt


def _doubt(ops: Any, native: ctypes.CDLL) -> str:
    """The reason why the kernels cannot be asynchronous; empty if they can."""
    if not native.hvdlite_tensorflow_has_async_kernels():
        return f"TensorFlow {tf.__version__} has no asynchronous kernels in its C API (2.13 has them)"
    # The test runs eagerly, even in a program of TensorFlow 1, which otherwise runs nothing eagerly.
    with tf.init_scope(), context.eager_mode(), tf.device("/CPU:0"):
        if not int(ops.hvdlite_self_test()):
            return f"asynchronous kernels of TensorFlow {tf.__version__} do not end as hvdlite expects"
    return ""


def _work_in_gpu_memory(ops: Any, native: ctypes.CDLL) -> bool:
    """Whether kernels on GPUs work in GPU memory and in TensorFlow's stream. Warns if the knob is set, but they cannot."""
    knobs = config.from_environment()
    if not knobs.tensorflow_gpu_streams:
        return False
    doubt = _doubt_of_streams(ops, native, knobs.cuda_library)
    if doubt:
        warnings.warn(
            f"hvdlite: HVDLITE_TENSORFLOW_GPU_STREAMS is set, but {doubt}. So TensorFlow's tensors on GPUs are copied through "
            "host memory. All ranks must do the same: unset the knob on all of them.",
            RuntimeWarning,
            stacklevel=5,
        )
    return not doubt


def _doubt_of_streams(ops: Any, native: ctypes.CDLL, cuda_library: str) -> str:
    """The reason why hvdlite cannot use TensorFlow's streams on the GPUs; empty if it can."""
    if not tf.test.is_built_with_cuda():
        return f"this TensorFlow {tf.__version__} was built without CUDA"
    if not native.hvdlite_tensorflow_has_gpu_streams():
        return f"hvdlite does not find the streams of kernels in TensorFlow {tf.__version__}"
    with tf.init_scope(), context.eager_mode():
        for gpu in tf.config.list_logical_devices("GPU"):
            doubt = _doubt_of_stream(ops, gpu.name, cuda_library)
            if doubt:
                return f"streams of TensorFlow {tf.__version__} on {gpu.name} fail the test: {doubt}"
    return ""


def _doubt_of_stream(ops: Any, gpu: str, cuda_library: str) -> str:
    """The reason why hvdlite cannot use TensorFlow's stream on this GPU; empty if it can."""
    for rounds in (8, 64, 512):  # enough work that the GPU is still busy when the test runs
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
    return "the stream that hvdlite finds never has work"


def _late_number(number: float, rounds: int) -> tf.Tensor:
    """A tensor with the value `number`. The GPU computes this tensor after `rounds` matrix products in the same stream."""
    size = 2048
    matrix = tf.fill([size, size], 1.0 / size)
    for _ in range(rounds):
        matrix = tf.matmul(matrix, matrix)  # the product equals the matrix, exactly
    return matrix[0, 0] * (size * number)
