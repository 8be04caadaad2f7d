"""Converts dtypes of tensors that may be part of a graph, for compression: those of TensorFlow and JAX.

Such a tensor may have no memory yet, so it has no `TensorBackend`. Its door passes it to the engine by operations of the
framework.
"""

import sys
from typing import Any, Protocol

from hvdlite.backends import backend_of

__all__ = ["Converter", "converter_of"]


class Converter(Protocol):
    """The methods of `TensorBackend` that compression uses."""

    def adopt(self, value: Any) -> Any:
        """Converts a value to a tensor."""

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name, such as ``"float32"``."""

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """The tensor converted to another dtype."""


class _Traced:
    """The methods that are the same for TensorFlow and JAX."""

    def adopt(self, value: Any) -> Any:
        return value

    def dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype.name)


class _TensorFlowConverter(_Traced):
    def cast(self, tensor: Any, dtype_name: str) -> Any:
        return sys.modules["tensorflow"].cast(tensor, dtype_name)


class _JaxConverter(_Traced):
    def cast(self, tensor: Any, dtype_name: str) -> Any:
        return tensor.astype(dtype_name)


_TENSORFLOW, _JAX = _TensorFlowConverter(), _JaxConverter()


def converter_of(value: Any) -> Converter:
    """The converter for a value: that of TensorFlow or JAX for their tensors, and otherwise the value's backend."""
    if isinstance(value, getattr(sys.modules.get("tensorflow"), "Tensor", ())):
        return _TENSORFLOW
    if isinstance(value, getattr(sys.modules.get("jax"), "Array", ())):
        return _JAX
    return backend_of(value)
