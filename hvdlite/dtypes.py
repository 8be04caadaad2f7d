"""The dtypes that the engine knows, with the numbers and names of csrc/base/types.h. Elements of other dtypes it only moves.

NumPy has no bfloat16. The package ml_dtypes adds one; this module recognises it by its name and never imports that package.
"""

import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

from hvdlite.errors import InvalidArgumentError, UnsupportedError


class DType(IntEnum):
    """Codes of dtypes. Append new codes and never renumber, because the C ABI and messages between ranks contain the codes."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT32 = 10
    FLOAT64 = 11
    BOOL = 12
    COMPLEX64 = 13
    COMPLEX128 = 14

    @property
    def label(self) -> str:
        """The name that NumPy and torch use, such as ``"float32"``; error texts contain it."""
        return self.name.lower()

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        """Is this a floating-point dtype (of 16 bits or more)?"""
        return DType.FLOAT16 <= self <= DType.FLOAT64

    @property
    def is_complex(self) -> bool:
        """Is this a complex dtype, whose elements are pairs of floats?"""
        return self in (DType.COMPLEX64, DType.COMPLEX128)


_ITEMSIZE = dict(zip(DType, (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 8, 16), strict=True))

_BY_NAME = {dtype.label: dtype for dtype in DType}
_DLPACK_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}  # DLDataTypeCode in dlpack.h


def code_of_name(name: str, what: str = "tensor") -> DType:
    """The code for a dtype's name.

    Args:
        name: ``"float32"``, ``"bfloat16"``, ...
        what: the object with this dtype, in words, for the error text.

    Raises:
        InvalidArgumentError: the engine does not know this dtype. The text lists the dtypes that it knows.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InvalidArgumentError(
            f"a {what} of dtype {name} cannot be sent: hvdlite knows {', '.join(_BY_NAME)}; convert it first"
        ) from None


# For elements that the engine only moves: by size in bytes, the dtype under which it moves them.
_STAND_INS = {1: DType.UINT8, 2: DType.UINT16, 4: DType.UINT32, 8: DType.UINT64, 16: DType.COMPLEX128}
_FIRST_OTHER = 1 << 30  # layouts from here on stand for dtypes, as in csrc/engine/model/text.cc


def elements_of(name: str, itemsize: int, any_dtype: bool, what: str) -> tuple[int, int]:
    """The description of the elements of a row-major tensor in a request.

    Args:
        name: the name of the dtype.
        itemsize: the size of an element in bytes.
        any_dtype: does the engine only move the elements, so that it need not know the dtype? For a dtype that it does not
            know, the code is then that of another dtype of the same size, and the layout is a hash of the name, by which the
            engine notices if ranks have different dtypes.
        what: as for `code_of_name`.

    Returns:
        The code of the element type, and the layout.

    Raises:
        InvalidArgumentError: as `code_of_name`; also if the engine cannot move elements of this size.
    """
    if not any_dtype or name in _BY_NAME or itemsize not in _STAND_INS:
        return int(code_of_name(name, what)), 0
    mark = 2166136261  # FNV-1a
    for letter in name.encode():
        mark = (mark ^ letter) * 16777619 % (1 << 32)
    return int(_STAND_INS[itemsize]), _FIRST_OTHER + mark % _FIRST_OTHER


def numpy_dtype(code: int) -> np.dtype[Any]:
    """NumPy's dtype for a code.

    Raises:
        UnsupportedError: the code is bfloat16, and the program has not imported ml_dtypes, which adds bfloat16 to NumPy.
    """
    dtype = DType(code)
    if dtype is not DType.BFLOAT16:
        return np.dtype(dtype.label)
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is None:
        raise UnsupportedError("NumPy has no bfloat16 of its own: import ml_dtypes (pip install ml-dtypes) first")
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def dlpack_codes(dtypes: Iterable[DType]) -> bytes:
    """A table for native code: the codes of these dtypes, each at the index 8 times DLPack's type code plus the logarithm (to
    base 2) of an element's bytes. At all other indices the table has 255.
    """
    table = bytearray(b"\xff" * 64)
    for dtype in dtypes:
        kind = _DLPACK_KINDS[dtype.label.rstrip("0123456789")]
        table[8 * kind + dtype.itemsize.bit_length() - 1] = dtype
    return bytes(table)
