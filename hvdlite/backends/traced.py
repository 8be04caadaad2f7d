"""What compression must know of tensors that may stand in a graph: those of TensorFlow and JAX.

Such a tensor may have no memory yet, so there is no `TensorBackend` for it: its door hands it to the engine by operations of
its framework.
"""

import sys
from typing import Any, Protocol

from hvdlite.backends import backend_of

__all__ = ["Converter", "converter_of"]


class Converter(Protocol):
    """Part of `TensorBackend`; see there."""

    def adopt(self, value: Any) -> Any:
        """The tensor that stands for a value."""

    def dtype_name(self, tensor: Any) -> str:
        """The dtype's name, such as ``"float32"``."""

    def cast(self, tensor: Any, dtype_name: str) -> Any:
        """The tensor converted to another dtype."""


class _Traced:
    """Tensors that have their dtypes' names in common."""

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
    """What converts a value: for tensors in graphs their framework, for all others their backend."""
    if isinstance(value, getattr(sys.modules.get("tensorflow"), "Tensor", ())):
        return _TENSORFLOW
    if isinstance(value, getattr(sys.modules.get("jax"), "Array", ())):
        return _JAX
    return backend_of(value)
