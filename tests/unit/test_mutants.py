"""The mutants' rows are about this tree: what they replace is there, and so are the tests that ought to notice."""

import pytest
from mutants.__main__ import Results, main
from mutants.mutant import Mutant, Stale
from mutants.rows import ROOMS
from mutants.run import first_failure
from mutants.tree import ROOT, Tree

ROWS = [mutant for mutants in ROOMS.values() for mutant in mutants]


@pytest.fixture(scope="module")
def contents():
    return {name: (ROOT / name).read_bytes() for name in {mutant.file for mutant in ROWS}}


def test_all_rows_fit_the_tree(contents):
    for mutant in ROWS:
        assert mutant.applied(contents) != contents[mutant.file], f"{mutant.name} changes nothing"
        assert mutant.tests, f"{mutant.name} names no tests"
        for test in mutant.tests:
            assert (ROOT / test.split("::")[0]).is_file(), f"{mutant.name}: {test} is gone; guards.py says who notices instead"


def test_rows_have_names_of_their_own():
    names = [mutant.name for mutant in ROWS]
    assert len(set(names)) == len(names) >= 64
    assert all(ROOMS.values())


def test_a_text_that_is_not_there_once_makes_a_row_stale():
    row = Mutant("row", "what", "a.py", "x = 1\n", "x = 2\n", ("tests/unit/test_a.py",))
    assert row.applied({"a.py": b"x = 1\ny = 1\n"}) == b"x = 2\ny = 1\n"
    with pytest.raises(Stale, match=r"row: its old text is in a\.py 0 times"):
        row.applied({"a.py": b"x = 2\n"})
    with pytest.raises(Stale, match="2 times"):
        row.applied({"a.py": b"x = 1\nx = 1\n"})
    with pytest.raises(Stale, match=r"there is no a\.py"):
        row.applied({})


def test_a_tree_is_changed_and_restored_and_loses_what_is_gone(tmp_path):
    root = tmp_path / "tree"
    Tree(root, {"a.py": (b"x = 1\n", 0o644), "b/c.sh": (b"true\n", 0o755)})
    tree = Tree(root, {"a.py": (b"x = 1\n", 0o644)})
    assert not (root / "b" / "c.sh").exists()
    tree.change("a.py", b"x = 2\n")
    assert (root / "a.py").read_bytes() == b"x = 2\n"
    tree.restore("a.py")
    assert (root / "a.py").read_bytes() == b"x = 1\n"
    assert tree.digest == Tree(root, {"a.py": (b"x = 1\n", 0o600)}).digest != Tree(root, {"a.py": (b"", 0o644)}).digest


def test_the_last_result_of_a_row_counts(tmp_path):
    path = tmp_path / "folder" / "rows.jsonl"
    results = Results(path)
    results.add("one", outcome="survived")
    results.add("two", outcome="killed")
    results.add("one", outcome="killed")
    assert {row: entry["outcome"] for row, entry in Results(path).known.items()} == {"one": "killed", "two": "killed"}


def test_who_noticed_first_is_read_from_what_pytest_writes():
    alone = """
E       assert 1 == 2
=========================== short test summary info ============================
FAILED tests/unit/test_a.py::test_b[x-y z] - assert 1 == 2
FAILED tests/unit/test_a.py::test_c - assert 3 == 4
"""
    assert first_failure(alone) == ("tests/unit/test_a.py::test_b[x-y z]", "assert 1 == 2")
    summary = "FAILED tests/parallel/test_a.py::ranks=2 - mpirun ended with 1 after 3.0 s\n"
    failed = f"""
mpirun goes on after 3.0 s
=== rank 1 of 2, failed: test_b[0] (call)
E   AssertionError: first
E   ValueError: second
=== rank 0 of 2, failed: nothing
E   another
{summary}"""
    assert first_failure(failed) == ("tests/parallel/test_a.py::ranks=2 (test_b[0] (call))", "ValueError: second")
    ended = f"""
=== rank 1 of 2, ended early
test_b[x] (call) failed:
E   AssertionError: first
=== rank 0 of 2, ended early
Timeout (0:00:08)!
  File "tests/parallel/test_a.py", line 60 in test_c
{summary}"""
    assert first_failure(ended) == ("tests/parallel/test_a.py::ranks=2 (test_b[x])", "AssertionError: first")
    hung = f"""
=== rank 0 of 2, ended early
  File "tests/parallel/test_a.py", line 60 in test_c
{summary}"""
    by, error = first_failure(hung)
    assert (by, error) == ("tests/parallel/test_a.py::ranks=2 (test_c)", "mpirun ended with 1 after 3.0 s; a rank hung there")
    assert first_failure("3 passed in 1.0s") == ("", "")


def test_a_row_that_does_not_exist_is_refused(capsys):
    assert main(["--only", "no-such-row"]) == 2
    assert "no-such-row" in capsys.readouterr().err
