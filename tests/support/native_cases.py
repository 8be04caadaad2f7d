"""The cases of tests/native/cases: one program contains them all, and pytest shows each of them as a test."""

import functools
import subprocess
from pathlib import Path

import pytest
from support import fake_gpu, native

# Only turns a hang into a failure.
DEADLINE = 300.0


def program() -> Path | None:
    """The path of the program; None if it was not built."""
    folder = native.folder()
    path = folder / "native_tests" if folder else None
    return path if path and path.exists() else None


@functools.cache
def names(prefix: str = "") -> tuple[str, ...]:
    """The names of all cases that begin with `prefix`. Without the program it is one name, whose test skips with the reason."""
    found = program()
    if found is None:
        return ("native_tests",)
    done = subprocess.run([str(found), "list", prefix], capture_output=True, text=True, timeout=DEADLINE, check=True)
    return tuple(done.stdout.split())


def run(name: str, leaks: bool = False, **settings: object) -> None:
    """Runs a case in a process of its own.

    Args:
        name: the name of the case.
        leaks: may the case leak memory? An engine that fails leaks results to which a transfer may still write.
        settings: settings of the fake GPUs (support/fake_gpu.py).
    """
    found = program()
    if found is None:
        pytest.skip("the native tests are not built (make develop)")
    done = subprocess.run(
        [str(found), "run", name],
        env={**fake_gpu.environment(**settings), "ASAN_OPTIONS": f"detect_leaks={int(not leaks)}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
