"""Runs the fusion kernels of a GPU without an engine, by the core's C functions ``hvdlite_fusion_*``: for the benchmark and
tests.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdlite import _engine, gpu
from hvdlite.config import Config
from hvdlite.dtypes import DType
from hvdlite.errors import error_class

SUM = 1


class Times(NamedTuple):
    """The times of one launch in seconds.

    Attributes:
        gpu: the time on the GPU, between two events.
        host: the time until the host has submitted the launch.
    """

    gpu: float
    host: float


@dataclass(frozen=True)
class Move:
    """A launch that packs tensors into a buffer or unpacks them.

    Attributes:
        tensors: the addresses of the tensors. For a tensor that is None, packing writes the identity of `op` into the buffer,
            and unpacking does nothing.
        places: the place of each tensor in the buffer: (offset, count) in elements.
        buffer: the address of the buffer.
        source: the dtype of the elements that are read.
        target: the dtype of the elements that are written.
        unpack: does the launch unpack, from the buffer to the tensors? Otherwise it packs.
        factor: the number that elements are multiplied by.
        divisor: the number that elements are divided by.
        op: the number in csrc/base/types.h of the op whose identity stands for a tensor that is None.
        nonfinite: the address of an array with one int32 for each tensor. The int32 becomes 1 if an element that is
            written for the tensor is not finite. None: elements are not checked.
        sets: the number of sets of tensors and buffers. Consecutive launches use the sets in turn.
        tensor_stride: the bytes from the tensors of one set to those of the next.
        buffer_stride: the bytes from the buffer of one set to that of the next.
    """

    tensors: Sequence[int | None]
    places: Sequence[tuple[int, int]]
    buffer: int
    source: DType
    target: DType
    unpack: bool = False
    factor: float = 1.0
    divisor: int = 1
    op: int = SUM
    nonfinite: int | None = None
    sets: int = 1
    tensor_stride: int = 0
    buffer_stride: int = 0


class _MoveStruct(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("unpack", "source", "target", "op")),
        ("factor", c_double),
        ("divisor", c_int64),
        ("pieces", c_int64),
        ("tensors", POINTER(c_void_p)),
        ("offsets", POINTER(c_int64)),
        ("counts", POINTER(c_int64)),
        ("buffer", c_void_p),
        ("nonfinite", c_void_p),
        ("launches", c_int32),
        ("sets", c_int32),
        ("tensor_stride", c_int64),
        ("buffer_stride", c_int64),
    )


def _core() -> ctypes.CDLL:
    core = ctypes.CDLL(str(Path(_engine.__file__).with_name("libhvdlite_core.so")))
    core.hvdlite_last_error.restype = c_char_p
    core.hvdlite_fusion_open.argtypes = [c_char_p, c_char_p, c_char_p, c_int32, POINTER(c_void_p)]
    core.hvdlite_fusion_close.argtypes = [c_void_p]
    for name in ("gpu", "origin"):
        getattr(core, f"hvdlite_fusion_{name}").argtypes = [c_void_p]
        getattr(core, f"hvdlite_fusion_{name}").restype = c_char_p
    core.hvdlite_fusion_memory.argtypes = [c_void_p, c_int64, POINTER(c_void_p)]
    core.hvdlite_fusion_run.argtypes = [c_void_p, POINTER(_MoveStruct), POINTER(c_double), POINTER(c_double)]
    core.hvdlite_fusion_copy.argtypes = [
        *(c_void_p, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int64),
        *(POINTER(c_double), POINTER(c_double)),
    ]
    return core


class Fusion:
    """The fusion kernels of one GPU, with a stream and memory. The caller must call `close`.

    Args:
        config: the knobs.
        ordinal: the number of the GPU.

    Raises:
        UnsupportedError: there is no driver, no GPU, or no kernel for the GPU.
    """

    def __init__(self, config: Config, ordinal: int = 0) -> None:
        self._core = _core()
        self._handle = c_void_p()
        knobs = gpu.resolve(config)
        texts = (text.encode() for text in (knobs.cuda_library, knobs.nvrtc_library, knobs.kernel_cache))
        self._check(self._core.hvdlite_fusion_open(*texts, ordinal, byref(self._handle)))

    def close(self) -> None:
        """Frees the stream and the memory."""
        self._core.hvdlite_fusion_close(self._handle)
        self._handle = c_void_p()

    @property
    def gpu(self) -> str:
        """The name of the GPU."""
        return str(self._core.hvdlite_fusion_gpu(self._handle).decode())

    @property
    def origin(self) -> str:
        """The source of the kernels: compiled in, or compiled by NVRTC."""
        return str(self._core.hvdlite_fusion_origin(self._handle).decode())

    def memory(self, nbytes: int) -> int:
        """Allocates `nbytes` bytes on the GPU until `close`, and returns their address."""
        address = c_void_p()
        self._check(self._core.hvdlite_fusion_memory(self._handle, nbytes, byref(address)))
        return address.value or 0

    def run(self, move: Move, launches: int = 1) -> Times:
        """Launches `move` `launches` times, waits for the GPU, and returns the times of one launch."""
        number = len(move.tensors)
        native = _MoveStruct(
            *(move.unpack, move.source, move.target, move.op, move.factor, move.divisor, number),
            (c_void_p * number)(*move.tensors),
            (c_int64 * number)(*(offset for offset, _ in move.places)),
            (c_int64 * number)(*(count for _, count in move.places)),
            *(move.buffer, move.nonfinite, launches, move.sets, move.tensor_stride, move.buffer_stride),
        )
        device, host = c_double(), c_double()
        self._check(self._core.hvdlite_fusion_run(self._handle, byref(native), byref(device), byref(host)))
        return Times(device.value * 1e-6, host.value * 1e-6)

    def copy(self, to: int, source: int, nbytes: int, launches: int = 1, sets: int = 1, stride: int = 0) -> Times:
        """Copies with the driver's function between any two addresses, and returns the times of one copy.

        Args:
            to: the target address.
            source: the source address.
            nbytes: the bytes of one copy.
            launches: the number of copies.
            sets: the number of sets, as in `Move`.
            stride: the bytes from one set to the next.
        """
        device, host = c_double(), c_double()
        what = (to, source, nbytes, launches, sets, stride)
        self._check(self._core.hvdlite_fusion_copy(self._handle, *what, byref(device), byref(host)))
        return Times(device.value * 1e-6, host.value * 1e-6)

    def _check(self, code: int) -> None:
        if code != 0:
            raise error_class(code)((self._core.hvdlite_last_error() or b"").decode())
