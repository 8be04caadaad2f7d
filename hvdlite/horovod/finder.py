"""Finds the modules of Horovod in hvdlite.

The rule: ``horovod.torch...`` is ``hvdlite.torch...``, the same holds for the other doors, and any other ``horovod...`` is
``hvdlite.horovod...``. A module is imported once and has both names, so a program (or a pickle) gets the same classes by either
name. Importing a module that hvdlite does not have raises `UnsupportedModuleError`.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from hvdlite.errors import UnsupportedError

__all__ = ["HorovodFinder", "UnsupportedModuleError", "own_name"]

DOORS = ("torch", "tensorflow", "keras")

_MPIRUN = "start the training script with mpirun (python -m hvdlite.horovod works under it)"
_OTHER_DOOR = (
    "hvdlite supports PyTorch (horovod.torch), TensorFlow (horovod.tensorflow), Keras (horovod.keras) and NumPy (hvdlite)"
)

# For each module that hvdlite does not have: the reason, and what to use instead. A row also applies to submodules that have no
# row.
REASONS = {
    "_keras": "it is internal to Horovod; use horovod.keras or horovod.tensorflow.keras",
    "mxnet": f"MXNet is not developed any more; {_OTHER_DOOR}",
    "ray": f"hvdlite has no executor for Ray; {_MPIRUN}",
    "runner": "hvdlite has only its run() and a few helpers (docs/shim.md); use the command hvdlite run",
    "spark": f"hvdlite has no estimators for Spark; {_MPIRUN}",
    "tensorflow.gradient_aggregation": "it is internal to Horovod; pass backward_passes_per_step to DistributedOptimizer",
    "tensorflow.gradient_aggregation_eager": "it is internal to Horovod; pass backward_passes_per_step to DistributedOptimizer",
    "tensorflow.data": "hvdlite starts no tf.data service; shard the dataset by rank() and size()",
    "torch.mpi_lib_v2": "it is Horovod's native library; use horovod.torch.mpi_ops",
}


class UnsupportedModuleError(UnsupportedError, ModuleNotFoundError):
    """A program has imported a module of Horovod that hvdlite does not have. ``except ImportError`` catches it."""

    def __init__(self, text: str, name: str) -> None:
        ModuleNotFoundError.__init__(self, text, name=name)


def own_name(fullname: str) -> str | None:
    """The name in hvdlite of a module of Horovod, or None for any other module.

    >>> own_name("horovod.torch.mpi_ops"), own_name("horovod.common.util"), own_name("torch")
    ('hvdlite.torch.mpi_ops', 'hvdlite.horovod.common.util', None)
    """
    # For `from horovod import torch` Python imports hvdlite.horovod.torch, because the package's name is hvdlite.horovod.
    head, _, tail = fullname.removeprefix("hvdlite.").partition(".")
    if head != "horovod":
        return None
    if not tail:
        return "hvdlite.horovod"
    return f"hvdlite.{tail}" if tail.partition(".")[0] in DOORS else f"hvdlite.horovod.{tail}"


class HorovodFinder(MetaPathFinder):
    """Finds Horovod's modules in hvdlite. It is first in ``sys.meta_path``, so Python never finds an installed Horovod."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec by which Python loads a module of hvdlite under the name `fullname`.

        None: `fullname` is no module of Horovod, or hvdlite has a module of exactly this name, which Python finds itself.

        Raises:
            UnsupportedModuleError: `fullname` is a module of Horovod that hvdlite does not have.
        """
        own = own_name(fullname)
        if own is None:
            return None
        if own == fullname:
            if PathFinder.find_spec(fullname, path) is None:
                raise _unsupported(fullname)
            return None
        found = importlib.util.find_spec(own)
        if found is None:
            raise _unsupported(fullname)
        spec = ModuleSpec(fullname, _AliasLoader(own), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _AliasLoader(Loader):
    """Loads the module that hvdlite has under the name `own`."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._own)
        self._spec = module.__spec__  # importlib replaces it by the spec of the alias; exec_module restores it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _unsupported(fullname: str) -> UnsupportedModuleError:
    name = fullname.removeprefix("hvdlite.")
    part = name.removeprefix("horovod.")
    while part and part not in REASONS:
        part = part.rpartition(".")[0]
    reason = REASONS.get(part, "docs/shim.md lists the modules of Horovod that it has")
    return UnsupportedModuleError(f"hvdlite does not offer the module {name}: {reason}", name)
