"""Registers the handlers (native functions) of csrc/bindings/jax with XLA, and calls them. For JAX 0.4.31 and newer."""

import contextlib
import ctypes
import inspect
import re
from collections.abc import Collection, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from hvdlite.errors import UnsupportedError
from hvdlite.runtime import RUNTIME

_SEVERAL, _ALONE = "hvdlite_jax_collective", "hvdlite_jax_collective_alone"
_LIBRARY = Path(__file__).parents[1] / "hvdlite_jax.so"


def _ffi() -> Any:
    """JAX's module for foreign functions."""
    try:
        return import_module("jax.ffi")
    except ImportError:  # before JAX 0.5
        return import_module("jax.extend.ffi")


@cache
def _register() -> None:
    """Loads the library and registers its handlers with XLA, once for a process.

    Raises:
        ImportError: hvdlite was built without the library.
    """
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise ImportError(f"hvdlite's library for JAX cannot be loaded: {error}; install hvdlite with pip again") from error
    ffi = _ffi()
    for handler in (_SEVERAL, _ALONE):
        ffi.register_ffi_target(handler, ffi.pycapsule(getattr(library, handler)), platform="cpu")
    RUNTIME.before_leaving.append(_finish_programs)


def _finish_programs() -> None:
    """Waits until the programs that this process has started have ended, because other ranks may need their collectives."""
    arrays = jax.live_arrays()  # type: ignore[no-untyped-call]
    for wait in (jax.effects_barrier, *(array.block_until_ready for array in arrays)):
        with contextlib.suppress(Exception):  # raised where results are used; effects raise at the end of the process, too
            wait()


def has_futures() -> bool:
    """Can XLA continue while a call is in flight? If not, ranks may wait for each other in different calls of a program."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version("jaxlib"))
    return numbers is None or tuple(map(int, numbers.groups())) >= (0, 4, 38)


def parameters() -> Collection[str]:
    """The parameters of this JAX's own `ffi_call`."""
    return inspect.signature(_ffi().ffi_call).parameters.keys()


def ffi_call(description: str, arrays: Sequence[Any], alone: bool, weight: Any = None) -> list[Any]:
    """Calls a handler with the arrays and, after them, the weight if there is one. Returns arrays like these arrays.

    JAX takes some 10 us more for each result of a program with side effects. So a call that is `alone` (`hvdlite.jax.call`) is
    declared without side effects. XLA drops such a call if its results are unused, so the caller promises to use them.
    """
    _register()
    handler = _ALONE if alone or not has_futures() else _SEVERAL
    call = _ffi().ffi_call
    operands = arrays if weight is None else [*arrays, weight]
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]  # type: ignore[no-untyped-call]
    known = parameters()
    if "has_side_effect" not in known:  # before JAX 0.4.35
        return list(call(handler, results, *operands, hvdlite=description))
    options: dict[str, Any] = {"has_side_effect": not alone}
    if "input_output_aliases" in known:  # since JAX 0.4.36
        options["input_output_aliases"] = {index: index for index in range(len(arrays))}
    return list(call(handler, results, **options)(*operands, hvdlite=description))


def require_cpu() -> None:
    """Checks that JAX computes on CPUs.

    Raises:
        UnsupportedError: JAX's default device is not a CPU. The text says how to change that.
    """
    device = getattr(jax.config, "jax_default_device", None) or jax.default_backend()
    platform = device if isinstance(device, str) else device.platform
    if platform != "cpu":
        raise UnsupportedError(
            f"JAX computes on {platform!r}, and hvdlite's collectives for JAX work on CPUs only in this version: set "
            "JAX_PLATFORMS=cpu before JAX is imported, or train with Keras's torch or TensorFlow backend"
        )
