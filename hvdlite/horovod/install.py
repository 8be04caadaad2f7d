"""``import hvdlite.horovod.install``: from here on, in this process, ``import horovod.torch`` gives `hvdlite.torch`, and the
knob horovod_rules is on.

It goes before the first import of Horovod. Processes that multiprocessing starts afresh (data loaders with spawn or
forkserver), which import the main program again, know it too.
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
    """Puts the finder in place.

    Raises:
        ImportError: Horovod itself has been imported; some of the program would use the one and some the other.
    """
    loaded = sys.modules.get("horovod", hvdlite.horovod)
    if loaded is not hvdlite.horovod:
        raise ImportError(
            f"Horovod itself has been imported already, from {getattr(loaded, '__file__', None)}: import "
            "hvdlite.horovod.install before anything that imports horovod, or run the script with python -m hvdlite.horovod",
            name=__name__,
        )
    other = PathFinder.find_spec("horovod")
    # A folder called horovod without __init__.py, such as a clone of its repository, is no installation.
    if other is not None and other.origin is not None and is_first_process() and multiprocessing.parent_process() is None:
        logging.getLogger("hvdlite").warning("hvdlite serves horovod here; the one in %s is not used", other.origin)
    sys.meta_path.insert(0, HorovodFinder())
    prefer(horovod_rules=True)
    _reach_new_interpreters()


class _ImportedOnArrival:
    """Its pickle is an import of this module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (__name__,)


def _reach_new_interpreters() -> None:
    """Lets processes that multiprocessing starts afresh import this module before the main program."""
    prepare = spawn.get_preparation_data

    def prepare_with_finder(name: str) -> dict[str, Any]:
        return {**prepare(name), __name__: _ImportedOnArrival()}

    spawn.get_preparation_data = prepare_with_finder


_install()
