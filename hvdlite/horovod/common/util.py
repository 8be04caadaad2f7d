"""``horovod.common.util``: small functions of Horovod that programs use."""

import functools
import importlib
import importlib.util
import re
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hvdlite import basics
from hvdlite.config import environment as env
from hvdlite.partition import part_of
from hvdlite.requests import resolve_op

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

_T = TypeVar("_T")

_cache = functools.cache  # not public, but programs import it


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether hvdlite has a door for a framework, such as ``"torch"``, and the framework is installed. Imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in (f"hvdlite.{ext_base_name}", ext_base_name))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises an error if `extension_available` is False. It checks nothing else, because hvdlite is compiled for no framework.

    Args:
        ext_name: name of a door, such as ``"horovod.torch"``.
        ext_env_var: accepted for compatibility with Horovod; not used.
        pkg_path: accepted for compatibility with Horovod; not used.
        *args: accepted for compatibility with Horovod; not used.

    Raises:
        ImportError: hvdlite has no such door, or the framework is not installed.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name}: hvdlite has no door for this framework, or the framework is not installed")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework (``"torch"`` or ``"tensorflow"``) finds a GPU. The call imports the framework."""
    if not extension_available(ext_base_name):
        return False
    framework: Any = importlib.import_module(ext_base_name)
    if ext_base_name == "torch":
        return bool(framework.cuda.is_available())
    return bool(framework.config.list_physical_devices("GPU"))


def mpi_built(verbose: bool = False) -> bool:
    """As `hvdlite.mpi_built`."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """As `hvdlite.gloo_built`."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """As `hvdlite.nccl_built`."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """As `hvdlite.ddl_built`."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """As `hvdlite.ccl_built`."""
    return basics.ccl_built()


def get_ext_suffix() -> str:
    """The ending of the file names of native modules for this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Returns a function of ``op`` and ``average``, the older argument for ``op``, that returns the reduce operator.

    Args:
        reduce_ops: accepted for compatibility with Horovod; not used, because operators are the same numbers in all doors.
    """
    return lambda op, average: resolve_op(op, average)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of 2: 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[_T], n: int) -> list[Sequence[_T]]:  # noqa: E741 - Horovod's name
    """Divides a list into n consecutive parts. Their lengths differ by 1 at most, and the longer parts come first."""
    parts = [part_of(len(l), n, number) for number in range(n)]
    return [l[part.start : part.stop] for part in parts]


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Does nothing: hvdlite is compiled against no framework, so there is no version that it was built for."""


def is_iterable(x: Any) -> bool:
    """Whether a loop over `x` is possible."""
    # isinstance(x, Iterable) is False for an object that has only __getitem__.
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least the target. A pre-release, such as ``"2.1.0-rc1"``, counts as lower than its release.

    Args:
        ver: the version, such as ``"2.1.0+cu121"``. Only its first three numbers count, and whether it is a pre-release.
        target: a version of three numbers, such as ``"2.1.0"``.

    Raises:
        ValueError: `ver` or `target` is no version of the form described here.
    """
    if not (isinstance(ver, str) and isinstance(target, str)):
        raise ValueError(f"pass versions as text, such as '2.1.0'; got {ver!r} and {target!r}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"the target version must have the form major.minor.patch, got {target!r}")
    found = re.match(r"(\d+(?:\.\d+)*)[.\-_]?((?:a|alpha|b|beta|c|rc|pre|preview|dev)(?![a-z]))?", ver)
    if found is None:
        raise ValueError(f"{ver!r} is no version: pass one such as '2.1.0'")
    wanted = _numbers(target)
    numbers = (_numbers(found[1]) + [0] * len(wanted))[: len(wanted)]
    return numbers > wanted or (numbers == wanted and found[2] is None)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
