"""Python loads this file only if the native module of the same name is missing. The file raises an error with the remedy."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def _is_built(package: Path) -> bool:
    return any((package / f"_engine{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _explain(package: Path, search_path: list[str]) -> str:
    """Why the native module is missing, and the remedy.

    Args:
        package: the folder that hvdlite was imported from.
        search_path: where Python looks for packages.
    """
    text = f"{package} has no native module for Python {sys.version_info.major}.{sys.version_info.minor}"
    for entry in search_path:
        other = Path(entry).resolve() / "hvdlite"
        if _is_built(other):
            return (
                f"{text}, but {other} has one. Python looks first where a script lies, or, without a script, in the current "
                f"folder: keep and start your programs in other folders than {package.parent}"
            )
    return f"{text}: install hvdlite with pip, or run `make develop` in a source tree"


raise ImportError(_explain(Path(__file__).resolve().parent, sys.path))
