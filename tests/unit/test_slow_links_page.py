"""The table of docs/slow_links.md that says what goes with which compression is that of its cases."""

from support.compression_table import lines_of_page, table


def test_the_page_has_the_table_of_the_cases():
    assert lines_of_page() == table(), "cd tests && python -m support.compression_table"
