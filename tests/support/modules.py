"""Loads programs outside of packages (in docs/, examples/, tests/matrix) as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(file: Path) -> ModuleType:
    """Imports a program from its file."""
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses search for the module here
    spec.loader.exec_module(module)
    return module
