"""The programs on the pages of the documentation that need no framework run (support/pages.py)."""

import pytest
from support.pages import DOCS, programs, python_blocks

RANKS = (2,)


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


def test_there_are_such_programs():
    assert {block.page for block in programs()} >= {"get_started.md", "coming_from.md", "api/hvdlite.md"}
