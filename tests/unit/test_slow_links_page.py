"""docs/slow_links.md has the table of what goes with which compression, as its cases are."""

from support.compression_table import lines_of_page, table


def test_the_page_has_the_table_of_the_cases():
    assert lines_of_page() == table(), "cd tests && python -m support.compression_table"
