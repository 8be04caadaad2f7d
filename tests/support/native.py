"""The folder of the tests' native code: the fakes, the native cases, and the module of support/testing.py."""

from pathlib import Path

import hvdlite


def folder() -> Path | None:
    """The folder in the build of this package, which is in the source tree or of `make asan`; None if it was not built."""
    tree = Path(hvdlite.__file__).parents[1]
    built = (tree / "build" / "dev" / "fake_gpu", tree.parent / "cmake" / "fake_gpu")
    return next((path for path in built if (path / "libfakecuda.so").exists()), None)
