"""Where NVIDIA's libraries may be: in this process already, in NVIDIA's wheels, in a CUDA toolkit, on the system.

The engine opens the first that it can, at the first use of a GPU, of compilers one whose code the driver takes; here only
places are found, and nothing is imported or loaded. The copy in the process comes first: what a framework has loaded is what
it was made for.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from hvdlite import config as knobs
from hvdlite.config import Config

__all__ = ["kernel_cache", "nccl_libraries", "nvrtc_libraries", "resolve"]

_NCCL = "libnccl.so.2"
# Newest first; the engine puts those behind that are of a later CUDA than the driver. The compiler of CUDA 11.2 is that of all
# later versions 11, too.
_NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2")


def resolve(config: Config) -> Config:
    """The knobs as the engine wants them: with the places that they leave to hvdlite."""
    caches = {"auto": kernel_cache(), "off": ""}
    return config.replace(
        nccl_library=config.nccl_library or ":".join(nccl_libraries()),
        nvrtc_library=config.nvrtc_library or ":".join(nvrtc_libraries()),
        kernel_cache=caches.get(config.kernel_cache, config.kernel_cache),
    )


def nccl_libraries() -> list[str]:
    """Where NCCL may be, best first; + means in the process."""
    return [f"+{_NCCL}", *_files(_wheel_folders(), (_NCCL,)), *_files(_environment_folders(), (_NCCL,)), _NCCL]


def nvrtc_libraries() -> list[str]:
    """Where NVIDIA's run-time compiler may be, best first; + means in the process."""
    folders = [*_wheel_folders(), *_environment_folders(), *_toolkit_folders()]
    return [*(f"+{name}" for name in _NVRTC), *_files(folders, _NVRTC), *_NVRTC]


def kernel_cache() -> str:
    """The folder for compiled kernels; empty where the user has none for such things."""
    folder = knobs.cache_folder()
    return str(Path(folder) / "hvdlite") if folder else ""


def _wheel_folders() -> Iterator[Path]:
    """The folders of libraries in NVIDIA's wheels: nvidia/nccl/lib, from CUDA 13 on nvidia/cu13/lib, ..."""
    # Not find_spec, which would believe what a program has put under this name.
    spec = PathFinder.find_spec("nvidia", sys.path)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob("*/lib"))


def _environment_folders() -> Iterator[Path]:
    """Where conda puts libraries."""
    yield Path(sys.prefix) / "lib"


def _toolkit_folders() -> Iterator[Path]:
    for toolkit in knobs.cuda_toolkits():
        yield Path(toolkit) / "lib64"


def _files(folders: Iterable[Path], names: Iterable[str]) -> list[str]:
    """The libraries of these names that are there, by name first, then by folder."""
    places = list(folders)
    found = [folder / name for name in names for folder in places]
    # A colon would end the place, in the list that the engine gets.
    return [str(path) for path in found if ":" not in str(path) and path.is_file()]
