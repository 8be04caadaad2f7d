"""Runs a program written for Horovod on two ranks: mpirun -n 2 python -m hvdlite.horovod script.py."""

import ast
from collections.abc import Sequence
from pathlib import Path

from support import warm
from support.job import JobResult, run_python

SCRIPTS = Path(__file__).with_name("scripts")
TIMEOUT = 240.0


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None, mpirun_args: Sequence[str] = ()) -> JobResult:
    """Runs the script that comes first in `arguments`; its ranks have imported its frameworks."""
    imports = warm.imports_of(ast.parse(Path(arguments[0]).read_text()))
    frameworks = warm.frameworks_of(imports, env or {})
    job = run_python(["-m", "hvdlite.horovod", *arguments], 2, TIMEOUT, folder, env, mpirun_args, frameworks=frameworks)
    for file in folder.glob("rank*.*"):  # the next job of the test has its own
        file.unlink()
    return job
