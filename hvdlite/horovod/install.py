"""``import hvdlite.horovod.install``: after it, in this process, ``import horovod.torch`` imports `hvdlite.torch`.

The import also turns on the knob horovod_rules. A program must import this module before it imports Horovod. New interpreters
that multiprocessing starts (data loaders with spawn or forkserver) import this module, too, before they import the main program
again.
"""

import importlib
import logging
import multiprocessing
import sys
from importlib.machinery import PathFinder
from multiprocessing import spawn
from typing import Any

import hvdlite.horovod
from hvdlite.config import is_first_process, prefer
from hvdlite.horovod.finder import HorovodFinder

__all__: list[str] = []


def _install() -> None:
    """Adds the finder to ``sys.meta_path``.

    Raises:
        ImportError: Horovod itself has been imported, so the program would use a mixture of Horovod and hvdlite.
    """
    loaded = sys.modules.get("horovod", hvdlite.horovod)
    if loaded is not hvdlite.horovod:
        raise ImportError(
            f"Horovod itself has been imported already, from {getattr(loaded, '__file__', None)}: import "
            "hvdlite.horovod.install before anything that imports horovod, or run the script with python -m hvdlite.horovod",
            name=__name__,
        )
    other = PathFinder.find_spec("horovod")
    # A folder with the name horovod but without __init__.py, such as a clone of Horovod's repository, is no installation.
    if other is not None and other.origin is not None and is_first_process() and multiprocessing.parent_process() is None:
        logging.getLogger("hvdlite").warning("import horovod imports hvdlite here; the file %s is not used", other.origin)
    sys.meta_path.insert(0, HorovodFinder())
    prefer(horovod_rules=True)
    _reach_new_interpreters()


class _ImportedOnArrival:
    """An object whose unpickling imports this module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (__name__,)


def _reach_new_interpreters() -> None:
    """Makes new interpreters of multiprocessing import this module before they import the main program.

    multiprocessing sends the preparation data to each new interpreter, which unpickles these data first.
    """
    prepare = spawn.get_preparation_data

    def prepare_with_finder(name: str) -> dict[str, Any]:
        return {**prepare(name), __name__: _ImportedOnArrival()}

    spawn.get_preparation_data = prepare_with_finder


_install()
