"""The version matrix: its table, which cell a commit gets, and how results get into the documentation."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.modules import module_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix():
    folder = ROOT / "tests" / "matrix"
    sys.path.insert(0, str(folder))
    try:
        return module_of(folder / "__main__.py")
    finally:
        sys.path.remove(str(folder))


def smoke_programs():
    tree = ast.parse((ROOT / "tests" / "smoke" / "__main__.py").read_text())
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "PROGRAMS")
    return ast.literal_eval(table)


def test_cells_have_names_of_their_own_and_programs_that_exist(matrix):
    names = [cell.name for cell in matrix.CELLS]
    assert len(set(names)) == len(names)
    programs = smoke_programs()
    assert {program for cell in matrix.CELLS for program in cell.programs} == set(programs)
    assert all((ROOT / "tests" / "smoke" / script).exists() for script, *_ in programs.values())


def commit(monkeypatch, matrix, text, returncode=0):
    answer = subprocess.CompletedProcess([], returncode, text)
    monkeypatch.setattr(matrix.subprocess, "run", lambda *arguments, **options: answer)
    return matrix.chosen_by_commit().name


def test_commits_take_turns_among_the_cells_that_this_machine_can_run(matrix, monkeypatch):
    monkeypatch.setattr(matrix.shutil, "which", lambda program: None)
    monkeypatch.setattr(matrix, "_exists", lambda version: version != "3.12")
    here = [c.name for c in matrix.ROTATION if not c.mpi.mpirun and c.python != "3.12"]
    chosen = {commit(monkeypatch, matrix, f"{number:040x}\n") for number in range(1000, 1000 + len(here))}
    assert chosen == set(here)
    assert commit(monkeypatch, matrix, "fatal: not a git repository", 128) == here[0]


def test_rows_replace_those_of_their_cells_and_no_others(matrix, monkeypatch, tmp_path):
    begin, end = matrix.page.BEGIN, matrix.page.END
    page = tmp_path / "compatibility.md"
    page.write_text(f"# Page\n\n{begin}\n| `tf-2.15` | old |\n| `numpy-2` | old |\n| `gone` | old |\n{end}\n\nEnd.\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    programs = {"tensorflow": True, "keras-tensorflow": False}
    matrix.record([matrix.Result("tf-2.15", "3.11.7", "Open MPI v5.0.11", {"keras": "2.15.0"}, programs, "2026-01-02")])
    row = "| `tf-2.15` | 3.11.7 | Open MPI v5.0.11 | keras 2.15.0 | tensorflow, **keras-tensorflow fails** | 2026-01-02 |"
    lines = page.read_text().splitlines()
    assert lines[lines.index("|---|---|---|---|---|---|") + 1 :] == [row, "| `numpy-2` | old |", end, "", "End."]
    assert lines[:3] == ["# Page", "", begin]


def test_the_page_claims_nothing_but_cells(matrix):
    rows = re.findall(r"^\| `([^`]+)` \|", matrix.PAGE.read_text().partition(matrix.page.BEGIN)[2], re.MULTILINE)
    assert rows
    assert set(rows) <= {cell.name for cell in matrix.CELLS}
