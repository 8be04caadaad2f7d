"""The possible locations of NVIDIA's libraries: loaded in this process, in NVIDIA's wheels, in a CUDA toolkit, on the system.

At the first use of a GPU the engine opens the first library of each list that it can open. From the list of compilers it takes
the first compiler whose code the driver accepts. This module only lists locations; it imports and loads nothing. A library that
the process has loaded already comes first, because the framework that has loaded the library was built for it.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from hvdlite import config as knobs
from hvdlite.config import Config

_NCCL = "libnccl.so.2"
# The newest version comes first, but the engine tries a compiler last if its version of CUDA is newer than the driver's. The
# name that ends with 11.2 is the compiler's name in all later versions of CUDA 11, too.
_NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2")


def resolve(config: Config) -> Config:
    """The knobs as the engine needs them: with the default locations, where the user has set none."""
    caches = {"auto": kernel_cache(), "off": ""}
    return config.replace(
        nccl_library=config.nccl_library or ":".join(nccl_libraries()),
        nvrtc_library=config.nvrtc_library or ":".join(nvrtc_libraries()),
        kernel_cache=caches.get(config.kernel_cache, config.kernel_cache),
    )


def nccl_libraries() -> list[str]:
    """Possible locations of NCCL, the best first. A + in front means: only if this process has loaded the library."""
    return [f"+{_NCCL}", *_files([*_wheel_folders(), _folder_of_conda()], (_NCCL,)), _NCCL]


def nvrtc_libraries() -> list[str]:
    """Possible locations of NVIDIA's run-time compiler (NVRTC), the best first. A + means the same as in `nccl_libraries`."""
    toolkits = [Path(toolkit) / "lib64" for toolkit in knobs.cuda_toolkits()]
    folders = [*_wheel_folders(), _folder_of_conda(), *toolkits]
    return [*(f"+{name}" for name in _NVRTC), *_files(folders, _NVRTC), *_NVRTC]


def kernel_cache() -> str:
    """The folder for compiled kernels; empty if the user has no cache folder."""
    folder = knobs.cache_folder()
    return str(Path(folder) / "hvdlite") if folder else ""


def _wheel_folders() -> Iterator[Path]:
    """The folders of libraries in NVIDIA's wheels: nvidia/nccl/lib, from CUDA 13 on nvidia/cu13/lib, ..."""
    # Not find_spec, because a program may have put another module under this name.
    spec = PathFinder.find_spec("nvidia", sys.path)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob("*/lib"))


def _folder_of_conda() -> Path:
    """The folder in which conda installs libraries."""
    return Path(sys.prefix) / "lib"


def _files(folders: Sequence[Path], names: Sequence[str]) -> list[str]:
    """The existing files with these names, ordered by name first and by folder second."""
    found = [folder / name for name in names for folder in folders]
    # The engine's list separates locations by colons, so a path with a colon is left out.
    return [str(path) for path in found if ":" not in str(path) and path.is_file()]
