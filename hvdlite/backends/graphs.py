"""Excludes hvdlite's code from ``torch.compile``: if compiled code calls hvdlite, hvdlite runs in plain Python."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The module with the list of packages that torch.compile excludes. The second name is for torch before 2.3.
_RULES = ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles")


def keep_out_of_graphs() -> None:
    """Makes a call of hvdlite end a graph; the code after the call begins another graph.

    The compiler cannot trace collectives. Without the exclusion it would also trace the functions that collectives,
    ``backward()`` and ``step()`` call, hvdlite's hooks among them. ``torch.compiler.disable`` around each function would take
    time in each call; the compiler's list of excluded packages takes none. This function does not import torch's compiler,
    because that takes as long as importing torch. If the compiler is not loaded yet, hvdlite is added to the list when the
    compiler is loaded.
    """
    loaded = [sys.modules[name] for name in _RULES if hasattr(sys.modules.get(name), "add")]
    if loaded:
        loaded[0].add("hvdlite")
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport())


class _AtImport(MetaPathFinder):
    """Finds the module of the list as the other finders do, and adds hvdlite to the list after the module is loaded."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the module with the list, at its first import. None for all other modules."""
        if fullname not in _RULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def load_and_add(module: Any) -> None:
                load(module)
                if hasattr(module, "add"):
                    module.add("hvdlite")

            loader.exec_module = load_and_add
        return spec
