"""One build against many versions: python tests/matrix [CELL...]

Builds hvdlite's wheel once for each Python, makes one virtual environment after the other, installs the wheel there and runs
the smoke programs of tests/smoke on two ranks. `all` (the default) and names of cells write what they found into the table of
docs/compatibility.md; `rotating` runs one cell, chosen by the commit, and writes nothing.

A cell whose environment is not available (no such Python, no such MPI, the package index does not answer) is skipped with a
line that says so; a program that fails makes the whole run fail.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import page
from cells import CELLS, ROTATION, Cell
from wheels import BUILD, BUILD_SECONDS, INSTALL_SECONDS, ROOT, Unavailable, call, find_python, find_wheel, make_environment

PAGE = ROOT / "docs" / "compatibility.md"

FACTS = """
import importlib.metadata, json, platform, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import hvdlite._native
versions = {}
for name in ("numpy", "tensorflow", "tensorflow-cpu", "keras", "tf_keras", "torch", "jax"):
    try:
        versions[name.removesuffix("-cpu")] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"hvdlite": hvdlite.__file__, "python": platform.python_version(), "versions": versions,
                  "mpi": hvdlite._native.short_version(MPI.Get_library_version().strip(chr(0)))}))
"""


@dataclass(frozen=True)
class Result:
    """What one cell gave: versions as found in it, and for each program whether it passed."""

    cell: str
    python: str
    mpi: str
    versions: dict[str, str]
    programs: dict[str, bool]
    day: str


def run_cell(cell: Cell) -> Result:
    """Builds or finds the wheel, makes the environment, runs the programs, removes the environment.

    Raises:
        Unavailable: the cell's environment cannot be had here.
        RuntimeError: hvdlite does not build, or does not install.
    """
    mpirun = shutil.which(cell.mpi.mpirun) if cell.mpi.mpirun else None
    if cell.mpi.mpirun and mpirun is None:
        raise Unavailable(f"no {cell.mpi.mpirun} on PATH")
    python = find_python(cell.python)
    wheel = find_wheel(cell.python, cell.mpi.builds)
    folder = BUILD / "cells" / cell.name
    try:
        requirements = ["mpi4py>=4", "numpy", *cell.requirements, *cell.mpi.requirements]
        seconds = BUILD_SECONDS if cell.large else INSTALL_SECONDS
        bin_ = make_environment(folder, python, requirements, cell.mpi.environ, seconds)
        if mpirun:
            # No link: MPICH's would look for its other programs beside it.
            (bin_ / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')
            (bin_ / "mpirun").chmod(0o755)
        # Everything that hvdlite requires is there by now: if pip refuses, hvdlite's requirements are wrong.
        target = ["--no-deps", "--target", folder / "first"] if cell.bare else []
        installed = call([bin_ / "python", "-m", "pip", "install", "--quiet", "--no-index", *target, wheel])
        if installed.returncode != 0:
            raise RuntimeError(f"hvdlite cannot be installed beside {cell.requirements}:\n{installed.stdout}")
        environ = {**cell.mpi.environ, "PATH": f"{bin_}:/usr/local/bin:/usr/bin:/bin"}
        if cell.bare:
            moved = (folder / "first").rename(folder / "moved")
            environ |= {"PATH": str(bin_), "PYTHONPATH": str(moved)}
        facts = _facts(bin_, folder, environ)
        programs = {program: _passes(bin_, program, environ) for program in cell.programs}
        return Result(cell.name, facts["python"], facts["mpi"], facts["versions"], programs, date.today().isoformat())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _facts(bin_: Path, folder: Path, environ: dict[str, str]) -> dict:
    answer = call([bin_ / "python", "-W", "ignore", "-c", FACTS], environ)
    if answer.returncode != 0:
        raise RuntimeError(f"hvdlite cannot be imported in {folder.name}:\n{answer.stdout}")
    facts = json.loads(answer.stdout.splitlines()[-1])
    if not Path(facts["hvdlite"]).is_relative_to(folder):
        raise RuntimeError(f"the cell {folder.name} imports {facts['hvdlite']}, which is not the installed wheel")
    return facts


def _passes(bin_: Path, program: str, environ: dict[str, str]) -> bool:
    run = call([bin_ / "python", ROOT / "tests" / "smoke", program], environ)
    print("  " + run.stdout.strip().replace("\n", "\n  "), flush=True)
    return run.returncode == 0


def chosen_by_commit() -> Cell:
    """The cell of the rotation that the commit's hash picks, among those whose Python and MPI are on this machine."""
    pythons = {version: _exists(version) for version in {cell.python for cell in ROTATION}}
    possible = [
        cell for cell in ROTATION if pythons[cell.python] and (not cell.mpi.mpirun or shutil.which(cell.mpi.mpirun))
    ] or list(ROTATION)
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    number = int(answer.stdout, 16) if answer.returncode == 0 else 0
    return possible[number % len(possible)]


def _exists(version: str) -> bool:
    try:
        return bool(find_python(version))
    except Unavailable:
        return False


def record(results: list[Result]) -> None:
    """Replaces these cells' rows in the table of docs/compatibility.md; what was not run stays as it was."""
    head = ("cell", "Python", "MPI", "with", "programs", "run on")
    page.replace_rows(PAGE, head, {result.cell: _row(result) for result in results}, [cell.name for cell in CELLS])


def _row(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    programs = ", ".join(name if passed else f"**{name} fails**" for name, passed in result.programs.items())
    return f"{result.python} | {result.mpi} | {versions} | {programs} | {result.day}"


def main() -> int:
    names = {cell.name: cell for cell in CELLS}
    parser = argparse.ArgumentParser(prog="python tests/matrix", description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", default="all", choices=[*names, "all", "rotating"], metavar="CELL")
    wanted = parser.parse_args().cells  # argparse checks a default against the choices only as a string
    rotating = "rotating" in wanted
    cells = [chosen_by_commit()] if rotating else CELLS if "all" in wanted else [names[name] for name in wanted]
    results, broken = [], []
    for cell in cells:
        print(f"{cell.name}:", flush=True)
        started = time.monotonic()
        try:
            results.append(run_cell(cell))
            if not rotating:
                record(results)
        except Unavailable as missing:
            print(f"  skipped: {missing}", flush=True)
        except RuntimeError as error:
            print(f"  FAILED: {error}", flush=True)
            broken.append(cell.name)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    broken += [result.cell for result in results if not all(result.programs.values())]
    print(f"matrix: {len(results)} of {len(cells)} cells ran; failed: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
