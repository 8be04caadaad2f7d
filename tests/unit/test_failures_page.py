"""docs/failures.md has the rows that tests/fault/test_failures.py tests."""

import re

from support.failure_cases import CASES, MODES
from support.failure_report import MARKS, PAGE, TEXTS, row_titles
from support.pages import text_between


def rows():
    """The cells of the rows of cases."""
    lines = [line for line in text_between(PAGE, MARKS).splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in found if len(row) > 2 and row[0] != "rank 1 …"]


def test_the_rows_of_the_tables_are_those_of_the_tests():
    assert [row[:2] for row in rows()] == row_titles()
    assert len(CASES) == len(MODES) * len(rows()), "each row is a case in each mode"


def test_every_case_of_the_tables_was_run_and_ended():
    for row in rows():
        assert len(row) == 2 + len(MODES)
        assert not any("not run" in cell or "did not end" in cell or "processes left" in cell for cell in row), row


def test_each_text_of_a_cell_is_explained():
    explained = {name for name, _, _ in TEXTS}
    named = {name for row in rows() for cell in row[2:] for name in re.findall(r"\*([^*]+)\*", cell)}
    assert named == explained
