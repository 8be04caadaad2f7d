"""Where the build has put the tests' native code: the fakes, the native cases, the module of support/testing.py."""

from pathlib import Path

import hvdlite


def folder() -> Path | None:
    """That of the build which this package came from, in the source tree or of `make asan`; None where there is none."""
    tree = Path(hvdlite.__file__).parents[1]
    built = (tree / "build" / "dev" / "fake_gpu", tree.parent / "cmake" / "fake_gpu")
    return next((path for path in built if (path / "libfakecuda.so").exists()), None)
