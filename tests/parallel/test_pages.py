"""What the pages show runs, if it needs no framework: programs on pages, examples of public names (support/pages.py)."""

import pytest
from support.page_cases import page_cases
from support.pages import DOCS, programs, python_blocks

RANKS = (2,)

test_a_program_runs, test_the_example_of_a_public_name_runs, test_each_public_name_has_an_example = page_cases(
    frameworks=(), names=("data", "elastic", "hvdlite", "metrics")
)


@pytest.fixture
def hvd():
    import hvdlite

    hvdlite.init(process_sets="dynamic")
    return hvdlite


def test_the_first_program_prints_what_its_page_says(hvd, capsys):
    page = DOCS / "get_started.md"
    python_blocks(page)[0].run()
    assert f"\n[{hvd.rank()}]<stdout>: {capsys.readouterr().out}" in page.read_text()


def test_there_are_such_programs():
    assert {block.page for block in programs()} >= {"get_started.md", "coming_from.md", "api/hvdlite.md"}
