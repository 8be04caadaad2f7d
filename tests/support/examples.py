"""For tests of examples/: the programs as modules, and a folder that all ranks share."""

import sys
from pathlib import Path
from types import ModuleType

from mpi4py import MPI
from support.modules import module_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """An example, imported. Python finds the module that the examples share beside them."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return module_of(EXAMPLES / f"{name}.py")


def shared(tmp_path: Path) -> Path:
    """Rank 0's folder, on all ranks."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
