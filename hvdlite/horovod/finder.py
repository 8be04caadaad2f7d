"""Finds the modules of Horovod in hvdlite.

The rule: ``horovod.torch...`` is ``hvdlite.torch...``, likewise for the other doors, and any other ``horovod...`` is
``hvdlite.horovod...``. A module is imported once and known under both names, so classes are the same whichever name a
program (or a pickle) uses. What hvdlite does not have raises `UnsupportedModuleError`.
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
    "PyTorch (horovod.torch), TensorFlow (horovod.tensorflow), Keras (horovod.keras) and NumPy arrays (hvdlite) are served"
)

# Why a module is not here, and what to use; also for those below it that have no line of their own.
REASONS = {
    "_keras": "it is internal to Horovod; use horovod.keras or horovod.tensorflow.keras",
    "mxnet": f"MXNet is not developed any more; {_OTHER_DOOR}",
    "ray": f"hvdlite has no executor for Ray; {_MPIRUN}",
    "runner": "of it there are run() and a few helpers (docs/shim.md); the command is hvdlite run",
    "spark": f"hvdlite has no estimators for Spark; {_MPIRUN}",
    "tensorflow.gradient_aggregation": "it is internal to Horovod; pass backward_passes_per_step to DistributedOptimizer",
    "tensorflow.gradient_aggregation_eager": "it is internal to Horovod; pass backward_passes_per_step to DistributedOptimizer",
    "tensorflow.data": "hvdlite starts no tf.data service; shard the dataset by rank() and size()",
    "torch.mpi_lib_v2": "it is Horovod's native library; use horovod.torch.mpi_ops",
}


class UnsupportedModuleError(UnsupportedError, ModuleNotFoundError):
    """A module of Horovod that hvdlite does not have; ``except ImportError`` catches it."""

    def __init__(self, text: str, name: str) -> None:
        ModuleNotFoundError.__init__(self, text, name=name)


def own_name(fullname: str) -> str | None:
    """The name in hvdlite of a module of Horovod, or None for any other module.

    >>> own_name("horovod.torch.mpi_ops"), own_name("horovod.common.util"), own_name("torch")
    ('hvdlite.torch.mpi_ops', 'hvdlite.horovod.common.util', None)
    """
    # `from horovod import torch` asks for hvdlite.horovod.torch, as the package's own name is hvdlite.horovod.
    head, _, tail = fullname.removeprefix("hvdlite.").partition(".")
    if head != "horovod":
        return None
    if not tail:
        return "hvdlite.horovod"
    return f"hvdlite.{tail}" if tail.partition(".")[0] in DOORS else f"hvdlite.horovod.{tail}"


class HorovodFinder(MetaPathFinder):
    """Goes in front of ``sys.meta_path``, so that hvdlite is found also where Horovod is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias, or None for what is no module of Horovod or lies in hvdlite under this very name.

        Raises:
            UnsupportedModuleError: it is a module of Horovod, and hvdlite has no such module.
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
    """Gives a module that hvdlite has under its own name."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._own)
        self._spec = module.__spec__  # importlib is about to put the alias's in its place
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
