"""Finds the backend for a value by its type. It considers only frameworks that are imported already."""

import sys
from typing import Any

from hvdlite.backends.base import Exported, Plain, TensorBackend
from hvdlite.backends.cuda_array import BACKEND as CUDA_ARRAY
from hvdlite.backends.cuda_array import DeviceArray
from hvdlite.backends.numpy import BACKEND as NUMPY

__all__ = ["DeviceArray", "Exported", "TensorBackend", "backend_of", "plain_of"]

_by_type: dict[type, TensorBackend] = {}


def backend_of(value: Any) -> TensorBackend:
    """The backend for a value.

    It is torch's for torch tensors, CuPy's for CuPy arrays, `CudaArrayBackend` for other values with
    ``__cuda_array_interface__``, and NumPy's for all other values. NumPy's backend refuses values that are no tensors.
    """
    backend = _by_type.get(type(value))
    if backend is None:
        backend = _framework_of(value)
        if backend is None:
            # This backend is not stored by type, because values of the type may be in CUDA memory or in host memory.
            if hasattr(value, "__cuda_array_interface__"):
                return CUDA_ARRAY
            if hasattr(type(value), "__cuda_array_interface__"):
                return NUMPY
            backend = NUMPY
        _by_type[type(value)] = backend
    return backend


def plain_of(value: Any) -> Plain | None:
    """The description of a value's type for native code; None if native code does not handle the type."""
    return backend_of(value).plain(type(value))


def _framework_of(value: Any) -> TensorBackend | None:
    if _is_of("torch", "Tensor", value):
        from hvdlite.backends.torch import BACKEND as TORCH

        return TORCH
    if _is_of("cupy", "ndarray", value):
        from hvdlite.backends.cupy import BACKEND as CUPY

        return CUPY
    return None


def _is_of(framework: str, name: str, value: Any) -> bool:
    # A framework that is still being imported has no such class yet, and no object of it can exist.
    kind = getattr(sys.modules.get(framework), name, None)
    return kind is not None and isinstance(value, kind)
