"""Converts the dtypes of tensors of TensorFlow and JAX, which may be part of a graph, for compression.

Such a tensor may have no memory yet, so it has no `TensorBackend`. The framework's door passes the tensor to the engine by
operations of the framework.
"""

import sys
from collections.abc import Callable
from typing import Any

from hvdlite.backends import TensorBackend, backend_of


class _Traced:
    """The methods of `TensorBackend` that compression uses. `cast` calls a function of the framework."""

    def __init__(self, cast: Callable[[Any, str], Any]) -> None:
        self.cast = cast

    def adopt(self, value: Any) -> Any:
        return value

    def dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype.name)


_TENSORFLOW = _Traced(lambda tensor, dtype_name: sys.modules["tensorflow"].cast(tensor, dtype_name))
_JAX = _Traced(lambda tensor, dtype_name: tensor.astype(dtype_name))


def converter_of(value: Any) -> TensorBackend | _Traced:
    """The converter for a value: a `_Traced` for tensors of TensorFlow and JAX, and otherwise the value's backend."""
    if isinstance(value, getattr(sys.modules.get("tensorflow"), "Tensor", ())):
        return _TENSORFLOW
    if isinstance(value, getattr(sys.modules.get("jax"), "Array", ())):
        return _JAX
    return backend_of(value)
