"""Slices of the slow tests: each test is in one, each commit runs one, and what failed before does not block."""

import itertools
import subprocess

import pytest
from support import slices
from support.parallel import TESTS


def test_each_test_is_in_one_slice_and_neighbours_are_in_different_ones():
    tests = list(range(4003))
    parts = [slices.dealt(tests, place) for place in range(slices.SLICES)]
    assert sorted(test for part in parts for test in part) == tests
    assert all(later - earlier == slices.SLICES for part in parts for earlier, later in itertools.pairwise(part))


def test_commits_choose_all_slices():
    assert slices.slice_of_commit("0" * 40) == 0
    assert {slices.slice_of_commit(f"{number:012x}{'f' * 28}") for number in range(slices.SLICES)} == set(range(slices.SLICES))


def test_pytest_runs_the_slice_alone_and_names_what_fails(tmp_path, monkeypatch):
    """In a project whose conftest.py lies in tests/, as here."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tests / "support").symlink_to(TESTS / "support")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tests / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('number', range(64))\ndef test_it(number):\n    assert number % 5 == 0\n"
    )
    monkeypatch.setattr(slices, "BUILD", tmp_path / "build")
    code, failed = slices._pytest(tmp_path, ["--slice=3", "-n", "0"])
    inside = slices.dealt(range(64), 3)
    names = [f"tests/test_it.py::test_it[{number}]" for number in inside if number % 5]
    assert len(names) > 1
    assert (code, failed) == (1, sorted(names))


@pytest.mark.parametrize(("on_parent", "status"), [(["a", "b"], 0), (["b"], 1), ([], 1)])
def test_what_fails_on_the_parent_does_not_block(on_parent, status):
    text, code = slices.verdict(["b", "a"], on_parent)
    assert code == status
    assert text.splitlines() == [
        *(f"fails on the parent commit as well, so it does not block: {node}" for node in on_parent),
        *(f"fails since this commit: {node}" for node in sorted({"a", "b"} - set(on_parent))),
    ]


def test_the_parent_is_a_checkout_of_its_own(tmp_path, monkeypatch):
    """What fails since HEAD, and what did before, in a small repository."""
    run = {"cwd": tmp_path, "check": True, "capture_output": True}
    (tmp_path / "Makefile").write_text("develop:\n\ttest -x $(VENV)/bin/python && touch built\n")
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(TESTS)!r})\n"
        "from support.slices import add_options as pytest_addoption, configure as pytest_configure\n"
    )
    test = "import os\ndef test_old():\n    os._exit(1)\ndef test_new():\n    assert os.path.exists('built') and {}\n"
    subprocess.run(["git", "init", "-q"], **run)
    for value in (True, False):
        (tmp_path / "test_it.py").write_text(test.format(value))
        subprocess.run(["git", "add", "."], **run)
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a"], **run)
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setattr(slices, "BUILD", tmp_path / "build")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-n 1")  # a worker that a test takes along is a failure of that test
    (tmp_path / "built").touch()
    code, failed = slices._pytest(tmp_path, [])
    assert code == 1
    assert failed == ["test_it.py::test_new", "test_it.py::test_old"]
    assert slices._failed_on_parent(failed) == ["test_it.py::test_old"]
    assert not (tmp_path / "build" / "parent").exists()
