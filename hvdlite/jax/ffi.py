"""Makes the handler of csrc/bindings/jax known to XLA, and calls it, with any JAX since 0.4.31."""

import ctypes
import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from hvdlite.errors import UnsupportedError

__all__ = ["ffi_call", "require_cpu"]

_TARGET = "hvdlite_collective"
_LIBRARY = Path(__file__).parents[1] / "hvdlite_jax.so"


def _ffi() -> ModuleType:
    try:
        from jax import ffi
    except ImportError:  # before JAX 0.5
        from jax.extend import ffi
    module: ModuleType = ffi
    return module


@cache
def _register() -> None:
    """Loads the library and registers its handler with XLA, once for a process.

    Raises:
        ImportError: hvdlite was built without it.
    """
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise ImportError(f"hvdlite's library for JAX cannot be loaded: {error}; install hvdlite with pip again") from error
    ffi = _ffi()
    ffi.register_ffi_target(_TARGET, ffi.pycapsule(library.hvdlite_jax_collective), platform="cpu")


def ffi_call(description: str, arrays: Sequence[Any]) -> list[Any]:
    """Calls the handler with these arrays; as many arrays of the same shapes and dtypes come back."""
    _register()
    call = _ffi().ffi_call
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    parameters = inspect.signature(call).parameters
    if "has_side_effect" not in parameters:  # before JAX 0.4.35
        return list(call(_TARGET, results, *arrays, description=description))
    options: dict[str, Any] = {"has_side_effect": True}
    if "input_output_aliases" in parameters:  # since JAX 0.4.36
        options["input_output_aliases"] = {index: index for index in range(len(arrays))}
    return list(call(_TARGET, results, **options)(*arrays, description=description))


def require_cpu() -> None:
    """Refuses a JAX that computes elsewhere than on CPUs.

    Raises:
        UnsupportedError: its default device is no CPU; says how to change that.
    """
    device = jax.config.jax_default_device or jax.default_backend()
    platform = device if isinstance(device, str) else device.platform
    if platform != "cpu":
        raise UnsupportedError(
            f"JAX computes on {platform!r}, and hvdlite's collectives for JAX work on CPUs only in this version: set "
            "JAX_PLATFORMS=cpu before JAX is imported, or train with Keras's torch or TensorFlow backend"
        )
