"""The cases of tests/native/cases: one program knows them by name, and pytest shows each as a test."""

import functools
import subprocess
from pathlib import Path

import pytest
from support import fake_gpu, native

# Only turns a hang into a failure.
DEADLINE = 300.0


def program() -> Path | None:
    """Where the build has put it; None where there is none."""
    folder = native.folder()
    path = folder / "native_tests" if folder else None
    return path if path and path.exists() else None


@functools.cache
def names(prefix: str = "") -> tuple[str, ...]:
    """All whose name begins so. Without the program one that is skipped, so that the reason is seen."""
    found = program()
    if found is None:
        return ("native_tests",)
    done = subprocess.run([str(found), "list", prefix], capture_output=True, text=True, timeout=DEADLINE, check=True)
    return tuple(done.stdout.split())


def run(name: str, leaks: bool = False, **settings: object) -> None:
    """Runs a case in a process of its own.

    Args:
        name: of the case.
        leaks: memory may be lost, as an engine that fails loses results to which a transfer may still write.
        settings: of the fake GPUs (support/fake_gpu.py).
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
