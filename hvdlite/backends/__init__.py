"""Which backend answers for a value: found by its type, looking only at frameworks that are imported already."""

import sys
from typing import Any

from hvdlite.backends.base import Exported, TensorBackend
from hvdlite.backends.numpy import BACKEND as NUMPY

__all__ = ["Exported", "TensorBackend", "backend_of"]

_by_type: dict[type, TensorBackend] = {}


def backend_of(value: Any) -> TensorBackend:
    """The backend for a value: torch's for its tensors, NumPy's for everything else, which adopts or refuses it."""
    backend = _by_type.get(type(value))
    if backend is None:
        backend = _by_type[type(value)] = _find(value)
    return backend


def _find(value: Any) -> TensorBackend:
    torch = sys.modules.get("torch")
    # A torch that is still being imported has no Tensor yet, and nobody can hold one.
    tensor_class = getattr(torch, "Tensor", None)
    if tensor_class is None or not isinstance(value, tensor_class):
        return NUMPY
    from hvdlite.backends.torch import make_backend

    for known in _by_type.values():
        if known.name == "torch":
            return known
    return make_backend()
