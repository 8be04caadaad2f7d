"""Calls the fusion kernels: compiled for the host, on host memory (tests/native/fusion_host), or on fake GPUs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from support import fake_gpu, native
from support.cases import Op

from hvdlite import config
from hvdlite.bench.fusion import Fusion
from hvdlite.dtypes import DType

Array = npt.NDArray[Any]


class _Pieces(ctypes.Structure):
    _fields_ = (
        ("count", c_size_t),
        ("tensors", POINTER(c_void_p)),
        ("offsets", POINTER(c_size_t)),
        ("counts", POINTER(c_size_t)),
    )


class _Conversion(ctypes.Structure):
    _fields_ = (
        *((name, c_int) for name in ("source", "target", "op", "unpack")),
        ("factor", c_double),
        ("divisor", c_int64),
    )


@dataclass(frozen=True)
class Conversion:
    """The change of each element: its types, its factor and divisor, and the op whose identity stands for absent tensors."""

    source: DType
    target: DType
    factor: float = 1.0
    divisor: int = 1
    op: Op = Op.SUM


@dataclass(frozen=True)
class Way:
    """The way of a launch. Its results do not depend on it."""

    table: bool = False  # are the pieces in a table, even if they fit into the launch's arguments?
    multiprocessors: int = 132
    backwards: bool = False  # does the last thread run first?


def missing() -> str | None:
    """The reason why the kernels cannot be called; None if they can."""
    return fake_gpu.missing()


@functools.cache
def _library() -> ctypes.CDLL:
    folder = native.folder()
    assert folder is not None, missing()
    library = ctypes.CDLL(str(folder / "libfusion_host.so"))
    library.fusion_host_move.argtypes = [
        *(POINTER(_Pieces), c_void_p, POINTER(_Conversion), POINTER(c_int32)),
        *(c_int, c_int, c_int),
    ]
    library.fusion_host_problem.restype = c_char_p
    return library


def move(
    tensors: Sequence[int | None],
    places: Sequence[tuple[int, int]],
    buffer: int,
    conversion: Conversion,
    *,
    unpack: bool = False,
    nonfinite: Array | None = None,
    way: Way = Way(),
) -> int:
    """Packs the tensors at these addresses into (offset, count) of the buffer, or unpacks them, in one launch. Returns the
    number of its blocks.
    """
    number = len(tensors)
    addresses = (c_void_p * number)(*tensors)
    offsets = (c_size_t * number)(*(offset for offset, _ in places))
    counts = (c_size_t * number)(*(count for _, count in places))
    blocks = _library().fusion_host_move(
        ctypes.byref(_Pieces(number, addresses, offsets, counts)),
        buffer,
        ctypes.byref(
            _Conversion(conversion.source, conversion.target, conversion.op, unpack, conversion.factor, conversion.divisor)
        ),
        None if nonfinite is None else nonfinite.ctypes.data_as(POINTER(c_int32)),
        way.table,
        way.multiprocessors,
        way.backwards,
    )
    if blocks < 0:
        raise ValueError(_library().fusion_host_problem().decode())
    return int(blocks)


class Guarded:
    """Bytes at a chosen offset from an address that 64 divides, between guard bytes that must not change."""

    def __init__(self, size: int, misfit: int = 0, fill: int = 0x5A) -> None:
        self._raw = np.full(size + 256 + misfit, 0xA5, dtype=np.uint8)
        self._start = -self._raw.ctypes.data % 64 + 64 + misfit
        self._end = self._start + size
        self.bytes[...] = fill

    @property
    def bytes(self) -> Array:
        return self._raw[self._start : self._end]

    @property
    def address(self) -> int:
        return int(self._raw.ctypes.data) + self._start

    def check(self) -> None:
        assert np.all(self._raw[: self._start] == 0xA5), "something was written before the memory"
        assert np.all(self._raw[self._end :] == 0xA5), "something was written behind the memory"

    @classmethod
    def of(cls, values: Array, misfit: int = 0) -> Guarded:
        made = cls(values.nbytes, misfit)
        made.bytes[...] = np.frombuffer(values.tobytes(), np.uint8)
        return made


def convert(
    values: Array, conversion: Conversion, misfits: tuple[int, int] = (0, 0), way: Way = Way(), unpack: bool = False
) -> Array:
    """Packs or unpacks the values alone, and returns the result as bytes. Checks that the input and the memory around do not
    change.

    Args:
        values: the input.
        conversion: the change of each element.
        misfits: the misalignment of the input and of the output, in bytes.
        way: the way of the launch.
        unpack: unpack, or pack?
    """
    source = Guarded.of(values, misfits[0])
    target = Guarded(values.size * conversion.target.itemsize, misfits[1])
    tensor, buffer = (target, source) if unpack else (source, target)
    move([tensor.address], [(0, values.size)], buffer.address, conversion, unpack=unpack, way=way)
    source.check()
    target.check()
    assert source.bytes.tobytes() == values.tobytes()
    return target.bytes.copy()


def uploads(fusion: Fusion) -> int:
    """The number of tensor lists that were copied to the GPU."""
    function = fusion._core.hvdlite_fusion_uploads
    function.argtypes, function.restype = [c_void_p], c_int64
    return int(function(fusion._handle))


@contextmanager
def opened(**others: Any) -> Iterator[Fusion]:
    """The kernels of the first fake GPU."""
    fusion = Fusion(config.Config(fake_gpu.knobs(**others)))
    try:
        yield fusion
    finally:
        fusion.close()
