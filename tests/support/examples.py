"""For tests of examples/: the programs as modules, and a folder that all ranks share."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from mpi4py import MPI

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """An example, imported. Python finds the module that the examples share beside them."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shared(tmp_path: Path) -> Path:
    """Rank 0's folder, on all ranks."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
