"""Loads the module hvdlite_testing as ``native``: kernels, simulated collectives and the explorer (tests/native/testing)."""

import importlib.util
from types import ModuleType

from support.native import folder


def _load(name: str) -> ModuleType:
    found = folder()
    path = next(found.glob(f"{name}.*.so"), None) if found else None
    spec = importlib.util.spec_from_file_location(name, path) if path else None
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not built (make develop)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = _load("hvdlite_testing")
