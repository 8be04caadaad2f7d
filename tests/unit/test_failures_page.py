"""docs/failures.md has the rows that tests/fault/test_failures.py tests."""

from support.failure_cases import CASES, MODES
from support.failure_report import MARKS, PAGE, row_titles
from support.pages import text_between


def rows():
    """The cells of the table's rows."""
    lines = [line for line in text_between(PAGE, MARKS).splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def test_the_rows_of_the_table_are_those_of_the_tests():
    assert [row[:2] for row in rows()] == row_titles()
    assert len(CASES) == len(MODES) * len(rows()), "each row is a case in each mode"


def test_every_case_of_the_table_was_run_and_ended():
    for row in rows():
        assert len(row) == 2 + len(MODES)
        assert not any("not run" in cell or "did not end" in cell or "processes left" in cell for cell in row), row
