"""``torch.compile`` runs hvdlite's code as it is, wherever compiled code comes to it."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["keep_out_of_graphs"]

# The module with the list of folders that torch.compile leaves alone; the second name is that of torch before 2.3.
_RULES = ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles")


def keep_out_of_graphs() -> None:
    """Has hvdlite end a graph, and what follows it begin another.

    Collectives are nothing to trace, and what they, ``backward()`` and ``step()`` call would be looked at again, our hooks
    among it. ``torch.compiler.disable`` around each function would cost time in each call; the list of folders costs none.
    torch's compiler is not imported for that, which takes as long as torch itself: the list is there when it has been.
    """
    loaded = [sys.modules[name] for name in _RULES if hasattr(sys.modules.get(name), "add")]
    if loaded:
        loaded[0].add("hvdlite")
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport())


class _AtImport(MetaPathFinder):
    """Finds the module as the others do, and adds to its list once it is loaded."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Only of that module, once."""
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
