"""Support for tests of examples/: loads the programs as modules, and gives all ranks one folder."""

import sys
from pathlib import Path
from types import ModuleType

from mpi4py import MPI
from support.modules import module_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Imports an example. Python also finds the module that the examples share."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return module_of(EXAMPLES / f"{name}.py")


def shared(tmp_path: Path) -> Path:
    """The path of rank 0's folder, on all ranks."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
