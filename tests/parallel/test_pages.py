"""What the pages show runs, if it needs no framework: programs on pages, examples of public names (support/pages.py)."""

import pytest
from support.pages import DOCS, examples, function_of, programs, python_blocks
from support.reference import check_page

RANKS = (2,)
NAMES = ("data", "elastic", "hvdlite", "metrics")  # pages of public names


@pytest.fixture
def hvd():
    import hvdlite

    hvdlite.init(process_sets="dynamic")
    return hvdlite


@pytest.mark.parametrize("block", programs(), ids=str)
def test_a_program_runs(hvd, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block.run()


def test_the_first_program_prints_what_its_page_says(hvd, capsys):
    page = DOCS / "get_started.md"
    python_blocks(page)[0].run()
    assert f"\n[{hvd.rank()}]<stdout>: {capsys.readouterr().out}" in page.read_text()


@pytest.mark.parametrize("example", examples(*NAMES), ids=str)
def test_the_example_of_a_public_name_runs(hvd, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function_of(example)()


@pytest.mark.parametrize("page", NAMES)
def test_each_public_name_has_an_example(hvd, page):
    check_page(page)


def test_there_are_such_programs():
    assert {block.page for block in programs()} >= {"get_started.md", "coming_from.md", "api/hvdlite.md"}
